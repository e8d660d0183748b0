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

// These annotations of a Node store the membership, the service state and the detachment of its machine in a native
// pool.
const (
	membershipAnnotation = drainability.Membership
	serviceAnnotation    = "cloudpool.slipway.dev/service-state"
	detachedAnnotation   = drainability.Detached
	stateLabel           = "slipway.dev/cloudpool" // of the ConfigMap with the started state of the pool
)

// NativePool is the Backend of a pool without a cloudpool server: it manages a NodeGroup in any cloud. Its machines are
// the instances of the cloud group, except detached ones. Its desired size is the size of the cloud group minus the
// detached and inactive machines.
type NativePool struct {
	name           string // of the NodeGroup
	group          string // in the cloud
	provider       cloud.Provider
	otherProviders []cloud.Provider // the other configured providers
	cluster        *Cluster
	maxCacheAge    time.Duration
	// namespace contains the ConfigMap with the started state.
	namespace string
	// groupUnread is true until the NodeGroup was read. Until then group, provider and otherProviders are not set.
	groupUnread atomic.Bool

	started    atomic.Pointer[startedState]
	lostLaunch atomic.Pointer[lostLaunch]
	// cached contains the last read pool and its size.
	cached *cache.LRUExpireCache
	// replaced contains the IDs of machines that a launch has replaced and that are not annotated yet.
	replaced *cache.LRUExpireCache
}

const cachedPoolKey, cachedSizeKey = "pool", "size"

var _ Backend = (*NativePool)(nil)

// NewNativePool returns the Backend of a NodeGroup. ReadNodeGroup must be called before its use.
func NewNativePool(c *Cluster, name, namespace string, refresh time.Duration) *NativePool {
	n := &NativePool{name: name, cluster: c, maxCacheAge: refresh, namespace: namespace}
	n.cached, n.replaced = cache.NewLRUExpireCache(2), cache.NewLRUExpireCache(maxReplaced)
	n.groupUnread.Store(true)
	return n
}

// IsUnread reports whether the NodeGroup has not been read yet.
func (n *NativePool) IsUnread() bool { return n.groupUnread.Load() }

// ReadNodeGroup reads the NodeGroup and selects its cloud. Call it after the caches have synced. It returns an error if
// the cloud is not configured.
func (n *NativePool) ReadNodeGroup(ctx context.Context, clouds map[string]cloud.Provider) error {
	g, err := n.getNodeGroup(ctx)
	if err != nil {
		return fmt.Errorf("--native: %w", err)
	}
	own := clouds[g.Spec.Cloud.Provider]
	if own == nil {
		return fmt.Errorf("--native: NodeGroup %s: spec.cloud.provider is %q: want a provider that --cloud-config contains", n.name, g.Spec.Cloud.Provider)
	}
	n.group, n.provider = g.Spec.Cloud.Group, own
	for name, other := range clouds {
		if name != g.Spec.Cloud.Provider {
			n.otherProviders = append(n.otherProviders, other)
		}
	}
	n.groupUnread.Store(false)
	return nil
}

// Provider implements Backend.
func (n *NativePool) Provider() (cloud.Provider, string) { return n.provider, n.group }

// Identity implements Backend. The result is the machine's ID, which is its provider ID. It returns false for an ID
// that a cloudpool has made up, because no Node has such a provider ID.
func (n *NativePool) Identity(m *api.Machine) (id string, known bool) {
	return m.ID, !strings.HasPrefix(m.ID, provider.Name+"://")
}

// NodeIdentity implements Backend.
func (n *NativePool) NodeIdentity(providerID string) (string, error) {
	return n.provider.Normalize(providerID)
}

// IsOfOtherCloud implements Backend. It returns false if the group's cloud does not answer, because the provider ID may
// then belong to this cloud.
func (n *NativePool) IsOfOtherCloud(identity, providerID string) bool {
	if _, err := n.provider.Normalize(providerID); cloud.IsProviderUnavailable(err) {
		return false
	}
	if providerid.HasOtherScheme(identity, providerID) {
		return true
	}
	mine, _, _ := strings.Cut(identity, "://")
	theirs, _, found := strings.Cut(providerID, "://")
	return found && theirs != mine && slices.ContainsFunc(n.otherProviders, func(other cloud.Provider) bool {
		_, err := other.Normalize(providerID)
		return err == nil
	})
}

