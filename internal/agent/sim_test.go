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
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/slots"
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

func (c *cluster) ListLeases(context.Context, string, string) ([]kubeapi.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.leases)), nil
}

func (c *cluster) CreateLease(_ context.Context, l kubeapi.Lease) (*kubeapi.Lease, error) {
	return c.put(l, "AlreadyExists")
}

func (c *cluster) UpdateLease(_ context.Context, l kubeapi.Lease) (*kubeapi.Lease, error) {
	return c.put(l, "Conflict")
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

	mu      sync.Mutex
	node    kubeapi.Node
	changes int
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

func (m *machine) GetNode(context.Context, string) (*kubeapi.Node, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.copied(), nil
}

func (m *machine) copied() *kubeapi.Node {
	n := m.node
	n.Annotations, n.Labels = maps.Clone(n.Annotations), maps.Clone(n.Labels)
	n.Status.Conditions = slices.Clone(n.Status.Conditions)
	return &n
}

// ListNodes finds the peers, whatever it is asked for.
func (m *machine) ListNodes(context.Context, string) ([]kubeapi.Node, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []kubeapi.Node
	for _, name := range m.peers {
		var n kubeapi.Node
		n.Name, n.Spec.ProviderID = name, name
		all = append(all, n)
	}
	return all, nil
}

// peerDrained has another machine be drained.
func (m *machine) peerDrained(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers = append(m.peers, name)
}

// PatchNode applies what a JSON merge patch says of annotations, labels and unschedulable.
func (m *machine) PatchNode(_ context.Context, _ string, patch []byte) (*kubeapi.Node, error) {
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
func (m *machine) PatchNodeStatus(_ context.Context, _ string, patch []byte) (*kubeapi.Node, error) {
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

func (m *machine) ListPodsOn(context.Context, string) ([]kubeapi.Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.podsNow(), nil
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

func (m *machine) DeletePod(_ context.Context, r kubeapi.Removal) error { return m.remove(r.UID) }

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
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events, m.about = append(m.events, e.Reason), append(m.about, e.InvolvedObject.UID)
	return nil
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
		k, err := slots.New(slots.Options{API: m.cluster, Namespace: "slipway", Holder: m.name, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
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
	m.kill()
	<-m.gone
}

// teller is a source that says what it is told to.
type teller struct {
	name string
	news chan struct{}

	mu      sync.Mutex
	notices []notice.Notice
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

func (s *teller) Run(ctx context.Context, emit func(notice.Snapshot)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.news:
			emit(notice.Snapshot{At: time.Now(), Notices: s.all()})
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
