package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/semaphore"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// fakeCluster is an API server for agents, their nodes and their Leases, in a synctest bubble.
type fakeCluster struct {
	mu      sync.Mutex
	version int
	leases  map[string]kubeapi.Lease
	// drainCounts counts the drains that watch a node's pods, by node.
	drainCounts map[string]int
}

func newFakeCluster() *fakeCluster {
	return &fakeCluster{leases: map[string]kubeapi.Lease{}, drainCounts: map[string]int{}}
}

// fakeLeases serves the Lease requests of one node.
type fakeLeases struct{ node *testNode }

func (l fakeLeases) ListLeases(ctx context.Context, _, _ string) (all []kubeapi.Lease, err error) {
	err = l.node.serve(ctx, "list leases", func() error {
		c := l.node.cluster
		c.mu.Lock()
		defer c.mu.Unlock()
		all = slices.Collect(maps.Values(c.leases))
		return nil
	})
	return all, err
}

func (l fakeLeases) CreateLease(ctx context.Context, lease kubeapi.Lease) (put *kubeapi.Lease, err error) {
	err = l.node.serve(ctx, "create leases", func() (err error) {
		put, err = l.node.cluster.putLease(lease, "AlreadyExists")
		return err
	})
	return put, err
}

func (l fakeLeases) UpdateLease(ctx context.Context, lease kubeapi.Lease) (put *kubeapi.Lease, err error) {
	err = l.node.serve(ctx, "update leases", func() (err error) {
		put, err = l.node.cluster.putLease(lease, "Conflict")
		return err
	})
	return put, err
}

func (c *fakeCluster) putLease(l kubeapi.Lease, otherwise string) (*kubeapi.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leases[l.Name].ResourceVersion != l.ResourceVersion {
		return nil, &kubeapi.StatusError{Code: 409, Reason: otherwise}
	}
	c.version++
	l.ResourceVersion = fmt.Sprint(c.version)
	c.leases[l.Name] = l
	return &l, nil
}

// testNode is a node with one pod, and the agent on it.
type testNode struct {
	API // panics on methods that no test needs

	cluster       *fakeCluster
	name          string
	podStopTime   time.Duration // how long the pod takes to stop
	evictionDelay time.Duration // delay of an eviction's response
	faults        faults

	mu                  sync.Mutex
	node                kubeapi.Node
	version             int
	uncordonedAt        []time.Time // when the node became schedulable again
	doubleClaims        int         // how often the node had more than one record
	nodeHandler         func(kubeapi.Node)
	pod                 *kubeapi.Pod
	podHandlers         []func([]kubeapi.Pod) // watchers of its pods
	denyingPDB          string                // name of the PodDisruptionBudget that denies evictions; empty is none
	conditionWriteCount int                   // how often conditions were written
	evictedAt           time.Time             // when the eviction was requested
	eventReasons        []string
	eventNodeUIDs       []string // UIDs of the Nodes that the Events are about
	drainedPeerNames    []string // other nodes that ListNodes returns

	source    *fakeSource
	agent     *Agent
	stopAgent func()
	agentDone chan struct{}
}

func newTestNode(c *fakeCluster, name string, stops time.Duration) *testNode {
	m := &testNode{cluster: c, name: name, podStopTime: stops, source: &fakeSource{name: "azure", changed: make(chan struct{}, 1)}}
	m.node.Name, m.node.UID, m.node.ResourceVersion = name, "uid-"+name, "0"
	m.replacePod()
	return m
}

// withTestNode runs a test in virtual time on a node with a pod that stops within stops. The agent ends with the
// test.
func withTestNode(t *testing.T, stops time.Duration, test func(t *testing.T, m *testNode)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newTestNode(newFakeCluster(), "n", stops)
		defer m.crashAgent()
		test(t, m)
	})
}

// testNodeTest returns a test for t.Run that runs in withTestNode.
func testNodeTest(stops time.Duration, test func(t *testing.T, m *testNode)) func(t *testing.T) {
	return func(t *testing.T) { withTestNode(t, stops, test) }
}

// replacePod gives the node a new pod.
func (m *testNode) replacePod() {
	controls := true
	grace := int64(600)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pod = &kubeapi.Pod{
		ObjectMeta: kubeapi.ObjectMeta{
			Name: "web", Namespace: "shop", UID: fmt.Sprint("pod-", m.name, time.Now().UnixNano()),
			OwnerReferences: []kubeapi.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: &controls}},
		},
		Spec: kubeapi.PodSpec{NodeName: m.name, TerminationGracePeriodSeconds: &grace},
	}
	m.evictedAt = time.Time{}
}