// Names implements Backend.
func (n *NativePool) Names(m *api.Machine) (name, computerName string) {
	var has nativeMetadata
	_ = json.Unmarshal(m.Metadata, &has) // this pool wrote it
	return has.Name, has.ComputerName
}

// HasRejectedMachines implements Backend. It returns true: an instance that the cloud failed to create exists until it
// is deleted.
func (n *NativePool) HasRejectedMachines() bool { return true }

// Delete implements Backend.
func (n *NativePool) Delete(ctx context.Context, m *api.Machine, o cloud.DeleteOptions) (cloud.Operation, error) {
	return cloud.Delete(ctx, n.provider, m.ID, o)
}

// KeepsSize implements Backend.
func (n *NativePool) KeepsSize() bool {
	_, keeps := n.provider.(cloud.SizePreservingDeleter)
	return keeps
}

// listMachines returns the machines of the cloud group with their Nodes, including detached machines.
func (n *NativePool) listMachines(ctx context.Context) ([]nativeMachine, error) {
	instances, err := n.provider.Instances(ctx, n.group)
	if err != nil {
		return nil, err
	}
	nodes, err := n.cluster.CachedNodes()
	if err != nil {
		return nil, err
	}
	byIdentity := map[string]*corev1.Node{}
	for _, node := range nodes {
		id, err := n.provider.Normalize(node.Spec.ProviderID)
		if cloud.IsProviderUnavailable(err) { // otherwise the machine's annotations would be ignored
			return nil, fmt.Errorf("node %s: %w", node.Name, err)
		}
		if err == nil {
			byIdentity[id] = node
		}
	}
	machines := make([]nativeMachine, len(instances))
	for i := range instances {
		machines[i] = n.toMachine(&instances[i], byIdentity[instances[i].ProviderID])
	}
	return machines, nil
}

// nativeMachine is a machine with the Node that stores its annotations.
type nativeMachine struct {
	api.Machine
	node     *corev1.Node
	detached bool
}

type nativeMetadata struct {
	Name         string `json:"name"`
	ComputerName string `json:"computerName"`
	Message      string `json:"message,omitempty"`
}

// providerDisplayNames maps provider names to the names that the cloudpool API uses.
var providerDisplayNames = map[string]string{"azure": "Azure", "openstack": "OpenStack"}

