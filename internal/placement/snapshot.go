package placement

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/nodedeclaredfeatures"
)

// ErrForked is returned by every event that reaches a snapshot while a fork is open: what is tried in a fork must be
// taken back before the world changes.
var ErrForked = errors.New("snapshot is forked: roll the fork back before feeding events")

// Snapshot is the state of a cluster that scheduling reads. See the package comment for its concurrency.
type Snapshot struct {
	resources     *resourceTable
	encoder       encoder
	nodes         []*node // by id; slots of deleted nodes are empty until reused
	free          []int32
	nodeByName    map[string]*node
	names         []*node // in the order of their names; nil when nodes have come or gone
	pods          map[PodKey]*pod
	pending       map[*pod]struct{}
	homeless      map[string]map[*pod]struct{} // pods bound to a node that is not known, by its name
	classes       map[string]*class
	filters       map[string]*nodeFilter
	namespaces    map[string]*namespace
	keys          map[string]*topologyKey
	terms         map[string]*podTerm
	attractions   registry[*attraction]
	repulsions    registry[*repulsion]
	spreads       registry[*spread]
	eligibilities map[string]*eligibility
	storage       storage
	budgets       map[PodKey]*budget
	budgetsIn     map[string][]*budget
	budgetChanges uint64

	log      []change
	forks    int
	rooms    rooms
	events   uint64 // counts events, for caches outside of the snapshot
	garbage  int    // classes that have lost their last pod since the last sweep
	capacity []float64
}

// New returns an empty snapshot.
func New() *Snapshot {
	return &Snapshot{
		resources:     newResourceTable(),
		nodeByName:    map[string]*node{},
		pods:          map[PodKey]*pod{},
		pending:       map[*pod]struct{}{},
		homeless:      map[string]map[*pod]struct{}{},
		classes:       map[string]*class{},
		filters:       map[string]*nodeFilter{},
		namespaces:    map[string]*namespace{},
		keys:          map[string]*topologyKey{},
		terms:         map[string]*podTerm{},
		attractions:   newRegistry[*attraction](),
		repulsions:    newRegistry[*repulsion](),
		spreads:       newRegistry[*spread](),
		eligibilities: map[string]*eligibility{},
		storage:       newStorage(),
		budgets:       map[PodKey]*budget{},
		budgetsIn:     map[string][]*budget{},
		budgetChanges: 1,
	}
}

// Nodes returns how many nodes the snapshot holds.
func (s *Snapshot) Nodes() int { return len(s.nodeByName) }

// NodeNames gives the names of the nodes, in no order.
func (s *Snapshot) NodeNames() iter.Seq[string] { return maps.Keys(s.nodeByName) }

// Pods returns how many pods that are not finished the snapshot holds.
func (s *Snapshot) Pods() int { return len(s.pods) }

// event opens the handling of an event.
func (s *Snapshot) event() error {
	if s.forks > 0 {
		return ErrForked
	}
	s.events++
	return nil
}

// SetNode adds a node or takes over its new state. It fails for a nil or nameless node and while the snapshot is forked.
func (s *Snapshot) SetNode(o *corev1.Node) error {
	if o == nil || o.Name == "" {
		return errors.New("node without a name")
	}
	n, known := s.nodeByName[o.Name]
	if known && s.forks == 0 && s.sameNode(n, o) {
		return nil // a heartbeat
	}
	if err := s.event(); err != nil {
		return err
	}
	s.capacity = nil
	if !known {
		s.addNode(o)
		for p := range s.homeless[o.Name] {
			s.attach(p, s.nodeByName[o.Name])
		}
		delete(s.homeless, o.Name)
		return nil
	}
	s.updateNode(n, o)
	return nil
}

// addNode gives a node a slot and its place in every topology.
func (s *Snapshot) addNode(o *corev1.Node) *node {
	var id int32
	if last := len(s.free) - 1; last >= 0 {
		id, s.free = s.free[last], s.free[:last]
	} else {
		id = int32(len(s.nodes))
		s.nodes = append(s.nodes, nil)
	}
	n := &node{id: id, present: true}
	s.nodes[id] = n
	s.nodeByName[o.Name] = n
	s.names = nil
	s.readNode(n, o)
	s.storage.adopt(n)
	s.enterTopology(n)
	s.rooms.reshape()
	return n
}

// readNode takes over the object.
func (s *Snapshot) readNode(n *node, o *corev1.Node) {
	n.object = trim(o)
	n.allocatable = s.resources.dense(o.Status.Allocatable)
	pods := o.Status.Allocatable[corev1.ResourcePods]
	n.maxPods = pods.Value()
	n.features = nodedeclaredfeatures.DefaultFramework.TryMap(o.Status.DeclaredFeatures)
	for _, f := range s.filters {
		f.forget(n.id)
	}
}

