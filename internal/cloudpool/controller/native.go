package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloud/providerid"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
	"github.com/slipway-dev/slipway/internal/drainability"
)

// What a pool without a server of its own keeps of a machine, on the machine's Node.
const (
	membershipAnnotation = drainability.Membership
	serviceAnnotation    = "cloudpool.slipway.dev/service-state"
	detachedAnnotation   = drainability.Detached
	stateLabel           = "slipway.dev/cloudpool" // of the ConfigMap that says whether the pool is started
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
	// unread says that the NodeGroup was not read yet, so that group, provider and others are not known.
	unread atomic.Bool

	started atomic.Pointer[isStarted]
	lost    atomic.Pointer[lostLaunch]
	// known has the pool and its size as they were last read.
	known *cache.LRUExpireCache
	// replaced has the machines that were replaced by a launch. Their Nodes have no annotation yet.
	replaced *cache.LRUExpireCache
}

const knownPool, knownSize = "pool", "size"

var _ Backend = (*Native)(nil)

// NewNative makes a pool of a NodeGroup, which is read by ReadGroup.
func NewNative(c *Cluster, name, namespace string, refresh time.Duration) *Native {
	n := &Native{name: name, cluster: c, refresh: refresh, namespace: namespace}
	n.known, n.replaced = cache.NewLRUExpireCache(2), cache.NewLRUExpireCache(mostReplaced)
	n.unread.Store(true)
	return n
}

// Unread reports whether the NodeGroup was not read yet.
func (n *Native) Unread() bool { return n.unread.Load() }

// ReadGroup finds the NodeGroup and its cloud, once the cluster was read.
func (n *Native) ReadGroup(ctx context.Context, clouds map[string]cloud.Provider) error {
	g, err := n.nodeGroup(ctx)
	if err != nil {
		return fmt.Errorf("--native: %w", err)
	}
	own := clouds[g.Spec.Cloud.Provider]
	if own == nil {
		return fmt.Errorf("--native: NodeGroup %s is in the cloud %q, which --cloud-config does not name", n.name, g.Spec.Cloud.Provider)
	}
	n.group, n.provider = g.Spec.Cloud.Group, own
	for other, one := range clouds {
		if other != g.Spec.Cloud.Provider {
			n.others = append(n.others, one)
		}
	}
	n.unread.Store(false)
	return nil
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
	if providerid.Elsewhere(identity, providerID) {
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
func (n *Native) Delete(ctx context.Context, m *api.Machine, o cloud.DeleteOptions) (cloud.Operation, error) {
	return cloud.Delete(ctx, n.provider, m.ID, o)
}

// KeepsSize implements Backend.
func (n *Native) KeepsSize() bool {
	_, keeps := n.provider.(cloud.SizeKeeper)
	return keeps
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
	n.known.Add(knownPool, pool, n.refresh-time.Since(at)-1)
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
	n.known.Add(knownSize, size, n.refresh-time.Since(at)-1)
	return size, nil
}

// CachedPool returns a pool that may be as old as refresh.
func (n *Native) CachedPool(ctx context.Context) (api.Pool, error) {
	if is, known := n.known.Get(knownPool); known {
		return is.(api.Pool), nil
	}
	return n.Pool(ctx)
}

// CachedSize returns a size that may be as old as refresh.
func (n *Native) CachedSize(ctx context.Context) (api.Size, error) {
	if is, known := n.known.Get(knownSize); known {
		return is.(api.Size), nil
	}
	return n.Size(ctx)
}

// SetDesiredSize implements Backend. To come to a smaller size machines have to be deleted, each by its own name.
func (n *Native) SetDesiredSize(ctx context.Context, want int) error {
	if err := n.settleLaunch(ctx); err != nil {
		return err
	}
	size, err := n.Size(ctx)
	switch {
	case err != nil || want == size.Desired:
		return err
	case want < size.Desired:
		return fmt.Errorf("NodeGroup %s: its cloud is making %d machines that are not there yet: they can be taken away when they are", n.name,
			size.Desired-size.Active)
	}
	return n.launch(ctx, want-size.Desired, "")
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
				return nil, Failuref(NotPossible, "machine %s has no node yet, on which that would be kept", id)
			}
			return m, nil
		}
	}
	return nil, Failuref(NotFound, "unrecognized machine: machine %s is not a pool member", id)
}