// toMachine converts an instance to a machine of the API.
func (n *NativePool) toMachine(i *cloud.Instance, node *corev1.Node) nativeMachine {
	m := nativeMachine{node: node, Machine: api.Machine{
		ID: i.ProviderID, State: toMachineState(i.State), Membership: &api.MembershipStatus{Active: true, Evictable: true},
		ServiceState: api.UnknownState, Provider: cmp.Or(providerDisplayNames[n.provider.Name()], n.provider.Name()), Region: i.Zone, Size: i.Type,
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
	if i.State == cloud.Failed { // a change of the instance failed, but it exists and runs pods
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
	if said := api.ServiceState(node.Annotations[serviceAnnotation]); said.IsKnown() {
		m.ServiceState = said
	}
	if text := node.Annotations[membershipAnnotation]; text != "" {
		var said api.MembershipStatus
		if json.Unmarshal([]byte(text), &said) != nil {
			said = api.MembershipStatus{Active: true} // an unreadable value protects the machine
		}
		m.Membership = &said
	}
	return m
}

// toMachineState converts an instance state to a machine state. It converts an unknown state to running.
func toMachineState(s cloud.State) api.MachineState {
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

// Pool implements Backend. It reads the pool from the cloud, not from the cache.
func (n *NativePool) Pool(ctx context.Context) (api.Pool, error) {
	at := time.Now().UTC()
	all, err := n.listMachines(ctx)
	if err != nil {
		return api.Pool{}, err
	}
	pool := api.Pool{Timestamp: at, Machines: []api.Machine{}}
	for i := range all {
		if !all[i].detached {
			pool.Machines = append(pool.Machines, all[i].Machine)
		}
	}
	n.cached.Add(cachedPoolKey, pool, n.maxCacheAge-time.Since(at)-1)
	return pool, nil
}

// Size implements Backend. It reads the size from the cloud, not from the cache.
func (n *NativePool) Size(ctx context.Context) (api.Size, error) {
	at := time.Now().UTC()
	group, err := n.provider.Group(ctx, n.group)
	if err != nil {
		return api.Size{}, err
	}
	all, err := n.listMachines(ctx)
	if err != nil {
		return api.Size{}, err
	}
	size := api.Size{Timestamp: at, Desired: group.Size}
	for i := range all {
		m := &all[i]
		switch {
		case m.State == api.Rejected: // the cloud counts it, but it will never run
			size.Desired--
		case m.State.HasLeftPool():
		case m.detached:
			size.Desired--
		case !m.IsActive():
			size.Desired--
			size.Allocated++
		default:
			size.Allocated++
			size.Active++
		}
	}
	size.Desired = max(0, size.Desired)
	n.cached.Add(cachedSizeKey, size, n.maxCacheAge-time.Since(at)-1)
	return size, nil
}

// CachedPool returns the cached pool if it was read at most maxCacheAge ago. Otherwise it reads the pool.
func (n *NativePool) CachedPool(ctx context.Context) (api.Pool, error) {
	if is, known := n.cached.Get(cachedPoolKey); known {
		return is.(api.Pool), nil
	}
	return n.Pool(ctx)
}

// CachedSize returns the cached size if it was read at most maxCacheAge ago. Otherwise it reads the size.
func (n *NativePool) CachedSize(ctx context.Context) (api.Size, error) {
	if is, known := n.cached.Get(cachedSizeKey); known {
		return is.(api.Size), nil
	}
	return n.Size(ctx)
}

// SetDesiredSize implements Backend. It refuses a smaller size, because machines must be deleted one by one.
func (n *NativePool) SetDesiredSize(ctx context.Context, want int) error {
	if err := n.resolveLostLaunch(ctx); err != nil {
		return err
	}
	size, err := n.Size(ctx)
	switch {
	case err != nil || want == size.Desired:
		return err
	case want < size.Desired:
		return fmt.Errorf("NodeGroup %s: its cloud is still creating %d machines: they can be removed once they exist", n.name,
			size.Desired-size.Active)
	}
	return n.launchInstances(ctx, want-size.Desired, "")
}

// findMemberWithNode returns the machine with this ID, if it has a Node. With detached true it finds only detached
// machines, otherwise only members of the pool.
func (n *NativePool) findMemberWithNode(ctx context.Context, id string, detached bool) (*nativeMachine, error) {
	all, err := n.listMachines(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if m := &all[i]; m.ID == id && m.detached == detached && !m.State.HasLeftPool() {
			if m.node == nil {
				return nil, NewFailuref(NotPossible, "machine %s has no node yet to store the change on", id)
			}
			return m, nil
		}
	}
	return nil, NewFailuref(NotFound, "unrecognized machine: machine %s is not a pool member", id)
}

// SetMembershipStatus implements Backend. It launches a replacement for a machine that becomes inactive.
func (n *NativePool) SetMembershipStatus(ctx context.Context, s api.SetMembershipStatus) error {
	m, err := n.findMemberWithNode(ctx, s.MachineID, false)
	if err == nil && !s.MembershipStatus.Evictable {
		err = n.checkRetirementCancellable(ctx, m)
	}
	if err != nil {
		return err
	}
	raw, err := json.Marshal(s.MembershipStatus)
	if err != nil {
		return err
	}
	return n.annotateMachineNode(ctx, m, m.IsActive() && !s.MembershipStatus.Active, membershipAnnotation, string(raw))
}

// Detach implements Backend. It launches a replacement unless the request decrements the desired size.
func (n *NativePool) Detach(ctx context.Context, r api.Removal) error {
	m, err := n.findMemberWithNode(ctx, r.MachineID, false)
	switch {
	case err != nil:
		return err
	case !m.IsEvictable():
		return NewFailuref(NotPossible, "machine %s cannot be detached: its membershipStatus is not evictable", r.MachineID)
	}
	if err := n.checkRetirementCancellable(ctx, m); err != nil {
		return err
	}
	return n.annotateMachineNode(ctx, m, !r.Decrement && m.IsActive(), detachedAnnotation, "true")
}

// Attach makes a detached machine a member again. The desired size then includes it.
func (n *NativePool) Attach(ctx context.Context, a api.Attachment) error {
	m, err := n.findMemberWithNode(ctx, a.MachineID, true)
	if err != nil {
		return err
	}
	return n.annotateMachineNode(ctx, m, false, detachedAnnotation, "")
}

// SetServiceState stores the service state that a client reports for a machine.
func (n *NativePool) SetServiceState(ctx context.Context, s api.SetServiceState) error {
	m, err := n.findMemberWithNode(ctx, s.MachineID, false)
	if err != nil {
		return err
	}
	return n.annotateMachineNode(ctx, m, false, serviceAnnotation, string(s.ServiceState))
}

// checkRetirementCancellable returns an error if the machine has a retirement that can no longer be cancelled.
func (n *NativePool) checkRetirementCancellable(ctx context.Context, m *nativeMachine) error {
	retirements, err := n.cluster.listUnfinishedRetirements(ctx)
	if err != nil {
		return err
	}
	return checkNotDrained(m.ID, matching.MapRetirementsByMachine([]matching.Member{{Machine: &m.Machine, Node: m.node}}, retirements, n)[m.ID])
}

// annotateMachineNode sets an annotation on a machine's Node, and waits until the watch delivers the change. An empty
// value removes the annotation. If replace is true, it first launches another machine. If that launch or a dry run of
// the patch fails, nothing changes. If only the patch itself fails, a repeated call does not launch another machine.
func (n *NativePool) annotateMachineNode(ctx context.Context, m *nativeMachine, launchReplacement bool, key, value string) error {
	if launchReplacement {
		if err := n.resolveLostLaunch(ctx); err != nil {
			return err
		}
		if _, was := n.replaced.Get(m.ID); !was {
			if err := n.patchNodeAnnotation(ctx, m.node.Name, key, value, metav1.DryRunAll); err != nil {
				return err
			}
			if err := n.launchInstances(ctx, 1, m.ID); err != nil {
				return err
			}
			n.replaced.Add(m.ID, true, replacedTTL)
		}
	}
	if err := n.patchNodeAnnotation(ctx, m.node.Name, key, value); err != nil {
		return err
	}
	n.cached.Remove(cachedPoolKey)
	n.cached.Remove(cachedSizeKey)
	n.replaced.Remove(m.ID)
	_ = wait.PollUntilContextTimeout(ctx, watchPollInterval, watchTimeout, true, func(context.Context) (bool, error) {
		if err := n.cluster.checkSynced(); err != nil {
			return false, err
		}
		seen, err := n.cluster.nodes.Get(m.node.Name)
		return apierrors.IsNotFound(err) || err == nil && seen.Annotations[key] == value, nil
	})
	return nil // the write succeeded even if the watch is late
}

// patchNodeAnnotation sets an annotation of a Node, or removes it if value is empty.
func (n *NativePool) patchNodeAnnotation(ctx context.Context, node, key, value string, dryRun ...string) error {
	var to any = value
	if value == "" {
		to = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: to}}})
	if err == nil {
		_, err = n.cluster.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{DryRun: dryRun})
	}
	if err != nil {
		return NewClusterFailure("annotating node "+node, err)
	}
	return nil
}

