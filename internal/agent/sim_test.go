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
	"github.com/slipway-dev/slipway/internal/slots"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// cluster is an API server for agents, their nodes and their Leases, in a bubble of synctest.
type cluster struct {
	mu      sync.Mutex
	version int
	leases  map[string]kubeapi.Lease
	// draining counts, by node, the drains that follow its pods.
	draining map[string]int
}

func newCluster() *cluster {
	return &cluster{leases: map[string]kubeapi.Lease{}, draining: map[string]int{}}
}

// leases are the cluster's, as one machine's requests reach them.
type leases struct{ m *machine }

func (l leases) ListLeases(ctx context.Context, _, _ string) (all []kubeapi.Lease, err error) {
	err = l.m.serve(ctx, "list leases", func() error {
		c := l.m.cluster
		c.mu.Lock()
		defer c.mu.Unlock()
		all = slices.Collect(maps.Values(c.leases))
		return nil
	})
	return all, err
}

func (l leases) CreateLease(ctx context.Context, lease kubeapi.Lease) (put *kubeapi.Lease, err error) {
	err = l.m.serve(ctx, "create leases", func() (err error) {
		put, err = l.m.cluster.put(lease, "AlreadyExists")
		return err
	})
	return put, err
}

func (l leases) UpdateLease(ctx context.Context, lease kubeapi.Lease) (put *kubeapi.Lease, err error) {
	err = l.m.serve(ctx, "update leases", func() (err error) {
		put, err = l.m.cluster.put(lease, "Conflict")
		return err
	})
	return put, err
}

func (c *cluster) put(l kubeapi.Lease, otherwise string) (*kubeapi.Lease, error) {
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

// machine is a node with one pod, and the agent on it.
type machine struct {
	API // what is not needed is not there

	cluster *cluster
	name    string
	stops   time.Duration // how long the pod takes to stop
	answers time.Duration // how long a request for the pod takes to be answered
	faults  faults

	mu      sync.Mutex
	node    kubeapi.Node
	changes int
	opened  []time.Time // when it began to take pods again
	claims  int         // how often it was seen with more than one record
	watch   func(kubeapi.Node)
	pod     *kubeapi.Pod
	pods    []func([]kubeapi.Pod) // of those who follow them
	budget  string                // of the PodDisruptionBudget that denies evictions; empty is none
	writes  int                   // how often conditions were written
	evicted time.Time             // when the pod was last asked to leave
	events  []string              // reasons
	about   []string              // the UIDs of the Nodes that these are about
	peers   []string              // other machines that are said to be drained

	source *teller
	agent  *Agent
	kill   func()
	gone   chan struct{}
}

func newMachine(c *cluster, name string, stops time.Duration) *machine {
	m := &machine{cluster: c, name: name, stops: stops, source: &teller{name: "azure", news: make(chan struct{}, 1)}}
	m.node.Name, m.node.UID, m.node.ResourceVersion = name, "uid-"+name, "0"
	m.replace()
	return m
}

// onMachine runs a test in virtual time on a machine with a pod that stops within stops. Its agent ends with the test.
func onMachine(t *testing.T, stops time.Duration, test func(t *testing.T, m *machine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newCluster(), "n", stops)
		defer m.crash()
		test(t, m)
	})
}

// machineTest returns a test as onMachine runs it, for t.Run.
func machineTest(stops time.Duration, test func(t *testing.T, m *machine)) func(t *testing.T) {
	return func(t *testing.T) { onMachine(t, stops, test) }
}

// replace gives the machine a new pod.
func (m *machine) replace() {
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
	m.evicted = time.Time{}
}

// serve answers a request as the faults have it.
func (m *machine) serve(ctx context.Context, what string, do func() error) error {
	return m.faults.serve(ctx, what, do)
}

func (m *machine) GetNode(ctx context.Context, _ string) (n *kubeapi.Node, err error) {
	err = m.serve(ctx, "get nodes", func() error {
		got := m.see()
		n = &got
		return nil
	})
	return n, err
}

func (m *machine) copied() *kubeapi.Node {
	n := m.node
	n.Annotations, n.Labels = maps.Clone(n.Annotations), maps.Clone(n.Labels)
	n.Status.Conditions = slices.Clone(n.Status.Conditions)
	return &n
}

// ListNodes finds the peers, whatever it is asked for.
func (m *machine) ListNodes(ctx context.Context, _ string) (all []kubeapi.Node, err error) {
	err = m.serve(ctx, "list nodes", func() error {
		all = m.drainedPeers()
		return nil
	})
	return all, err
}

func (m *machine) drainedPeers() []kubeapi.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []kubeapi.Node
	for _, name := range m.peers {
		var n kubeapi.Node
		n.Name, n.Spec.ProviderID = name, name
		all = append(all, n)
	}
	return all
}

// peerDrained has another machine be drained.
func (m *machine) peerDrained(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers = append(m.peers, name)
}

