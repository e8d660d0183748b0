package planner

import (
	"fmt"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// PlaceLikeScheduler places pods as kube-scheduler usually does: each pod, in the given order, on the least used node
// that accepts it (https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins, NodeResourcesFit with its
// default strategy). PlanEvacuation and PackPods find the best case, and PlaceLikeScheduler the likely case. It first
// removes all the pods from their nodes. It returns the pods that no node accepts.
func PlaceLikeScheduler(s *snapshot.Snapshot, f snapshot.Fork, pods []placement.PodKey) (left []placement.PodKey, err error) {
	for _, key := range pods { // remove all first, so that none blocks another
		switch p := s.Pod(key); {
		case p == nil:
			return nil, fmt.Errorf("pod %s is not in the snapshot", key)
		case p.Node != filter.None:
			f.RemovePod(p)
		}
	}
	for _, key := range pods {
		p := s.Pod(key)
		var best *filter.Node
		var least float64
		for _, n := range s.Nodes.SortedByName() {
			if !n.CanReceivePods() || !s.Filters.IsPlaceable(p.Class) || p.NeedsUnknownClaim() || !s.FitsOn(p.Class, p.UID, n) {
				continue
			}
			if load := n.SumUsedShares(); best == nil || load < least {
				best, least = n, load
			}
		}
		if best == nil {
			left = append(left, key)
			continue
		}
		f.PlacePod(p, best)
	}
	return left, nil
}