// replacedTTL is how long a repeated request for the same machine does not launch another replacement. After that time,
// a request launches a new one: its client has then stopped waiting for the first request and has set the desired size
// itself.
const (
	replacedTTL       = 10 * time.Minute
	maxReplaced       = 1000
	watchTimeout      = 5 * time.Second
	watchPollInterval = 10 * time.Millisecond
	startedTTL        = time.Second // how long a read started state is valid
)

// startedState says whether a pool is started, as of its last read.
type startedState struct {
	started bool
	readAt  time.Time
}

func (n *NativePool) stateConfigMapName() string { return PoolObjectName(n.name) + ".native" }

// IsStarted reports whether the pool is started. It is unless the pool's ConfigMap says otherwise. While the API server
// is unavailable, IsStarted returns the last known state, so that clients can still read the pool.
func (n *NativePool) IsStarted(ctx context.Context) (started bool, err error) {
	was := n.started.Load()
	if was != nil && time.Since(was.readAt) < startedTTL {
		return was.started, nil
	}
	object, err := n.cluster.Client.CoreV1().ConfigMaps(n.namespace).Get(ctx, n.stateConfigMapName(), metav1.GetOptions{})
	now := startedState{true, time.Now()}
	switch {
	case err == nil:
		now.started = object.Data["started"] != "false"
	case apierrors.IsNotFound(err):
	case was == nil:
		return false, NewClusterFailure("reading whether the pool is started", err)
	default:
		now.started = was.started
	}
	n.started.Store(&now)
	return now.started, nil
}

