package snapshot

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// Fork makes changes to a snapshot that can be rolled back. Forks nest; roll back the last one first.
type Fork struct {
	s     *Snapshot
	mark  int
	depth int
}

// Fork opens a fork. Until it is rolled back, every event fails with ErrForked.
func (s *Snapshot) Fork() Fork {
	s.journal.forks++
	return Fork{s, len(s.journal.changes), s.journal.forks}
}

// Rollback undoes everything since the fork was opened. Its cost is proportional to the changes. It does nothing if
// this fork or an outer one has been rolled back already.
func (f Fork) Rollback() {
	if f.s.journal.forks < f.depth {
		return
	}
	f.Reset()
	f.s.journal.forks = f.depth - 1
}

// Reset undoes everything since the fork was opened. The fork stays open.
func (f Fork) Reset() { f.UndoToMark(f.mark) }

// Mark returns the current position in the undo log, for UndoToMark and PodsPlacedSince.
func (f Fork) Mark() int { return len(f.s.journal.changes) }

// UndoToMark undoes everything since a mark.
func (f Fork) UndoToMark(mark int) {
	j := &f.s.journal
	for len(j.changes) > mark {
		last := len(j.changes) - 1
		c := j.changes[last]
		j.changes[last] = change{}
		j.changes = j.changes[:last]
		f.revertChange(c)
	}
}

func (f Fork) revertChange(c change) {
	s := f.s
	switch c.kind {
	case podAttached:
		s.detachPod(c.pod)
		c.pod.MovedIn = c.wasMovedIn
		if c.wasPending {
			s.pending[c.pod] = struct{}{}
		}
	case podAdded:
		s.detachPod(c.pod)
		removeFromClass(c.pod)
	case podDetached:
		n := s.Nodes.slots[c.node]
		c.pod.MovedIn = c.wasMovedIn
		s.attachPod(c.pod, n)
		n.SwapPods(c.pod, c.index)
	case nodeRemoved:
		f.setRemovedByPlan(s.Nodes.slots[c.node], false)
	case nodeClosed:
		f.setClosedByPlan(s.Nodes.slots[c.node], false)
	case nodeOpened:
		f.setClosedByPlan(s.Nodes.slots[c.node], true)
	case nodeAdded:
		s.removeNode(s.Nodes.slots[c.node])
	case bitCleared:
		s.Search.storedBitmapOf(c.class).setBit(c.node)
	case bitmapReset:
		s.Search.storedBitmapOf(c.class).valid = false
	case wordComputed:
		s.Search.storedBitmapOf(c.class).markUncomputed(c.node)
	}
}

// HasMoved reports whether this fork, or a fork inside it, has moved the pod.
func (f Fork) HasMoved(p *filter.Pod) bool { return p.MovedIn >= int32(f.depth) }

// PlacementCount returns the number of placements since the fork was opened.
func (f Fork) PlacementCount() (times int) {
	for i := range f.s.journal.changes[f.mark:] {
		if f.s.journal.changes[f.mark+i].kind == podAttached {
			times++
		}
	}
	return times
}

// PodsPlacedSince lists the pods that were placed since a mark, in that order.
func (f Fork) PodsPlacedSince(mark int) []*filter.Pod {
	var pods []*filter.Pod
	for _, c := range f.s.journal.changes[mark:] {
		if c.kind == podAttached {
			pods = append(pods, c.pod)
		}
	}
	return pods
}

// setRemovedByPlan records that a plan removes a node without pods, or restores it.
func (f Fork) setRemovedByPlan(n *filter.Node, removed bool) {
	for _, e := range f.s.index.eligibilities {
		e.SetRemovedByPlan(n, removed)
	}
	n.RemovedByPlan = removed
	f.s.Search.markChangedUnlessPlanning(n.ID)
}

// CloseNode makes a node take no more pods. Its pods stay. It does nothing if the node is unknown or removed.
func (f Fork) CloseNode(nodeName string) { f.changeClosed(nodeName, true, nodeClosed) }

// OpenNode reverses CloseNode.
func (f Fork) OpenNode(nodeName string) { f.changeClosed(nodeName, false, nodeOpened) }

