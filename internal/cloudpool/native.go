package cloudpool

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
	"github.com/slipway-dev/slipway/internal/cloudpool/machineid"
	"github.com/slipway-dev/slipway/internal/protection"
)

// What a pool without a server of its own keeps of a machine, on the machine's Node.
const (
	membershipAnnotation = protection.Membership
	serviceAnnotation    = "cloudpool.slipway.dev/service-state"
	detachedAnnotation   = protection.Detached
)

// Native is a pool that is a NodeGroup, in whichever cloud that is. Its machines are those that the cloud counts to the
// group, but for those that were detached. Its desired size is the cloud's own for the group, less the machines that were
// detached or do not count: those are kept, and something else is there for them.
type Native struct {
	name     string // the NodeGroup's
	group    string // the cloud's
	provider cloud.Provider
	others   []cloud.Provider // those that are configured beside it
	cluster  *Cluster
	refresh  time.Duration
	// namespace is where a ConfigMap says whether the pool is started.
	namespace string

	mu       sync.Mutex
	observed *api.Pool // as it was last read
	size     *api.Size
	sizeAt   time.Time
	started  bool
	asked    time.Time // when started was last read
	// replaced is when another machine was asked for in the place of one whose node does not say so yet.
	replaced map[string]time.Time
}

var _ Backend = (*Native)(nil)

// newNative finds a NodeGroup and its cloud.
func newNative(ctx context.Context, c *Cluster, name, namespace string, refresh time.Duration, clouds map[string]cloud.Provider) (*Native, error) {
	var g v1alpha1.NodeGroup
	if err := c.objects.Get(ctx, client.ObjectKey{Name: name}, &g); err != nil {
		return nil, fmt.Errorf("--native: NodeGroup %s: %w", name, err)
	}
	own := clouds[g.Spec.Cloud.Provider]
	if own == nil {
		return nil, fmt.Errorf("--native: NodeGroup %s is in the cloud %q, which --cloud-config does not name", name, g.Spec.Cloud.Provider)
	}
	n := &Native{name: name, group: g.Spec.Cloud.Group, provider: own, cluster: c, refresh: refresh, namespace: namespace}
	for other, one := range clouds {
		if other != g.Spec.Cloud.Provider {
			n.others = append(n.others, one)
		}
	}
	return n, nil
}

// Provider implements Backend.
func (n *Native) Provider() (cloud.Provider, string) { return n.provider, n.group }

// Identity implements Backend: the ID in the pool is the provider's. One of a cloudpool's own, which no Node has, says nothing.
func (n *Native) Identity(m *api.Machine) (string, bool) {
	return m.ID, !strings.HasPrefix(m.ID, provider.Name+"://")
}

// NodeIdentity implements Backend.
func (n *Native) NodeIdentity(providerID string) (string, error) {
	return n.provider.Normalize(providerID)
}

// Elsewhere implements Backend. An ID that the group's own cloud does not answer for may be of one of its machines.
func (n *Native) Elsewhere(identity, providerID string) bool {
	if _, err := n.provider.Normalize(providerID); cloud.IsUnanswered(err) {
		return false
	}
	if machineid.Elsewhere(identity, providerID) {
		return true
	}
	mine, _, _ := strings.Cut(identity, "://")
	theirs, _, found := strings.Cut(providerID, "://")
	return found && theirs != mine && slices.ContainsFunc(n.others, func(other cloud.Provider) bool {
		_, err := other.Normalize(providerID)
		return err == nil
	})
}

// Names implements Backend.
func (n *Native) Names(m *api.Machine) (name, computerName string) {
	var has nativeMetadata
	_ = json.Unmarshal(m.Metadata, &has) // it is this pool's own
	return has.Name, has.ComputerName
}

// KeepsRejected implements Backend: what the cloud has failed to make is there until it is deleted.
func (n *Native) KeepsRejected() bool { return true }

// Delete implements Backend.
func (n *Native) Delete(ctx context.Context, m *api.Machine) (cloud.Operation, error) {
	return n.provider.Delete(ctx, m.ID)
}

