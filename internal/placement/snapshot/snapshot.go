// Package snapshot holds what scheduling reads from a cluster: nodes, pods, PodDisruptionBudgets, volumes and
// namespaces.
//
// Events feed a Snapshot. The cost of an event is proportional to its size. A Snapshot does no I/O. A Fork writes its
// changes to an undo log, so that a plan can be tried and rolled back at the cost of its changes.
//
// A Snapshot is not safe for concurrent use: use one lock for events and queries. It keeps parts of the objects that
// it gets, such as labels and annotations, without a copy. As with informers, the caller must not change them
// afterwards.
package snapshot

import (
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// Snapshot is the state of a cluster that scheduling reads. It is not safe for concurrent use.
type Snapshot struct {
	pods          map[placement.PodKey]*filter.Pod
	pending       map[*filter.Pod]struct{}
	onUnknownNode map[string]map[*filter.Pod]struct{} // pods bound to an unknown node, by node name
	nominated     nominations
	facts         factsTable
	index         index
	journal       undoLog

	Nodes NodeSet
	// Filters runs the scheduler's filters.
	Filters filter.Chain
	// Search finds nodes with room for a class of pods.
	Search NodeSearch
	// Storage receives the events about volumes and devices.
	Storage filter.Storage
	// PDBs receives the events about PodDisruptionBudgets, and PodGroups those about PodGroups.
	PDBs      PDBs
	PodGroups PodGroups
}

// New returns an empty snapshot.
func New() *Snapshot {
	s := &Snapshot{
		Nodes:         NodeSet{byName: map[string]*filter.Node{}},
		pods:          map[placement.PodKey]*filter.Pod{},
		pending:       map[*filter.Pod]struct{}{},
		onUnknownNode: map[string]map[*filter.Pod]struct{}{},
		nominated:     nominations{},
		facts:         factsTable{byValue: map[podrules.Facts]*filter.SharedFacts{}},
	}
	s.PodGroups = PodGroups{journal: &s.journal, modes: map[placement.PodKey]podrules.DisruptionMode{}}
	s.index, s.Search = newIndex(&s.Nodes), NodeSearch{nodes: &s.Nodes, journal: &s.journal}
	s.Storage, s.PDBs = filter.NewStorage(s.journal.countEventUnlessForked, s.Nodes.byName), newPDBs(&s.journal)
	s.Filters = filter.Chain{Storage: &s.Storage, Resources: s.index.resources}
	return s
}

// PodCount returns the number of unfinished pods.
func (s *Snapshot) PodCount() int { return len(s.pods) }

// Pod returns an unfinished pod, or nil if it is unknown.
func (s *Snapshot) Pod(key placement.PodKey) *filter.Pod { return s.pods[key] }

// PendingPods lists the pods without a node, sorted by name.
func (s *Snapshot) PendingPods() []*filter.Pod {
	pods := slices.AppendSeq(make([]*filter.Pod, 0, len(s.pending)), maps.Keys(s.pending))
	slices.SortFunc(pods, func(a, b *filter.Pod) int { return a.Key.Compare(b.Key) })
	return pods
}

// IsPending reports whether a pod is in the snapshot and on no node.
func (s *Snapshot) IsPending(key placement.PodKey) bool {
	p, ok := s.pods[key]
	return ok && p.Node == filter.None && p.NodeName == ""
}

// SetNode adds or updates a node. It fails if the node is nil or has no name, and while the snapshot is forked.
func (s *Snapshot) SetNode(o *corev1.Node) error {
	if o == nil || o.Name == "" {
		return errors.New("node has no name")
	}
	n, known := s.Nodes.byName[o.Name]
	if known && s.journal.forks == 0 && n.IsUpToDate(o, s.Filters.Resources) {
		return nil // a heartbeat
	}
	if err := s.journal.countEventUnlessForked(); err != nil {
		return err
	}
	s.Nodes.means = nil
	if !known {
		s.addNode(o)
		for p := range s.onUnknownNode[o.Name] {
			s.attachPod(p, s.Nodes.byName[o.Name])
		}
		delete(s.onUnknownNode, o.Name)
		return nil
	}
	s.updateNode(n, o)
	return nil
}

// addNode assigns an ID to a node and adds it to every topology.
func (s *Snapshot) addNode(o *corev1.Node) *filter.Node {
	n := s.Nodes.addNode(o.Name)
	n.SetObject(o, s.Filters.Resources)
	s.index.forgetNodeVerdicts(n)
	s.Storage.UpdateNodeFromCSINode(n)
	s.index.addToTopologies(n)
	s.Search.discardOrder()
	return n
}

// updateNode stores a changed object. Pods are counted again only if the node's domains or eligibility can change.
func (s *Snapshot) updateNode(n *filter.Node, o *corev1.Node) {
	wasTarget := n.CanReceivePods()
	if n.HasSameLabelsAndTaints(o) {
		n.SetObject(o, s.Filters.Resources)
		s.index.forgetNodeVerdicts(n)
	} else {
		filter.AdjustCountersForNode(n, -1)
		s.index.removeFromTopologies(n)
		n.SetObject(o, s.Filters.Resources)
		s.index.forgetNodeVerdicts(n)
		s.index.addToTopologies(n)
		filter.AdjustCountersForNode(n, 1)
	}
	s.Search.markChangedUnlessPlanning(n.ID)
	if n.CanReceivePods() != wasTarget {
		s.Search.discardOrder()
	}
}

// DeleteNode removes a node. Its pods stay in the snapshot until they are deleted, and belong to the node again if it
// returns. It is not an error if the node is unknown.
func (s *Snapshot) DeleteNode(name string) error {
	if err := s.journal.countEventUnlessForked(); err != nil {
		return err
	}
	n, ok := s.Nodes.byName[name]
	if !ok {
		return nil
	}
	for len(n.Pods) > 0 {
		p := n.Pods[len(n.Pods)-1]
		s.detachPod(p)
		s.recordPodOnUnknownNode(p)
	}
	s.removeNode(n)
	return nil
}

// removeNode removes a node without pods.
func (s *Snapshot) removeNode(n *filter.Node) {
	s.index.removeFromTopologies(n)
	s.index.forgetNodeVerdicts(n)
	s.Nodes.removeNode(n)
	s.Search.discardOrder()
}

// recordPodOnUnknownNode keeps a bound pod that has an unknown node.
func (s *Snapshot) recordPodOnUnknownNode(p *filter.Pod) {
	if s.onUnknownNode[p.NodeName] == nil {
		s.onUnknownNode[p.NodeName] = map[*filter.Pod]struct{}{}
	}
	s.onUnknownNode[p.NodeName][p] = struct{}{}
}

// SetPod adds or updates a pod. A finished pod is removed. It fails if the pod is nil or has no name, and while the
// snapshot is forked. A pod with invalid selectors is accepted; its verdict refuses it.
func (s *Snapshot) SetPod(o *corev1.Pod) error {
	if o == nil || o.Name == "" {
		return errors.New("pod has no name")
	}
	if err := s.journal.countEventUnlessForked(); err != nil {
		return err
	}
	key := placement.PodKey{Namespace: o.Namespace, Name: o.Name}
	old := s.pods[key]
	if fromcorev1.IsFinished(o) {
		if old != nil {
			s.removePod(old)
		}
		return nil
	}
	p := s.compilePod(o)
	if old != nil {
		if p.CanReplace(old) {
			s.facts.releaseFacts(old.Facts)
			old.Priority, old.Created, old.Unstarted, old.Ready, old.Facts = p.Priority, p.Created, p.Unstarted, p.Ready, p.Facts
			return nil
		}
		s.removePod(old)
	}
	s.addPod(p)
	return nil
}

// DeletePod removes a pod. It is not an error if the pod is unknown.
func (s *Snapshot) DeletePod(key placement.PodKey) error {
	if err := s.journal.countEventUnlessForked(); err != nil {
		return err
	}
	if p, ok := s.pods[key]; ok {
		s.removePod(p)
		if s.index.isSweepDue() {
			freed := s.index.dropUnusedClasses()
			s.Search.dropClassBitmaps(freed)
			s.PDBs.dropClassCaches(freed)
		}
	}
	return nil
}

func (s *Snapshot) addPod(p *filter.Pod) {
	s.pods[p.Key] = p
	addToClass(p)
	switch n := s.Nodes.byName[p.NodeName]; {
	case p.NodeName == "":
		s.pending[p] = struct{}{}
		s.nominated.add(p)
	case n == nil:
		s.recordPodOnUnknownNode(p)
	default:
		s.attachPod(p, n)
	}
}

func (s *Snapshot) removePod(p *filter.Pod) {
	switch {
	case p.Node != filter.None:
		s.detachPod(p)
	case p.NodeName == "":
		delete(s.pending, p)
		s.nominated.remove(p)
	default:
		delete(s.onUnknownNode[p.NodeName], p)
		if len(s.onUnknownNode[p.NodeName]) == 0 {
			delete(s.onUnknownNode, p.NodeName)
		}
	}
	delete(s.pods, p.Key)
	s.facts.releaseFacts(p.Facts)
	removeFromClass(p)
	s.index.countIfUnused(p.Class)
}

// addToClass counts a pod in its class, and lists it by its labels. New counters count the listed pods.
func addToClass(p *filter.Pod) {
	l := p.Class.Labels
	p.IndexInLabels = int32(len(l.Pods))
	l.Pods = append(l.Pods, p)
	p.Class.PodCount++
}

// removeFromClass undoes addToClass. The last pod of the list gets its index.
func removeFromClass(p *filter.Pod) {
	l := p.Class.Labels
	last := l.Pods[len(l.Pods)-1]
	l.Pods[p.IndexInLabels], last.IndexInLabels = last, p.IndexInLabels
	l.Pods = l.Pods[:len(l.Pods)-1]
	p.Class.PodCount--
}

// attachPod appends a pod to the list of a node.
func (s *Snapshot) attachPod(p *filter.Pod, n *filter.Node) {
	p.Node, p.IndexInNode = n.ID, int32(len(n.Pods))
	n.Pods = append(n.Pods, p)
	n.AdjustUsage(p, 1)
	filter.AdjustCountersForPod(p, n.ID, 1)
	s.Storage.AdjustClaimUserCounts(p, 1)
	s.Search.markChangedUnlessPlanning(n.ID)
	if p.APIServer {
		n.APIServerPods++
		if !s.Search.planning {
			s.Search.discardOrder() // its node cannot receive pods any more
		}
	}
}

// detachPod removes a pod from its node. The last pod of the list gets its index.
func (s *Snapshot) detachPod(p *filter.Pod) {
	n := s.Nodes.slots[p.Node]
	last := n.Pods[len(n.Pods)-1]
	n.Pods[p.IndexInNode], last.IndexInNode = last, p.IndexInNode
	n.Pods = n.Pods[:len(n.Pods)-1]
	n.AdjustUsage(p, -1)
	filter.AdjustCountersForPod(p, n.ID, -1)
	s.Storage.AdjustClaimUserCounts(p, -1)
	if p.APIServer {
		n.APIServerPods--
	}
	p.Node = filter.None
	s.Search.markChangedUnlessPlanning(n.ID)
}

// SetNamespace stores the labels of a namespace, for the namespace selectors of pod affinity.
func (s *Snapshot) SetNamespace(o *corev1.Namespace) error {
	if o == nil {
		return errors.New("namespace is nil")
	}
	return s.setNamespaceLabels(o.Name, true, o.Labels)
}

// DeleteNamespace removes the labels of a namespace.
func (s *Snapshot) DeleteNamespace(name string) error { return s.setNamespaceLabels(name, false, nil) }

func (s *Snapshot) setNamespaceLabels(name string, exists bool, labelSet map[string]string) error {
	if err := s.journal.countEventUnlessForked(); err != nil {
		return err
	}
	s.index.setNamespaceLabelsAndRecount(name, exists, labelSet)
	return nil
}

// ClassIDLimit returns a number greater than the IDs of all classes.
func (s *Snapshot) ClassIDLimit() int32 { return s.index.ids.limit }

// FactsIDLimit returns a number greater than the IDs of all facts.
func (s *Snapshot) FactsIDLimit() int32 { return s.facts.ids.limit }