// SetStarted stores whether the pool is started.
func (n *NativePool) SetStarted(ctx context.Context, started bool) error {
	maps := n.cluster.Client.CoreV1().ConfigMaps(n.namespace)
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: n.stateConfigMapName(), Labels: map[string]string{stateLabel: "native"}},
		Data:       map[string]string{"started": fmt.Sprint(started)},
	}
	_, err := maps.Update(ctx, object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, object, metav1.CreateOptions{})
	}
	if err != nil {
		return NewClusterFailure("storing whether the pool is started", err)
	}
	n.started.Store(&startedState{started, time.Now()})
	return nil
}

// nativeConfig is the configuration of a native pool in the API: its NodeGroup, and the NodeGroup's cloud and size
// limits.
type nativeConfig struct {
	NodeGroup string `json:"nodeGroup"`
	Provider  string `json:"provider"`
	Group     string `json:"group"`
	Minimum   *int32 `json:"minimum,omitempty"`
	Maximum   *int32 `json:"maximum,omitempty"`
}

func (n *NativePool) getNodeGroup(ctx context.Context) (*v1alpha1.NodeGroup, error) {
	g := &v1alpha1.NodeGroup{}
	if err := n.cluster.getCached(ctx, client.ObjectKey{Name: n.name}, g); err != nil {
		return nil, fmt.Errorf("NodeGroup %s: %w", n.name, err)
	}
	return g, nil
}

// Config returns the pool's configuration, as its NodeGroup has it.
func (n *NativePool) Config(ctx context.Context) (*nativeConfig, error) {
	g, err := n.getNodeGroup(ctx)
	if err != nil {
		return nil, err
	}
	return &nativeConfig{g.Name, g.Spec.Cloud.Provider, g.Spec.Cloud.Group, &g.Spec.MinSize, g.Spec.MaxSize}, nil
}

// CheckConfigUnchanged returns an error unless raw equals the current configuration. The configuration can be changed
// only in the NodeGroup.
func (n *NativePool) CheckConfigUnchanged(ctx context.Context, raw []byte) error {
	is, err := n.Config(ctx)
	if err != nil {
		return err
	}
	var want, now map[string]json.RawMessage
	if err := json.Unmarshal(raw, &want); err != nil || want == nil {
		return &api.BadRequestError{ErrorMessage: api.ErrorMessage{Message: "illegal input: the configuration is not a JSON object"}}
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
			return &api.BadRequestError{ErrorMessage: api.ErrorMessage{
				Message: "illegal input: " + key + " cannot be changed here",
				Detail:  fmt.Sprintf("%.100s: want %s, or change the NodeGroup %s", value, now[key], n.name),
			}}
		}
	}
	return nil
}