// PatchNode applies what a JSON merge patch says of annotations, labels and unschedulable.
func (m *machine) PatchNode(ctx context.Context, _ string, patch []byte) (n *kubeapi.Node, err error) {
	err = m.serve(ctx, "patch nodes", func() (err error) {
		n, err = m.patch(patch)
		return err
	})
	return n, err
}

func (m *machine) patch(patch []byte) (*kubeapi.Node, error) {
	var p struct {
		Metadata struct {
			Annotations, Labels map[string]*string
			ResourceVersion     string
		}
		Spec map[string]any
	}
	if err := json.Unmarshal(patch, &p); err != nil {
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
	return m.change(p.Metadata.ResourceVersion, func(n *kubeapi.Node) {
		merge(&n.Annotations, p.Metadata.Annotations)
		merge(&n.Labels, p.Metadata.Labels)
		if v, there := p.Spec["unschedulable"]; there {
			n.Spec.Unschedulable = v == true
		}
	})
}

// PatchNodeStatus applies what a strategic merge patch says of conditions.
func (m *machine) PatchNodeStatus(ctx context.Context, _ string, patch []byte) (n *kubeapi.Node, err error) {
	err = m.serve(ctx, "patch nodes/status", func() (err error) {
		n, err = m.patchStatus(patch)
		return err
	})
	return n, err
}

func (m *machine) patchStatus(patch []byte) (*kubeapi.Node, error) {
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
	m.writes++
	m.mu.Unlock()
	return m.change(p.Metadata.ResourceVersion, func(n *kubeapi.Node) {
		for _, c := range p.Status.Conditions {
			n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(o kubeapi.Condition) bool { return o.Type == c.Type })
			if c.Patch != "delete" {
				n.Status.Conditions = append(n.Status.Conditions, c.Condition)
			}
		}
	})
}

// change changes the node if it is of that version, or of any when that is empty, and tells who watches it.
func (m *machine) change(version string, how func(*kubeapi.Node)) (*kubeapi.Node, error) {
	m.mu.Lock()
	next := m.copied()
	if version != "" && version != next.ResourceVersion {
		m.mu.Unlock()
		return nil, &kubeapi.StatusError{Code: 409, Reason: "Conflict"}
	}
	how(next)
	if len(next.Annotations) > 1 {
		m.claims++
	}
	if m.node.Spec.Unschedulable && !next.Spec.Unschedulable {
		m.opened = append(m.opened, time.Now())
	}
	m.changes++
	next.ResourceVersion = fmt.Sprint(m.changes)
	m.node = *next
	watch := m.watch
	m.mu.Unlock()
	if watch != nil {
		go watch(*next)
	}
	return next, nil
}

func (m *machine) FollowNode(ctx context.Context, _, since string, h kubeapi.Handler[kubeapi.Node]) error {
	m.mu.Lock()
	node := *m.copied()
	m.watch = func(n kubeapi.Node) {
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

func (m *machine) FollowPodsOn(ctx context.Context, _ string, h kubeapi.Handler[kubeapi.Pod]) error {
	m.cluster.mu.Lock()
	m.cluster.draining[m.name]++
	m.cluster.mu.Unlock()
	defer func() {
		m.cluster.mu.Lock()
		m.cluster.draining[m.name]--
		m.cluster.mu.Unlock()
	}()
	m.mu.Lock()
	m.pods = append(m.pods, func(all []kubeapi.Pod) {
		if ctx.Err() == nil {
			h.Replaced(all)
		}
	})
	all := m.podsNow()
	m.mu.Unlock()
	h.Replaced(all)
	<-ctx.Done()
	return ctx.Err()
}

// tellPods tells those who follow the machine's pods what there is.
func (m *machine) tellPods() {
	m.mu.Lock()
	followers, all := slices.Clone(m.pods), m.podsNow()
	m.mu.Unlock()
	for _, tell := range followers {
		tell(all)
	}
}

func (m *machine) ListPodsOn(ctx context.Context, _ string) (all []kubeapi.Pod, err error) {
	err = m.serve(ctx, "list pods", func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		all = m.podsNow()
		return nil
	})
	return all, err
}

func (m *machine) podsNow() []kubeapi.Pod {
	if m.pod == nil {
		return nil
	}
	return []kubeapi.Pod{*m.pod}
}

func (m *machine) Evict(ctx context.Context, r kubeapi.Removal) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(m.answers):
	}
	return m.serve(ctx, "create pods/eviction", func() error { return m.evict(r) })
}

func (m *machine) evict(r kubeapi.Removal) error {
	m.mu.Lock()
	budget := m.budget
	m.mu.Unlock()
	if budget != "" {
		return &kubeapi.StatusError{Code: 429, Reason: "TooManyRequests", Causes: []kubeapi.Cause{{
			Reason: "DisruptionBudget", Message: "The disruption budget " + budget + " needs 1 healthy pods and has 1 currently",
		}}}
	}
	return m.remove(r.UID)
}