// look reads the machines of the group, those that were detached too, with their nodes.
func (n *Native) look(ctx context.Context) ([]nativeMachine, error) {
	instances, err := n.provider.Instances(ctx, n.group)
	if err != nil {
		return nil, err
	}
	nodes, err := n.cluster.Nodes()
	if err != nil {
		return nil, err
	}
	byIdentity := map[string]*corev1.Node{}
	for _, node := range nodes {
		id, err := n.provider.Normalize(node.Spec.ProviderID)
		if cloud.IsUnanswered(err) { // what is kept of its machine would seem to be nothing
			return nil, fmt.Errorf("node %s: %w", node.Name, err)
		}
		if err == nil {
			byIdentity[id] = node
		}
	}
	machines := make([]nativeMachine, len(instances))
	for i := range instances {
		machines[i] = n.machine(&instances[i], byIdentity[instances[i].ProviderID])
	}
	return machines, nil
}

// nativeMachine is a machine with the node that says what the pool keeps of it.
type nativeMachine struct {
	api.Machine
	node     *corev1.Node
	detached bool
}

// nativeMetadata is what a machine's description has beside what the API names.
type nativeMetadata struct {
	Name         string `json:"name"`
	ComputerName string `json:"computerName"`
	Message      string `json:"message,omitempty"`
}

// providerNames are clouds as the API's users know them.
var providerNames = map[string]string{"azure": "Azure", "openstack": "OpenStack"}

// machine puts an instance in the API's words.
func (n *Native) machine(i *cloud.Instance, node *corev1.Node) nativeMachine {
	m := nativeMachine{node: node, Machine: api.Machine{
		ID: i.ProviderID, State: nativeState(i.State), Membership: &api.MembershipStatus{Active: true, Evictable: true},
		ServiceState: api.UnknownState, Provider: cmp.Or(providerNames[n.provider.Name()], n.provider.Name()), Region: i.Zone, Size: i.Type,
		PublicIPs: []string{}, PrivateIPs: []string{},
	}}
	if !i.Created.IsZero() {
		m.LaunchTime = &i.Created
	}
	m.Metadata, _ = json.Marshal(nativeMetadata{i.Name, i.ComputerName, i.Message}) //nolint:errchkjson // three strings
	if i.State == cloud.Stopped {
		m.ServiceState = api.OutOfService
	}
	if node == nil {
		return m
	}
	if i.State == cloud.Failed { // some change of it has; it is there, and runs pods
		m.State, m.ServiceState = api.Running, api.Unhealthy
	}
	m.Region = cmp.Or(node.Labels[corev1.LabelTopologyRegion], m.Region)
	for _, a := range node.Status.Addresses {
		switch a.Type {
		case corev1.NodeInternalIP:
			m.PrivateIPs = append(m.PrivateIPs, a.Address)
		case corev1.NodeExternalIP:
			m.PublicIPs = append(m.PublicIPs, a.Address)
		}
	}
	m.detached = node.Annotations[detachedAnnotation] == "true"
	if said := api.ServiceState(node.Annotations[serviceAnnotation]); said.Known() {
		m.ServiceState = said
	}
	if text := node.Annotations[membershipAnnotation]; text != "" {
		var said api.MembershipStatus
		if json.Unmarshal([]byte(text), &said) != nil {
			said = api.MembershipStatus{Active: true} // who has written what cannot be read wanted something kept
		}
		m.Membership = &said
	}
	return m
}

// nativeState is a state in the API's words. A machine of which nothing is known counts.
func nativeState(s cloud.State) api.MachineState {
	switch s {
	case cloud.Pending:
		return api.Pending
	case cloud.Deleting:
		return api.Terminating
	case cloud.Failed:
		return api.Rejected
	}
	return api.Running
}