// updateNode takes over a changed object. Pods are only recounted when the node's domains or eligibility can change.
func (s *Snapshot) updateNode(n *node, o *corev1.Node) {
	wasTarget := s.target(n)
	if sameTopology(n.object, o) {
		s.readNode(n, o)
	} else {
		s.uncount(n)
		s.leaveTopology(n)
		s.readNode(n, o)
		s.enterTopology(n)
		s.recount(n)
	}
	s.rooms.touch(n.id)
	if s.target(n) != wasTarget {
		s.rooms.reshape()
	}
}

// sameNode reports whether nothing that is read of a node has changed.
func (s *Snapshot) sameNode(n *node, o *corev1.Node) bool {
	pods := o.Status.Allocatable[corev1.ResourcePods]
	return n.maxPods == pods.Value() && equality.Semantic.DeepEqual(n.object, trim(o)) &&
		slices.Equal(n.allocatable, s.resources.dense(o.Status.Allocatable)) &&
		n.features.Equal(nodedeclaredfeatures.DefaultFramework.TryMap(o.Status.DeclaredFeatures))
}

// sameTopology reports whether labels and taints, on which domains and eligibility rest, are the same.
func sameTopology(a, b *corev1.Node) bool {
	if len(a.Spec.Taints) != len(b.Spec.Taints) || !labels.Equals(a.Labels, b.Labels) {
		return false
	}
	for i := range a.Spec.Taints {
		if !a.Spec.Taints[i].MatchTaint(&b.Spec.Taints[i]) || a.Spec.Taints[i].Value != b.Spec.Taints[i].Value {
			return false
		}
	}
	return true
}

// enterTopology finds the node's domains and the eligibilities that admit it.
func (s *Snapshot) enterTopology(n *node) {
	for _, k := range s.keys {
		k.setNode(n.id, n.object.Labels)
	}
	for _, e := range s.eligibilities {
		for int(n.id) >= len(e.eligible) {
			e.eligible = append(e.eligible, false)
		}
		if e.eligible[n.id] = e.admits(n); e.eligible[n.id] {
			e.enter(e.key.domainOf[n.id])
		}
	}
}

// leaveTopology undoes enterTopology; no pod of the node may be counted any more.
func (s *Snapshot) leaveTopology(n *node) {
	for _, e := range s.eligibilities {
		if e.eligible[n.id] {
			e.leave(e.key.domainOf[n.id])
			e.eligible[n.id] = false
		}
	}
	for _, k := range s.keys {
		k.domainOf[n.id] = none
	}
}

func (s *Snapshot) uncount(n *node) {
	for _, p := range n.pods {
		s.count(p, n.id, -1)
	}
}

func (s *Snapshot) recount(n *node) {
	for _, p := range n.pods {
		s.count(p, n.id, 1)
	}
}

// DeleteNode forgets a node. Its pods wait for it to return, or for their own deletion. An unknown node is no error.
func (s *Snapshot) DeleteNode(name string) error {
	if err := s.event(); err != nil {
		return err
	}
	n, ok := s.nodeByName[name]
	if !ok {
		return nil
	}
	s.capacity = nil
	for len(n.pods) > 0 {
		p := n.pods[len(n.pods)-1]
		s.detach(p)
		s.shelter(p)
	}
	s.dropNode(n)
	return nil
}

// dropNode frees the slot of a node without pods.
func (s *Snapshot) dropNode(n *node) {
	s.leaveTopology(n)
	for _, f := range s.filters {
		f.forget(n.id)
	}
	delete(s.nodeByName, n.name())
	s.names = nil
	s.nodes[n.id] = &node{id: n.id, object: &corev1.Node{}}
	s.free = append(s.free, n.id)
	s.rooms.reshape()
}

// shelter keeps a bound pod whose node is not known.
func (s *Snapshot) shelter(p *pod) {
	if s.homeless[p.nodeName] == nil {
		s.homeless[p.nodeName] = map[*pod]struct{}{}
	}
	s.homeless[p.nodeName][p] = struct{}{}
}

// SetPod adds a pod or takes over its new state. A finished pod holds nothing and is forgotten. It fails for a nil or
// nameless pod and while the snapshot is forked; a pod with malformed selectors is taken in, and refused by its verdict.
func (s *Snapshot) SetPod(o *corev1.Pod) error {
	if o == nil || o.Name == "" {
		return errors.New("pod without a name")
	}
	if err := s.event(); err != nil {
		return err
	}
	key := PodKey{Namespace: o.Namespace, Name: o.Name}
	old := s.pods[key]
	if finished(o) {
		if old != nil {
			s.forget(old)
		}
		return nil
	}
	p := s.newPod(o)
	if old != nil {
		if p.replaces(old) {
			old.priority, old.created, old.eviction = p.priority, p.created, p.eviction
			return nil
		}
		s.forget(old)
	}
	s.remember(p)
	return nil
}

// DeletePod forgets a pod. An unknown pod is no error.
func (s *Snapshot) DeletePod(key PodKey) error {
	if err := s.event(); err != nil {
		return err
	}
	if p, ok := s.pods[key]; ok {
		s.forget(p)
		s.sweepIfWorthIt()
	}
	return nil
}