// SetMembershipStatus implements Backend. A machine that stops to count is replaced.
func (n *Native) SetMembershipStatus(ctx context.Context, s api.SetMembershipStatus) error {
	m, err := n.member(ctx, s.MachineID, false)
	if err == nil && !s.MembershipStatus.Evictable {
		err = n.canBeKept(ctx, m)
	}
	if err != nil {
		return err
	}
	raw, err := json.Marshal(s.MembershipStatus)
	if err != nil {
		return err
	}
	return n.change(ctx, m, m.Active() && !s.MembershipStatus.Active, membershipAnnotation, string(raw))
}

// Detach implements Backend. A machine that is detached without wanting fewer is replaced.
func (n *Native) Detach(ctx context.Context, r api.Removal) error {
	m, err := n.member(ctx, r.MachineID, false)
	switch {
	case err != nil:
		return err
	case !m.Evictable():
		return Failuref(NotPossible, "machine %s cannot be detached: its membershipStatus says that it is not evictable", r.MachineID)
	}
	if err := n.canBeKept(ctx, m); err != nil {
		return err
	}
	return n.change(ctx, m, !r.Decrement && m.Active(), detachedAnnotation, "true")
}

// Attach takes a machine in again that was detached, and which the desired size counts from then on.
func (n *Native) Attach(ctx context.Context, a api.Attachment) error {
	m, err := n.member(ctx, a.MachineID, true)
	if err != nil {
		return err
	}
	return n.change(ctx, m, false, detachedAnnotation, "")
}

// SetServiceState writes down what a client says of a machine's service.
func (n *Native) SetServiceState(ctx context.Context, s api.SetServiceState) error {
	m, err := n.member(ctx, s.MachineID, false)
	if err != nil {
		return err
	}
	return n.change(ctx, m, false, serviceAnnotation, string(s.ServiceState))
}

// canBeKept returns an error if a machine's retirement can no longer be cancelled.
func (n *Native) canBeKept(ctx context.Context, m *nativeMachine) error {
	retirements, err := n.cluster.unfinished(ctx)
	if err != nil {
		return err
	}
	return tooLate(m.ID, matching.FindRetirements([]matching.Member{{Machine: &m.Machine, Node: m.node}}, retirements, n)[m.ID])
}

// change annotates a machine's Node, and waits until the watch shows it. An empty value removes the annotation. With replace it launches
// another machine first: if that is refused, nothing changes. It launches nothing if the Node cannot be patched, and launches once
// if the patch fails afterwards.
func (n *Native) change(ctx context.Context, m *nativeMachine, replace bool, key, value string) error {
	if replace {
		if err := n.settleLaunch(ctx); err != nil {
			return err
		}
		if _, was := n.replaced.Get(m.ID); !was {
			if err := n.patch(ctx, m.node.Name, key, value, metav1.DryRunAll); err != nil {
				return err
			}
			if err := n.launch(ctx, 1, m.ID); err != nil {
				return err
			}
			n.replaced.Add(m.ID, true, replacedFor)
		}
	}
	if err := n.patch(ctx, m.node.Name, key, value); err != nil {
		return err
	}
	n.known.Remove(knownPool)
	n.known.Remove(knownSize)
	n.replaced.Remove(m.ID)
	_ = wait.PollUntilContextTimeout(ctx, watchEvery, watchPatience, true, func(context.Context) (bool, error) {
		if err := n.cluster.unread(); err != nil {
			return false, err
		}
		seen, err := n.cluster.nodes.Get(m.node.Name)
		return apierrors.IsNotFound(err) || err == nil && seen.Annotations[key] == value, nil
	})
	return nil // it is written; it will be seen
}