// Pool implements Backend. It reads past the cache.
func (n *Native) Pool(ctx context.Context) (api.Pool, error) {
	at := time.Now().UTC()
	all, err := n.look(ctx)
	if err != nil {
		return api.Pool{}, err
	}
	pool := api.Pool{Timestamp: at, Machines: []api.Machine{}}
	for i := range all {
		if !all[i].detached {
			pool.Machines = append(pool.Machines, all[i].Machine)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.observed = &pool
	return pool, nil
}

// Size implements Backend. It reads past the cache.
func (n *Native) Size(ctx context.Context) (api.Size, error) {
	at := time.Now().UTC()
	group, err := n.provider.Group(ctx, n.group)
	if err != nil {
		return api.Size{}, err
	}
	all, err := n.look(ctx)
	if err != nil {
		return api.Size{}, err
	}
	size := api.Size{Timestamp: at, Desired: group.Size}
	for i := range all {
		m := &all[i]
		switch {
		case m.State == api.Rejected: // it is in the cloud's size, and will not serve
			size.Desired--
		case m.State.Over():
		case m.detached:
			size.Desired--
		case !m.Active():
			size.Desired--
			size.Allocated++
		default:
			size.Allocated++
			size.Active++
		}
	}
	size.Desired = max(0, size.Desired)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.size, n.sizeAt = &size, at
	return size, nil
}

// SetDesiredSize implements Backend. To come to a smaller size machines have to be deleted, each by its own name.
func (n *Native) SetDesiredSize(ctx context.Context, want int) error {
	size, err := n.Size(ctx)
	if err != nil {
		return err
	}
	switch {
	case want == size.Desired:
		return nil
	case want < size.Desired:
		return fmt.Errorf("NodeGroup %s: its cloud is making %d machines that are not there yet: they can be taken away when they are", n.name,
			size.Desired-size.Active)
	}
	return n.grow(ctx, want-size.Desired)
}

// grow asks the cloud for more machines, within the NodeGroup's maximum, which is of all that the cloud counts.
func (n *Native) grow(ctx context.Context, more int) error {
	var g v1alpha1.NodeGroup
	if err := n.cluster.cache.Get(ctx, client.ObjectKey{Name: n.name}, &g); err != nil {
		return fmt.Errorf("NodeGroup %s: %w", n.name, err)
	}
	has, err := n.provider.Group(ctx, n.group)
	if err != nil {
		return err
	}
	if g.Spec.Maximum != nil && has.Size+more > int(*g.Spec.Maximum) {
		return &cloud.RefusedError{Reason: cloud.AtLimit, Err: fmt.Errorf("NodeGroup %s: its maximum is %d, and its cloud counts %d machines to it, "+
			"those that were detached or are not active too: want at most %d more, not %d", n.name, *g.Spec.Maximum, has.Size,
			max(0, int(*g.Spec.Maximum)-has.Size), more)}
	}
	_, err = n.provider.Grow(ctx, n.group, cloud.Order{Count: more})
	return err
}

// member finds a machine that was not detached, or one that was.
func (n *Native) member(ctx context.Context, id string, detached bool) (*nativeMachine, error) {
	all, err := n.look(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if m := &all[i]; m.ID == id && m.detached == detached && !m.State.Over() {
			if m.node == nil {
				return nil, failure(NotPossible, "machine %s has no node yet, on which that would be kept", id)
			}
			return m, nil
		}
	}
	return nil, failure(NotFound, "unrecognized machine: machine %s is not a pool member", id)
}

// SetMembershipStatus implements Backend. A machine that stops to count is replaced: first, so that without quota nothing
// changes.
func (n *Native) SetMembershipStatus(ctx context.Context, s api.SetMembershipStatus) error {
	m, err := n.member(ctx, s.MachineID, false)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(s.MembershipStatus)
	if err != nil {
		return err
	}
	if !s.MembershipStatus.Evictable {
		if err := n.canBeKept(ctx, m); err != nil {
			return err
		}
	}
	if m.Active() && !s.MembershipStatus.Active {
		return n.replace(ctx, m, membershipAnnotation, string(raw))
	}
	return n.annotate(ctx, m.node.Name, membershipAnnotation, string(raw))
}

// canBeKept says why a machine cannot be kept from its end any more.
func (n *Native) canBeKept(ctx context.Context, m *nativeMachine) error {
	retirements, err := n.cluster.unfinished(ctx)
	if err != nil {
		return clusterFailure("reading the NodeRetirements", err)
	}
	rt := retiring([]Member{{Machine: &m.Machine, Node: m.node}}, retirements, n)[m.ID]
	if rt == nil {
		return nil
	}
	return tooLate(m.ID, rt)
}

// replace asks for a machine in the place of one, and then writes on its node why. Nothing is asked for as long as the node
// cannot be written on, nor a second time because it could not afterwards.
func (n *Native) replace(ctx context.Context, m *nativeMachine, key, value string) error {
	if !n.wasReplaced(m.ID) {
		if err := n.patch(ctx, m.node.Name, key, value, metav1.DryRunAll); err != nil {
			return err
		}
		if err := n.grow(ctx, 1); err != nil {
			return err
		}
		n.noteReplaced(m.ID)
	}
	if err := n.annotate(ctx, m.node.Name, key, value); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.replaced, m.ID)
	return nil
}

// replacedFor is for how long it is believed that a request which is made again is still for the machine that was asked for in
// the place of another. Who asks later has given the first one up, and has set the size that he wants since.
const replacedFor = 10 * time.Minute

// noteReplaced notes that a machine was replaced, of which its node does not say so yet.
func (n *Native) noteReplaced(machine string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.replaced == nil {
		n.replaced = map[string]time.Time{}
	}
	n.replaced[machine] = time.Now()
}

func (n *Native) wasReplaced(machine string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.replaced, func(_ string, at time.Time) bool { return time.Since(at) > replacedFor })
	_, was := n.replaced[machine]
	return was
}

