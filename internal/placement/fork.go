package placement

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Fork is a point to which the snapshot can be taken back. Forks nest; the one opened last is rolled back first.
type Fork struct {
	snapshot *Snapshot
	mark     int
	depth    int
}

// change is one entry of the undo log.
type change struct {
	kind  changeKind
	node  int32 // or the position of a room's bit, or its word
	place int32
	moved bool // whether the pod had been moved before
	pod   *pod
	class *class
}

type changeKind uint8

const (
	attached  changeKind = iota // pod was put on node
	detached                    // pod was taken off node, from place
	withdrawn                   // node was taken away
	added                       // node was added
	bitClear                    // a bit of the room of class was cleared
	roomMade                    // the room of class was begun anew
	wordMade                    // one word of the room of class was made
)

// Fork opens a fork. Until it is rolled back the snapshot takes no events.
func (s *Snapshot) Fork() Fork {
	s.forks++
	return Fork{s, len(s.log), s.forks}
}

// Rollback takes back everything done since the fork was opened, at the cost of what was done. Rolling back twice, or a
// fork that an outer one has already taken back, does nothing.
func (f Fork) Rollback() {
	s := f.snapshot
	if s.forks < f.depth {
		return
	}
	s.undo(f.mark)
	s.forks = f.depth - 1
}

// undo takes back the log down to a mark.
func (s *Snapshot) undo(mark int) {
	for len(s.log) > mark {
		last := len(s.log) - 1
		c := s.log[last]
		s.log[last] = change{}
		s.log = s.log[:last]
		s.revert(c)
	}
}

func (s *Snapshot) revert(c change) {
	switch c.kind {
	case attached:
		s.detach(c.pod)
		if c.pod.nodeName == "" {
			s.pending[c.pod] = struct{}{}
		}
	case detached:
		c.pod.moved = c.moved
		s.attach(c.pod, s.nodes[c.node])
		s.swap(c.pod, c.place)
	case withdrawn:
		s.restore(s.nodes[c.node])
	case added:
		s.dropNode(s.nodes[c.node])
	case bitClear:
		c.class.room.set(c.node)
	case roomMade:
		c.class.room.valid = false
	case wordMade:
		c.class.room.unmake(c.node)
	}
}

// swap exchanges the places of two pods of a node, restoring the order that a detach has changed.
func (s *Snapshot) swap(p *pod, place int32) {
	pods := s.nodes[p.node].pods
	other := pods[place]
	pods[place], pods[p.place] = p, other
	p.place, other.place = place, p.place
}

// put places a pod that is on no node.
func (s *Snapshot) put(p *pod, n *node) {
	if p.nodeName == "" {
		delete(s.pending, p)
	}
	s.attach(p, n)
	s.log = append(s.log, change{kind: attached, node: n.id, pod: p})
}

// lift takes a pod off its node. Wherever it goes it is created anew, and takes what its specification asks for.
func (s *Snapshot) lift(p *pod) {
	s.log = append(s.log, change{kind: detached, node: p.node, place: p.place, moved: p.moved, pod: p})
	s.detach(p)
	p.moved = true
}

// withdraw takes away a node that holds no pods any more. Its place in the topologies is remembered for its return.
func (s *Snapshot) withdraw(n *node) {
	for _, e := range s.eligibilities {
		if e.eligible[n.id] {
			e.leave(e.key.domainOf[n.id])
		}
	}
	n.out = true
	s.rooms.touch(n.id)
	s.log = append(s.log, change{kind: withdrawn, node: n.id})
}

// restore brings back a node that was withdrawn.
func (s *Snapshot) restore(n *node) {
	for _, e := range s.eligibilities {
		if e.eligible[n.id] {
			e.enter(e.key.domainOf[n.id])
		}
	}
	n.out = false
	s.rooms.touch(n.id)
}

// Move places a pod of the snapshot on a node, taking it off the one it is on. Whether it fits is not asked. It works
// in a fork only.
func (s *Snapshot) Move(key PodKey, nodeName string) error {
	p, err := s.forkedPod(key)
	if err != nil {
		return err
	}
	n, err := s.nodeNamed(nodeName)
	if err != nil {
		return err
	}
	if p.node != none {
		s.lift(p)
	}
	s.put(p, n)
	return nil
}

// Lift takes a pod off its node, as an eviction does. It works in a fork only.
func (s *Snapshot) Lift(key PodKey) error {
	p, err := s.forkedPod(key)
	if err != nil {
		return err
	}
	if p.node != none {
		s.lift(p)
	}
	return nil
}

// Withdraw takes a node away with all pods still on it. It works in a fork only.
func (s *Snapshot) Withdraw(nodeName string) error {
	if s.forks == 0 {
		return errNotForked
	}
	n, err := s.nodeNamed(nodeName)
	if err != nil {
		return err
	}
	for len(n.pods) > 0 {
		s.lift(n.pods[len(n.pods)-1])
	}
	s.withdraw(n)
	return nil
}

// Launch adds a node that does not exist yet. It works in a fork only.
func (s *Snapshot) Launch(o *corev1.Node) error {
	switch {
	case s.forks == 0:
		return errNotForked
	case o == nil || o.Name == "":
		return fmt.Errorf("node without a name")
	case s.nodeByName[o.Name] != nil:
		return fmt.Errorf("node %s is in the snapshot already", o.Name)
	}
	s.launch(o)
	return nil
}

func (s *Snapshot) launch(o *corev1.Node) *node {
	n := s.addNode(o)
	s.log = append(s.log, change{kind: added, node: n.id})
	return n
}

// JudgePod gives the verdict on placing a pod of the snapshot on a node, as it would be for one created anew with the
// same needs. In a fork that has lifted the pod, it does not meet itself.
func (s *Snapshot) JudgePod(key PodKey, nodeName string) (Verdict, error) {
	p, ok := s.pods[key]
	if !ok {
		return Verdict{}, fmt.Errorf("pod %s is not in the snapshot", key)
	}
	n, err := s.nodeNamed(nodeName)
	if err != nil {
		return Verdict{}, err
	}
	return s.judge(p.class, n), nil
}

var errNotForked = fmt.Errorf("snapshot is not forked: open a fork before trying a plan")

func (s *Snapshot) forkedPod(key PodKey) (*pod, error) {
	if s.forks == 0 {
		return nil, errNotForked
	}
	p, ok := s.pods[key]
	if !ok {
		return nil, fmt.Errorf("pod %s is not in the snapshot", key)
	}
	return p, nil
}