// serve serves a request with the configured faults.
func (m *testNode) serve(ctx context.Context, what string, do func() error) error {
	return m.faults.serve(ctx, what, do)
}

func (m *testNode) GetNode(ctx context.Context, _ string) (n *kubeapi.Node, err error) {
	err = m.serve(ctx, "get nodes", func() error {
		got := m.currentNode()
		n = &got
		return nil
	})
	return n, err
}

func (m *testNode) copyNode() *kubeapi.Node {
	n := m.node
	n.Annotations, n.Labels = maps.Clone(n.Annotations), maps.Clone(n.Labels)
	n.Status.Conditions = slices.Clone(n.Status.Conditions)
	return &n
}

// ListNodes returns the drained peers, for any selector.
func (m *testNode) ListNodes(ctx context.Context, _ string) (all []kubeapi.Node, err error) {
	err = m.serve(ctx, "list nodes", func() error {
		all = m.drainedPeers()
		return nil
	})
	return all, err
}

func (m *testNode) drainedPeers() []kubeapi.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []kubeapi.Node
	for _, name := range m.drainedPeerNames {
		var n kubeapi.Node
		n.Name, n.Spec.ProviderID = name, name
		all = append(all, n)
	}
	return all
}

// addDrainedPeer adds a drained node to the result of ListNodes.
func (m *testNode) addDrainedPeer(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drainedPeerNames = append(m.drainedPeerNames, name)
}

// PatchNode applies the annotations, labels and unschedulable of a JSON merge patch.
func (m *testNode) PatchNode(ctx context.Context, _ string, patch []byte) (n *kubeapi.Node, err error) {
	err = m.serve(ctx, "patch nodes", func() (err error) {
		n, err = m.applyPatch(patch)
		return err
	})
	return n, err
}

func (m *testNode) applyPatch(applyPatch []byte) (*kubeapi.Node, error) {
	var p struct {
		Metadata struct {
			Annotations, Labels map[string]*string
			ResourceVersion     string
		}
		Spec map[string]any
	}
	if err := json.Unmarshal(applyPatch, &p); err != nil {
		return nil, err
	}
	merge := func(into *map[string]string, changes map[string]*string) {
		for key, value := range changes {
			if value == nil {
				delete(*into, key)
				continue
			}
			if *into == nil {
				*into = map[string]string{}
			}
			(*into)[key] = *value
		}
	}
	return m.updateNode(p.Metadata.ResourceVersion, func(n *kubeapi.Node) {
		merge(&n.Annotations, p.Metadata.Annotations)
		merge(&n.Labels, p.Metadata.Labels)
		if v, there := p.Spec["unschedulable"]; there {
			n.Spec.Unschedulable = v == true
		}
	})
}

// PatchNodeStatus applies the conditions of a strategic merge patch.
func (m *testNode) PatchNodeStatus(ctx context.Context, _ string, patch []byte) (n *kubeapi.Node, err error) {
	err = m.serve(ctx, "patch nodes/status", func() (err error) {
		n, err = m.applyStatusPatch(patch)
		return err
	})
	return n, err
}

func (m *testNode) applyStatusPatch(patch []byte) (*kubeapi.Node, error) {
	var p struct {
		Metadata struct{ ResourceVersion string }
		Status   struct {
			Conditions []struct {
				kubeapi.Condition

				Patch string `json:"$patch"`
			}
		}
	}
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.conditionWriteCount++
	m.mu.Unlock()
	return m.updateNode(p.Metadata.ResourceVersion, func(n *kubeapi.Node) {
		for _, c := range p.Status.Conditions {
			n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(o kubeapi.Condition) bool { return o.Type == c.Type })
			if c.Patch != "delete" {
				n.Status.Conditions = append(n.Status.Conditions, c.Condition)
			}
		}
	})
}

// updateNode changes the node and notifies its watchers. If version is not empty, it fails unless the node has that
// version.
func (m *testNode) updateNode(version string, how func(*kubeapi.Node)) (*kubeapi.Node, error) {
	m.mu.Lock()
	next := m.copyNode()
	if version != "" && version != next.ResourceVersion {
		m.mu.Unlock()
		return nil, &kubeapi.StatusError{Code: 409, Reason: "Conflict"}
	}
	how(next)
	if len(next.Annotations) > 1 {
		m.doubleClaims++
	}
	if m.node.Spec.Unschedulable && !next.Spec.Unschedulable {
		m.uncordonedAt = append(m.uncordonedAt, time.Now())
	}
	m.version++
	next.ResourceVersion = fmt.Sprint(m.version)
	m.node = *next
	watch := m.nodeHandler
	m.mu.Unlock()
	if watch != nil {
		go watch(*next)
	}
	return next, nil
}

