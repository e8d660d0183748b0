package snapshot

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// Judge gives the scheduler's verdict on placing a pod that is not (or no longer) in the snapshot on a node. The pod is
// taken as it is written: with a node name it goes nowhere else.
func (s *Snapshot) Judge(o *corev1.Pod, nodeName string) (placement.Verdict, error) {
	if o == nil {
		return placement.Verdict{}, errors.New("no pod")
	}
	n, err := s.Nodes.Find(nodeName)
	if err != nil {
		return placement.Verdict{}, err
	}
	c := s.index.internClass(o, false)
	v := s.JudgeClass(c, o.UID, n)
	s.index.countIfUnused(c)
	return v, nil
}

// JudgeClass asks the predicates about a pod of a class. As the scheduler does, it asks first with the pods counted that are
// nominated to the node, and then without them; the pod's UID tells it from those.
func (s *Snapshot) JudgeClass(c *filter.Class, uid types.UID, n *filter.Node) placement.Verdict {
	if refusal := s.Chain.Refusal(c); refusal != nil {
		return placement.Verdict{Outcome: placement.Blocked, Reasons: []placement.Reason{*refusal}}
	}
	alone := s.Chain.Filter(c, n)
	nominated := s.nominated.listPreceding(c, uid, n, s.pending)
	if len(nominated) == 0 {
		return alone
	}
	beside := s.filterWithNominated(c, n, nominated)
	switch {
	case beside.Outcome == placement.Blocked && alone.Outcome != placement.Blocked:
		for i := range beside.Reasons {
			beside.Reasons[i].Text += filter.BesideNominated
		}
		return beside
	case beside.Outcome == placement.Blocked || alone.Outcome == placement.Fits:
		return beside
	default:
		return alone
	}
}

// Find returns the first node, searching from a position and wrapping around, on which the class fits; nil if none. The UID
// is that of the pod.
func (s *Snapshot) Find(c *filter.Class, uid types.UID, from int32) *filter.Node {
	if !s.Chain.Placeable(c) {
		return nil
	}
	own := s.Rooms.RoomFor(c)
	for _, span := range [...][2]int32{{from, int32(len(s.Rooms.Order))}, {0, from}} {
		for position := s.Rooms.nextCandidate(c, own, span[0], span[1]); position != filter.None; position = s.Rooms.nextCandidate(c, own, position+1, span[1]) {
			if n := s.Nodes.slots[s.Rooms.Order[position]]; s.fitsWithRoom(c, uid, n) {
				return n
			}
		}
	}
	return nil
}

// Fits is JudgeClass without reasons: true only when the verdict is Fits. It does not allocate for pods without volumes, unless
// the node is held for a nominated pod.
func (s *Snapshot) Fits(c *filter.Class, uid types.UID, n *filter.Node) bool {
	return c.Roomy(n) && s.fitsWithRoom(c, uid, n)
}

// fitsWithRoom is fits of a node that is known to be roomy.
func (s *Snapshot) fitsWithRoom(c *filter.Class, uid types.UID, n *filter.Node) bool {
	if !c.Joins(n) {
		return false
	}
	plain := !c.HasVolumes() && (len(s.nominated) == 0 || len(s.nominated[n.Name()]) == 0)
	return plain || s.JudgeClass(c, uid, n).Outcome == placement.Fits
}

// JudgePod gives the verdict on placing a pod of the snapshot on a node, as it would be for one created anew with the
// same needs. In a fork that has lifted the pod, it does not meet itself.
func (s *Snapshot) JudgePod(key placement.PodKey, nodeName string) (placement.Verdict, error) {
	p, ok := s.pods[key]
	if !ok {
		return placement.Verdict{}, fmt.Errorf("pod %s is not in the snapshot", key)
	}
	n, err := s.Nodes.Find(nodeName)
	if err != nil {
		return placement.Verdict{}, err
	}
	return s.JudgeClass(p.Class, p.UID, n), nil
}