// denied has a PodDisruptionBudget deny evictions from now on, or none when it has no name.
func (m *machine) denied(by string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.budget = by
}

// conditionWrites is how often conditions were written.
func (m *machine) conditionWrites() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

func (m *machine) DeletePod(ctx context.Context, r kubeapi.Removal) error {
	return m.serve(ctx, "delete pods", func() error { return m.remove(r.UID) })
}

func (m *machine) SetDisruptionTarget(context.Context, kubeapi.Disruption) error { return nil }

// remove has the pod stop in its time.
func (m *machine) remove(uid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pod == nil || m.pod.UID != uid {
		return &kubeapi.StatusError{Code: 404, Reason: "NotFound"}
	}
	if !m.evicted.IsZero() {
		return nil
	}
	m.evicted = time.Now()
	time.AfterFunc(m.stops, func() {
		m.mu.Lock()
		m.pod = nil
		m.mu.Unlock()
		m.tellPods()
	})
	return nil
}

func (m *machine) FollowBudgets(ctx context.Context, _ string, h kubeapi.Handler[kubeapi.PodDisruptionBudget]) error {
	h.Replaced(nil)
	<-ctx.Done()
	return ctx.Err()
}

func (m *machine) CreateEvent(ctx context.Context, e kubeapi.Event) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Millisecond): // as any request takes its time
	}
	return m.serve(ctx, "create events", func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.events, m.about = append(m.events, e.Reason), append(m.about, e.InvolvedObject.UID)
		return nil
	})
}

// said reports whether there was an Event of that reason.
func (m *machine) said(reason string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.events, reason)
}

// empty reports that the pod has left.
func (m *machine) empty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pod == nil
}

// asked is when the pod was asked to leave; zero is not at all.
func (m *machine) asked() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.evicted
}

func (m *machine) see() kubeapi.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *m.copied()
}

// start starts an agent on the machine; change may change its options. A limit of 0 is none.
func (m *machine) start(t *testing.T, limit int, change func(*Options)) {
	o := Options{
		Node: m.name, Resource: m.name, API: m, Sources: []Source{m.source}, Impact: DefaultImpact(), Margin: DefaultMargin,
		Metrics: NewMetrics(observe.NewRegistry()), Heartbeat: observe.NewHeartbeat("agent", time.Hour),
		Log: slog.New(slog.DiscardHandler),
	}
	if limit > 0 {
		k, err := slots.New(slots.Options{API: leases{m}, Namespace: "slipway", Holder: m.name, Limit: limit})
		must.NoError(t, err)
		o.Slots = k
	}
	if change != nil {
		change(&o)
	}
	m.agent = New(o)
	ctx, kill := context.WithCancel(t.Context())
	m.kill, m.gone = kill, make(chan struct{})
	m.source.again()
	agent, gone := m.agent, m.gone
	go func() {
		defer close(gone)
		_ = agent.Run(ctx)
	}()
}

func (m *machine) crash() {
	if m.kill != nil {
		m.kill()
		<-m.gone
	}
}

// teller is a source that says what it is told to.
type teller struct {
	name string
	news chan struct{}

	mu      sync.Mutex
	notices []notice.Notice
	hidden  []notice.Problem // entries that cannot be understood
	silent  time.Duration    // for how long it cannot be read after a start
	ahead   time.Duration    // how far its machine's clock is ahead
}

func (s *teller) Name() string        { return s.name }
func (s *teller) LastRead() time.Time { return time.Now() }

func (s *teller) again() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

func (s *teller) say(notices ...notice.Notice) {
	s.mu.Lock()
	s.notices = slices.Clone(notices)
	s.mu.Unlock()
	s.again()
}

func (s *teller) all() []notice.Notice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.notices)
}

func (s *teller) snapshot() notice.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot := notice.Snapshot{At: time.Now().Add(s.ahead), Notices: slices.Clone(s.notices), Unreadable: slices.Clone(s.hidden)}
	for i := range snapshot.Notices {
		snapshot.Notices[i].ClockAhead = s.ahead
	}
	return snapshot
}

// hide has the list have an entry that cannot be understood, or none.
func (s *teller) hide(problems ...notice.Problem) {
	s.mu.Lock()
	s.hidden = problems
	s.mu.Unlock()
	s.again()
}

// clock sets how far its machine's clock is ahead.
func (s *teller) clock(ahead time.Duration) {
	s.mu.Lock()
	s.ahead = ahead
	s.mu.Unlock()
	s.again()
}

func (s *teller) Run(ctx context.Context, emit func(notice.Snapshot)) {
	s.mu.Lock()
	silent := s.silent
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(silent):
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.news:
			emit(s.snapshot())
		}
	}
}

// announced is a notice that is due after some time.
func announced(kind notice.Type, id string, in time.Duration) notice.Notice {
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