func (s *Snapshot) remember(p *pod) {
	s.pods[p.key] = p
	l := p.class.labels
	p.rank = int32(len(l.pods))
	l.pods = append(l.pods, p)
	p.class.members++
	switch n := s.nodeByName[p.nodeName]; {
	case p.nodeName == "":
		s.pending[p] = struct{}{}
	case n == nil:
		s.shelter(p)
	default:
		s.attach(p, n)
	}
}

func (s *Snapshot) forget(p *pod) {
	switch {
	case p.node != none:
		s.detach(p)
	case p.nodeName == "":
		delete(s.pending, p)
	default:
		delete(s.homeless[p.nodeName], p)
		if len(s.homeless[p.nodeName]) == 0 {
			delete(s.homeless, p.nodeName)
		}
	}
	delete(s.pods, p.key)
	l := p.class.labels
	last := l.pods[len(l.pods)-1]
	l.pods[p.rank], last.rank = last, p.rank
	l.pods = l.pods[:len(l.pods)-1]
	if p.class.members--; p.class.members == 0 {
		s.garbage++
	}
}

// attach puts a pod on a node, at the end of its list.
func (s *Snapshot) attach(p *pod, n *node) {
	p.node, p.place = n.id, int32(len(n.pods))
	n.pods = append(n.pods, p)
	n.take(p, 1)
	s.count(p, n.id, 1)
	s.storage.use(p, 1)
	s.rooms.touch(n.id)
	if p.eviction.apiServer && !s.rooms.planning {
		s.rooms.reshape() // its node is no target any more
	}
}

// detach takes a pod off its node; the last of the list takes its place.
func (s *Snapshot) detach(p *pod) {
	n := s.nodes[p.node]
	last := n.pods[len(n.pods)-1]
	n.pods[p.place], last.place = last, p.place
	n.pods = n.pods[:len(n.pods)-1]
	n.take(p, -1)
	s.count(p, n.id, -1)
	s.storage.use(p, -1)
	p.node = none
	s.rooms.touch(n.id)
}

// count keeps every counter that a pod on a node matters to.
func (s *Snapshot) count(p *pod, n, sign int32) {
	l := p.class.labels
	for _, a := range l.attractions {
		a.add(n, sign)
	}
	if !p.terminating {
		for _, sp := range l.spreads {
			sp.add(n, sign)
		}
	}
	for _, r := range p.class.repulsions {
		r.add(n, sign)
	}
}

// namespace returns the record of a namespace, which exists as soon as something names it.
func (s *Snapshot) namespace(name string) *namespace {
	ns, ok := s.namespaces[name]
	if !ok {
		ns = &namespace{name: name, pods: map[string]*podLabels{}, carrying: map[anchor][]*podLabels{}}
		s.namespaces[name] = ns
	}
	return ns
}

// SetNamespace takes over the labels of a namespace, which the namespace selectors of pod affinity read.
func (s *Snapshot) SetNamespace(o *corev1.Namespace) error {
	if o == nil {
		return errors.New("no namespace")
	}
	return s.relabel(o.Name, true, o.Labels)
}

// DeleteNamespace forgets the labels of a namespace.
func (s *Snapshot) DeleteNamespace(name string) error { return s.relabel(name, false, nil) }

// relabel recounts the pods of a namespace whose labels have changed.
func (s *Snapshot) relabel(name string, known bool, set map[string]string) error {
	if err := s.event(); err != nil {
		return err
	}
	ns := s.namespace(name)
	if ns.known == known && labels.Equals(ns.labels, set) {
		return nil
	}
	s.eachPlaced(ns, -1)
	ns.known, ns.labels = known, set
	for _, l := range ns.pods {
		s.wire(l)
	}
	s.eachPlaced(ns, 1)
	return nil
}

func (s *Snapshot) eachPlaced(ns *namespace, sign int32) {
	for _, l := range ns.pods {
		for _, p := range l.pods {
			if p.node != none {
				s.count(p, p.node, sign)
			}
		}
	}
}

// SetPodDisruptionBudget takes over a budget. One whose selector cannot be read is kept and blocks what it may mean.
func (s *Snapshot) SetPodDisruptionBudget(o *policyv1.PodDisruptionBudget) error {
	if o == nil || o.Name == "" {
		return errors.New("pod disruption budget without a name")
	}
	if err := s.event(); err != nil {
		return err
	}
	s.setBudget(newBudget(o))
	return nil
}

// DeletePodDisruptionBudget forgets a budget. An unknown one is no error.
func (s *Snapshot) DeletePodDisruptionBudget(key PodKey) error {
	if err := s.event(); err != nil {
		return err
	}
	s.dropBudget(key)
	return nil
}

// nodeNamed returns a node that no plan has taken away.
func (s *Snapshot) nodeNamed(name string) (*node, error) {
	n, ok := s.nodeByName[name]
	if !ok || n.out {
		return nil, fmt.Errorf("node %s is not in the snapshot", name)
	}
	return n, nil
}