func (f Fork) changeClosed(nodeName string, closed bool, kind changeKind) {
	n, err := f.s.Nodes.FindUnlessRemoved(nodeName)
	if err != nil || n.ClosedByPlan == closed {
		return
	}
	f.setClosedByPlan(n, closed)
	f.s.journal.addChange(change{kind: kind, node: n.ID})
}

func (f Fork) setClosedByPlan(n *filter.Node, closed bool) {
	n.ClosedByPlan = closed
	f.s.Search.discardOrder()
}

// PlacePod places a pod that is on no node. The pod counts as recreated: it uses the requests of its specification.
func (f Fork) PlacePod(p *filter.Pod, n *filter.Node) {
	s := f.s
	movedIn, pending := p.MovedIn, len(s.pending)
	if p.NodeName == "" {
		delete(s.pending, p)
	}
	p.MovedIn = int32(f.depth)
	s.attachPod(p, n)
	s.journal.addChange(change{kind: podAttached, node: n.ID, wasMovedIn: movedIn, wasPending: len(s.pending) < pending, pod: p})
}

// RemovePod removes a pod from its node, like an eviction.
func (f Fork) RemovePod(p *filter.Pod) {
	f.s.journal.addChange(change{kind: podDetached, node: p.Node, index: p.IndexInNode, wasMovedIn: p.MovedIn, pod: p})
	f.s.detachPod(p)
	p.MovedIn = int32(f.depth)
}

// RemoveNodeAndPods removes all pods from a node, and then the node.
func (f Fork) RemoveNodeAndPods(n *filter.Node) {
	for len(n.Pods) > 0 {
		f.RemovePod(n.Pods[len(n.Pods)-1])
	}
	f.setRemovedByPlan(n, true)
	f.s.journal.addChange(change{kind: nodeRemoved, node: n.ID})
}

// AddNode adds a new node. If its Ready condition is missing, it counts as ready.
func (f Fork) AddNode(o *corev1.Node) *filter.Node {
	n := f.s.addNode(o)
	if n.Facts.ReadyStatus == noderules.ReadyUnknown { // a template has no conditions
		n.Facts.ReadyStatus = noderules.ReadyTrue
	}
	f.s.journal.addChange(change{kind: nodeAdded, node: n.ID})
	return n
}

// noFacts are the facts about a pod that no eviction rule is applied to.
var noFacts filter.SharedFacts

// AddPod adds a new pod of a class to a node. Filters and counters know the pod, but it has no name. It is never evicted.
func (f Fork) AddPod(c *filter.PodClass, n *filter.Node) {
	p := &filter.Pod{Class: c, Usage: c.Usage, Node: filter.None, NodeName: n.Name(), MovedIn: int32(f.depth), Facts: &noFacts}
	addToClass(p)
	f.s.attachPod(p, n)
	f.s.journal.addChange(change{kind: podAdded, pod: p})
}

// MovePod places a pod of the snapshot on a node, and removes it from its current node first. It does not check whether
// the pod fits. It fails if the pod or the node is unknown.
func (f Fork) MovePod(key placement.PodKey, nodeName string) error {
	p, ok := f.s.pods[key]
	if !ok {
		return fmt.Errorf("pod %s is not in the snapshot", key)
	}
	n, err := f.s.Nodes.FindUnlessRemoved(nodeName)
	if err != nil {
		return err
	}
	if p.Node != filter.None {
		f.RemovePod(p)
	}
	f.PlacePod(p, n)
	return nil
}

// RemoveNamedNodeAndPods removes a node and all its pods. It fails if the node is unknown.
func (f Fork) RemoveNamedNodeAndPods(nodeName string) error {
	n, err := f.s.Nodes.FindUnlessRemoved(nodeName)
	if err != nil {
		return err
	}
	f.RemoveNodeAndPods(n)
	return nil
}

// AddNewNode adds a new node. It fails if the node has no name or exists already.
func (f Fork) AddNewNode(o *corev1.Node) error {
	switch {
	case o == nil || o.Name == "":
		return fmt.Errorf("node has no name")
	case f.s.Nodes.byName[o.Name] != nil:
		return fmt.Errorf("node %s is in the snapshot already", o.Name)
	}
	f.AddNode(o)
	return nil
}