// Detach implements Backend. A machine that is detached without wanting fewer is replaced, first.
func (n *Native) Detach(ctx context.Context, r api.Removal) error {
	m, err := n.member(ctx, r.MachineID, false)
	if err != nil {
		return err
	}
	if !m.Evictable() {
		return failure(NotPossible, "machine %s cannot be detached: its membershipStatus says that it is not evictable", r.MachineID)
	}
	if err := n.canBeKept(ctx, m); err != nil {
		return err
	}
	if !r.Decrement && m.Active() {
		return n.replace(ctx, m, detachedAnnotation, "true")
	}
	return n.annotate(ctx, m.node.Name, detachedAnnotation, "true")
}

// attach takes a machine in again that was detached, and which the desired size counts from then on.
func (n *Native) attach(ctx context.Context, id string) error {
	m, err := n.member(ctx, id, true)
	if err != nil {
		return err
	}
	return n.annotate(ctx, m.node.Name, detachedAnnotation, "")
}

func (n *Native) setServiceState(ctx context.Context, s api.SetServiceState) error {
	m, err := n.member(ctx, s.MachineID, false)
	if err != nil {
		return err
	}
	return n.annotate(ctx, m.node.Name, serviceAnnotation, string(s.ServiceState))
}

// annotate writes on a node, and waits until the watch has it, so that who asks next is told so; empty takes it off.
func (n *Native) annotate(ctx context.Context, node, key, value string) error {
	if err := n.patch(ctx, node, key, value); err != nil {
		return err
	}
	n.forget()
	ctx, cancel := context.WithTimeout(ctx, watchPatience)
	defer cancel()
	for {
		seen, err := n.cluster.nodes.Get(node)
		if apierrors.IsNotFound(err) || err == nil && seen.Annotations[key] == value {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil // it is written; it will be seen
		case <-time.After(watchEvery):
		}
	}
}

// patch writes on a node, or sees whether it could.
func (n *Native) patch(ctx context.Context, node, key, value string, dryRun ...string) error {
	var to any = value
	if value == "" {
		to = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: to}}})
	if err != nil {
		return err
	}
	_, err = n.cluster.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{DryRun: dryRun})
	if err != nil {
		return clusterFailure("annotating node "+node, err)
	}
	return nil
}

const (
	watchPatience = 5 * time.Second
	watchEvery    = 10 * time.Millisecond
)

// forget has the next read look anew.
func (n *Native) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.observed, n.size = nil, nil
}