func (m *testNode) WatchNode(ctx context.Context, _, since string, h kubeapi.Handler[kubeapi.Node]) error {
	m.mu.Lock()
	node := *m.copyNode()
	m.nodeHandler = func(n kubeapi.Node) {
		if ctx.Err() == nil {
			h.Changed(n)
		}
	}
	m.mu.Unlock()
	if since == "" {
		h.Replaced([]kubeapi.Node{node})
	}
	<-ctx.Done()
	return ctx.Err()
}

func (m *testNode) WatchPodsOnNode(ctx context.Context, _ string, h kubeapi.Handler[kubeapi.Pod]) error {
	m.cluster.mu.Lock()
	m.cluster.drainCounts[m.name]++
	m.cluster.mu.Unlock()
	defer func() {
		m.cluster.mu.Lock()
		m.cluster.drainCounts[m.name]--
		m.cluster.mu.Unlock()
	}()
	m.mu.Lock()
	m.podHandlers = append(m.podHandlers, func(all []kubeapi.Pod) {
		if ctx.Err() == nil {
			h.Replaced(all)
		}
	})
	all := m.currentPods()
	m.mu.Unlock()
	h.Replaced(all)
	<-ctx.Done()
	return ctx.Err()
}

// notifyPodHandlers sends the current pods to the watchers.
func (m *testNode) notifyPodHandlers() {
	m.mu.Lock()
	followers, all := slices.Clone(m.podHandlers), m.currentPods()
	m.mu.Unlock()
	for _, tell := range followers {
		tell(all)
	}
}

func (m *testNode) ListPodsOnNode(ctx context.Context, _ string) (all []kubeapi.Pod, err error) {
	err = m.serve(ctx, "list pods", func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		all = m.currentPods()
		return nil
	})
	return all, err
}

func (m *testNode) currentPods() []kubeapi.Pod {
	if m.pod == nil {
		return nil
	}
	return []kubeapi.Pod{*m.pod}
}

func (m *testNode) EvictPod(ctx context.Context, r kubeapi.PodRemoval) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(m.evictionDelay):
	}
	return m.serve(ctx, "create pods/eviction", func() error { return m.evictPod(r) })
}

func (m *testNode) evictPod(r kubeapi.PodRemoval) error {
	m.mu.Lock()
	budget := m.denyingPDB
	m.mu.Unlock()
	if budget != "" {
		return &kubeapi.StatusError{Code: 429, Reason: "TooManyRequests", Causes: []kubeapi.Cause{{
			Reason: "DisruptionBudget", Message: "The disruption budget " + budget + " needs 1 healthy pods and has 1 currently",
		}}}
	}
	return m.removePod(r.UID)
}

// denyEvictions makes the named PodDisruptionBudget deny evictions; an empty name allows them.
func (m *testNode) denyEvictions(by string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.denyingPDB = by
}

// conditionWrites returns how often conditions were written.
func (m *testNode) conditionWrites() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conditionWriteCount
}

func (m *testNode) DeletePod(ctx context.Context, r kubeapi.PodRemoval) error {
	return m.serve(ctx, "delete pods", func() error { return m.removePod(r.UID) })
}

func (m *testNode) SetDisruptionTarget(context.Context, kubeapi.PodDisruption) error { return nil }

// removePod stops the pod within its stop time.
func (m *testNode) removePod(uid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pod == nil || m.pod.UID != uid {
		return &kubeapi.StatusError{Code: 404, Reason: "NotFound"}
	}
	if !m.evictedAt.IsZero() {
		return nil
	}
	m.evictedAt = time.Now()
	time.AfterFunc(m.podStopTime, func() {
		m.mu.Lock()
		m.pod = nil
		m.mu.Unlock()
		m.notifyPodHandlers()
	})
	return nil
}

func (m *testNode) WatchPodDisruptionBudgets(ctx context.Context, _ string, h kubeapi.Handler[kubeapi.PodDisruptionBudget]) error {
	h.Replaced(nil)
	<-ctx.Done()
	return ctx.Err()
}

func (m *testNode) GetPodGroup(context.Context, string, string) (*kubeapi.PodGroup, error) {
	return nil, fmt.Errorf("podgroups are not served")
}