// patch writes on a node, or sees whether it could.
func (n *Native) patch(ctx context.Context, node, key, value string, dryRun ...string) error {
	var to any = value
	if value == "" {
		to = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: to}}})
	if err == nil {
		_, err = n.cluster.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{DryRun: dryRun})
	}
	if err != nil {
		return ClusterFailure("annotating node "+node, err)
	}
	return nil
}

// replacedFor is for how long it is believed that a request which is made again is still for the machine that was asked for in
// the place of another. Who asks later has given the first one up, and has set the size that he wants since.
const (
	replacedFor   = 10 * time.Minute
	mostReplaced  = 1000
	watchPatience = 5 * time.Second
	watchEvery    = 10 * time.Millisecond
	startedEvery  = time.Second // for how long it is believed that a pool is started
)

// isStarted is whether a pool was started when it was last read.
type isStarted struct {
	is   bool
	read time.Time
}

func (n *Native) stateName() string { return RecordName(n.name) + ".native" }

// IsStarted reads whether the pool is started. It is, unless its ConfigMap says otherwise. While the API server is away, the last answer
// counts, so that reads continue.
func (n *Native) IsStarted(ctx context.Context) (bool, error) {
	was := n.started.Load()
	if was != nil && time.Since(was.read) < startedEvery {
		return was.is, nil
	}
	object, err := n.cluster.Client.CoreV1().ConfigMaps(n.namespace).Get(ctx, n.stateName(), metav1.GetOptions{})
	now := isStarted{true, time.Now()}
	switch {
	case err == nil:
		now.is = object.Data["started"] != "false"
	case apierrors.IsNotFound(err):
	case was == nil:
		return false, ClusterFailure("reading whether the pool is started", err)
	default:
		now.is = was.is
	}
	n.started.Store(&now)
	return now.is, nil
}

// SetStarted writes down whether the pool is started.
func (n *Native) SetStarted(ctx context.Context, started bool) error {
	maps := n.cluster.Client.CoreV1().ConfigMaps(n.namespace)
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: n.stateName(), Labels: map[string]string{stateLabel: "native"}},
		Data:       map[string]string{"started": fmt.Sprint(started)},
	}
	_, err := maps.Update(ctx, object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, object, metav1.CreateOptions{})
	}
	if err != nil {
		return ClusterFailure("writing down whether the pool is started", err)
	}
	n.started.Store(&isStarted{started, time.Now()})
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

// nodeGroup reads the pool's NodeGroup.
func (n *Native) nodeGroup(ctx context.Context) (*v1alpha1.NodeGroup, error) {
	g := &v1alpha1.NodeGroup{}
	if err := n.cluster.get(ctx, client.ObjectKey{Name: n.name}, g); err != nil {
		return nil, fmt.Errorf("NodeGroup %s: %w", n.name, err)
	}
	return g, nil
}

// Config returns what the pool's NodeGroup says.
func (n *Native) Config(ctx context.Context) (*nativeConfig, error) {
	g, err := n.nodeGroup(ctx)
	if err != nil {
		return nil, err
	}
	return &nativeConfig{g.Name, g.Spec.Cloud.Provider, g.Spec.Cloud.Group, &g.Spec.Minimum, g.Spec.Maximum}, nil
}

// CheckConfig takes a configuration that says what is so. Another one belongs in the NodeGroup.
func (n *Native) CheckConfig(ctx context.Context, raw []byte) error {
	is, err := n.Config(ctx)
	if err != nil {
		return err
	}
	var want, now map[string]json.RawMessage
	if err := json.Unmarshal(raw, &want); err != nil || want == nil {
		return &api.BadRequest{ErrorMessage: api.ErrorMessage{Message: "illegal input: the configuration is no JSON object"}}
	}
	has, err := json.Marshal(is)
	if err == nil {
		err = json.Unmarshal(has, &now)
	}
	if err != nil {
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