// cachedPool is a pool that may be as old as refresh.
func (n *Native) cachedPool(ctx context.Context) (api.Pool, error) {
	n.mu.Lock()
	seen := n.observed
	n.mu.Unlock()
	if seen != nil && time.Since(seen.Timestamp) < n.refresh {
		return *seen, nil
	}
	return n.Pool(ctx)
}

func (n *Native) cachedSize(ctx context.Context) (api.Size, error) {
	n.mu.Lock()
	seen, at := n.size, n.sizeAt
	n.mu.Unlock()
	if seen != nil && time.Since(at) < n.refresh {
		return *seen, nil
	}
	return n.Size(ctx)
}

// startedEvery is how long what is known of a pool being started is believed.
const startedEvery = time.Second

func (n *Native) stateName() string { return recordName(n.name) + ".native" }

// isStarted reads whether the pool is started. One of which nothing is said is. While the API server is away it is what it
// was when it was last read: reads go on, from what is known.
func (n *Native) isStarted(ctx context.Context) (bool, error) {
	n.mu.Lock()
	started, asked := n.started, n.asked
	n.mu.Unlock()
	if time.Since(asked) < startedEvery {
		return started, nil
	}
	object, err := n.cluster.Client.CoreV1().ConfigMaps(n.namespace).Get(ctx, n.stateName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		started = true
	case err != nil && asked.IsZero():
		return false, clusterFailure("reading whether the pool is started", err)
	case err == nil:
		started = object.Data["started"] != "false"
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.started, n.asked = started, time.Now()
	return started, nil
}

// setStarted writes down whether the pool is started.
func (n *Native) setStarted(ctx context.Context, started bool) error {
	maps := n.cluster.Client.CoreV1().ConfigMaps(n.namespace)
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: n.stateName(), Labels: map[string]string{recordLabel: "native"}},
		Data:       map[string]string{"started": fmt.Sprint(started)},
	}
	_, err := maps.Update(ctx, object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, object, metav1.CreateOptions{})
	}
	if err != nil {
		return clusterFailure("writing down whether the pool is started", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.started, n.asked = started, time.Now()
	return nil
}

// nativeConfig is the configuration of a native pool: which NodeGroup it is, and what that says.
type nativeConfig struct {
	NodeGroup string `json:"nodeGroup"`
	Provider  string `json:"provider"`
	Group     string `json:"group"`
	Minimum   *int32 `json:"minimum,omitempty"`
	Maximum   *int32 `json:"maximum,omitempty"`
}

func (n *Native) config(ctx context.Context) (*nativeConfig, error) {
	var g v1alpha1.NodeGroup
	if err := n.cluster.cache.Get(ctx, client.ObjectKey{Name: n.name}, &g); err != nil {
		return nil, fmt.Errorf("NodeGroup %s: %w", n.name, err)
	}
	return &nativeConfig{g.Name, g.Spec.Cloud.Provider, g.Spec.Cloud.Group, &g.Spec.Minimum, g.Spec.Maximum}, nil
}

// checkConfig takes a configuration that says what is so. Another one belongs in the NodeGroup.
func (n *Native) checkConfig(ctx context.Context, raw []byte) error {
	is, err := n.config(ctx)
	if err != nil {
		return err
	}
	var want map[string]json.RawMessage
	if err := json.Unmarshal(raw, &want); err != nil || want == nil {
		return &api.BadRequest{ErrorMessage: api.ErrorMessage{Message: "illegal input: the configuration is no JSON object"}}
	}
	has, err := json.Marshal(is)
	if err != nil {
		return err
	}
	var now map[string]json.RawMessage
	if err := json.Unmarshal(has, &now); err != nil {
		return err
	}
	for key, value := range want {
		if now[key] == nil || strings.TrimSpace(string(value)) != string(now[key]) {
			return &api.BadRequest{ErrorMessage: api.ErrorMessage{
				Message: "illegal input: " + key + " cannot be changed here",
				Detail:  fmt.Sprintf("%.100s: want %s, or change the NodeGroup %s", value, now[key], n.name),
			}}
		}
	}
	return nil
}
