package snapshot

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// JudgeNewPod returns the scheduler's verdict on placing a pod on a node. The pod must not be in the snapshot, or must have
// been deleted from it. If the pod has a node name, it fits only on that node.
func (s *Snapshot) JudgeNewPod(o *corev1.Pod, nodeName string) (placement.Verdict, error) {
	if o == nil {
		return placement.Verdict{}, errors.New("pod is nil")
	}
	n, err := s.Nodes.FindUnlessRemoved(nodeName)
	if err != nil {
		return placement.Verdict{}, err
	}
	c := s.index.internPodClass(o, false)
	v := s.JudgePodClass(c, o.UID, n)
	s.index.countIfUnused(c)
	return v, nil
}

// JudgePodClass returns the scheduler's verdict on placing a pod of a class on a node. Like the scheduler, it runs the
// filters with and without the pods that are nominated to the node. The UID excludes the pod itself from these.
func (s *Snapshot) JudgePodClass(c *filter.PodClass, uid types.UID, n *filter.Node) placement.Verdict {
	if refusal := s.Filters.PreFilterRefusal(c); refusal != nil {
		return placement.Verdict{Outcome: placement.Blocked, Reasons: []placement.Reason{*refusal}}
	}
	alone := s.Filters.RunFilters(c, n)
	nominated := s.nominated.listPreceding(c, uid, n, s.pending)
	if len(nominated) == 0 {
		return alone
	}
	beside := s.filterWithNominated(c, n, nominated)
	switch {
	case beside.Outcome == placement.Blocked && alone.Outcome != placement.Blocked:
		for i := range beside.Reasons {
			beside.Reasons[i].Message += filter.NominatedSuffix
		}
		return beside
	case beside.Outcome == placement.Blocked || alone.Outcome == placement.Fits:
		return beside
	default:
		return alone
	}
}

// FindFirstFittingNode returns the first node that the class fits on, or nil. The search starts at a position and wraps around. podUID
// is the UID of the pod.
func (s *Snapshot) FindFirstFittingNode(c *filter.PodClass, podUID types.UID, startPosition int32) *filter.Node {
	if !s.Filters.IsPlaceable(c) {
		return nil
	}
	bitmap := s.Search.UpdateCandidateBitmap(c)
	for _, span := range [...][2]int32{{startPosition, int32(len(s.Search.Order))}, {0, startPosition}} {
		for position := s.Search.nextCandidate(c, bitmap, span[0], span[1]); position != filter.None; position = s.Search.nextCandidate(c, bitmap, position+1, span[1]) {
			if n := s.Nodes.slots[s.Search.Order[position]]; s.fitsAssumingRoom(c, podUID, n) {
				return n
			}
		}
	}
	return nil
}

// FitsOn reports whether the verdict of JudgePodClass is Fits. It does not allocate for pods without volumes, unless a pod
// is nominated to the node.
func (s *Snapshot) FitsOn(c *filter.PodClass, uid types.UID, n *filter.Node) bool {
	return c.HasRoomOn(n) && s.fitsAssumingRoom(c, uid, n)
}

// fitsAssumingRoom returns the result of FitsOn for a node that is known to have capacity for the class.
func (s *Snapshot) fitsAssumingRoom(c *filter.PodClass, uid types.UID, n *filter.Node) bool {
	if !c.PassesTopologyFilters(n) {
		return false
	}
	plain := !c.HasVolumes() && (len(s.nominated) == 0 || len(s.nominated[n.Name()]) == 0)
	return plain || s.JudgePodClass(c, uid, n).Outcome == placement.Fits
}

// JudgeRecreatedPod returns the verdict on placing a recreated pod with the same needs as a pod of the snapshot. If a fork has
// removed that pod from its node, the pod does not count against itself.
func (s *Snapshot) JudgeRecreatedPod(key placement.PodKey, nodeName string) (placement.Verdict, error) {
	p, ok := s.pods[key]
	if !ok {
		return placement.Verdict{}, fmt.Errorf("pod %s is not in the snapshot", key)
	}
	n, err := s.Nodes.FindUnlessRemoved(nodeName)
	if err != nil {
		return placement.Verdict{}, err
	}
	return s.JudgePodClass(p.Class, p.UID, n), nil
}