func (m *testNode) CreateEvent(ctx context.Context, e kubeapi.Event) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Millisecond): // every request takes some time
	}
	return m.serve(ctx, "create events", func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.eventReasons, m.eventNodeUIDs = append(m.eventReasons, e.Reason), append(m.eventNodeUIDs, e.InvolvedObject.UID)
		return nil
	})
}

// hasEvent reports whether there was an Event with the reason.
func (m *testNode) hasEvent(reason string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.eventReasons, reason)
}

// isEmpty reports that the pod has left.
func (m *testNode) isEmpty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pod == nil
}

// evictionTime returns when the eviction was requested; zero if it was not.
func (m *testNode) evictionTime() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.evictedAt
}

func (m *testNode) currentNode() kubeapi.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *m.copyNode()
}

// startAgent starts an agent on the node; change may change its options. A limit of 0 is no drain slots.
func (m *testNode) startAgent(t *testing.T, limit int, change func(*Options)) {
	o := Options{
		Node: m.name, ResourceName: m.name, API: m, Sources: []Source{m.source}, Policy: DefaultNoticePolicy(), DeadlineMargin: DefaultDeadlineMargin,
		Metrics: NewMetrics(observe.NewRegistry()), Heartbeat: observe.NewHeartbeat("agent", time.Hour),
		Log: slog.New(slog.DiscardHandler),
	}
	if limit > 0 {
		k, err := semaphore.NewHolder(semaphore.Options{API: fakeLeases{m}, Namespace: "slipway", Identity: m.name, Limit: limit})
		must.NoError(t, err)
		o.DrainSlots = k
	}
	if change != nil {
		change(&o)
	}
	m.agent = New(o)
	ctx, kill := context.WithCancel(t.Context())
	m.stopAgent, m.agentDone = kill, make(chan struct{})
	m.source.notifyChange()
	agent, gone := m.agent, m.agentDone
	go func() {
		defer close(gone)
		_ = agent.Run(ctx)
	}()
}

func (m *testNode) crashAgent() {
	if m.stopAgent != nil {
		m.stopAgent()
		<-m.agentDone
	}
}

// fakeSource is a Source with configurable notices.
type fakeSource struct {
	name    string
	changed chan struct{}

	mu         sync.Mutex
	notices    []notice.Notice
	problems   []notice.Problem // unreadable entries
	startDelay time.Duration    // how long it is unreadable after a start
	isPartial  bool             // in that time it emits incomplete snapshots without notices
	clockAhead time.Duration    // how far the node's clock is ahead
}

func (s *fakeSource) Name() string        { return s.name }
func (s *fakeSource) LastRead() time.Time { return time.Now() }

func (s *fakeSource) notifyChange() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *fakeSource) setNotices(notices ...notice.Notice) {
	s.mu.Lock()
	s.notices = slices.Clone(notices)
	s.mu.Unlock()
	s.notifyChange()
}

func (s *fakeSource) listNotices() []notice.Notice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.notices)
}

func (s *fakeSource) snapshot() notice.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot := notice.Snapshot{At: time.Now().Add(s.clockAhead), Notices: slices.Clone(s.notices), Unreadable: slices.Clone(s.problems)}
	for i := range snapshot.Notices {
		snapshot.Notices[i].ClockAhead = s.clockAhead
	}
	return snapshot
}

// setProblems sets the unreadable entries.
func (s *fakeSource) setProblems(problems ...notice.Problem) {
	s.mu.Lock()
	s.problems = problems
	s.mu.Unlock()
	s.notifyChange()
}

// setClockAhead sets how far the node's clock is ahead.
func (s *fakeSource) setClockAhead(ahead time.Duration) {
	s.mu.Lock()
	s.clockAhead = ahead
	s.mu.Unlock()
	s.notifyChange()
}

func (s *fakeSource) Run(ctx context.Context, emit func(notice.Snapshot)) {
	s.mu.Lock()
	silent, isPartial := s.startDelay, s.isPartial
	s.mu.Unlock()
	if silent > 0 && isPartial {
		emit(notice.Snapshot{At: time.Now(), Incomplete: true})
	}
	select {
	case <-ctx.Done():
	case <-time.After(silent):
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			emit(s.snapshot())
		}
	}
}

// newNotice returns a notice that is due after the given time.
func newNotice(kind notice.Type, id string, in time.Duration) notice.Notice {
	n := notice.Notice{ID: id, Source: "azure", Type: kind, Status: notice.Scheduled, Duration: -1}
	if kind == notice.Freeze {
		n.Duration = time.Minute
	}
	if kind == notice.Condition {
		n.Source = "condition"
		return n
	}
	n.NotBefore = time.Now().Add(in)
	return n
}
