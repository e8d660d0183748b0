package planner

import "github.com/slipway-dev/slipway/internal/placement/snapshot"

// SelectGreedily is the plain greedy choice. It removes the cheapest removable node, places its pods first-fit by node
// name, and repeats. A pod can move again when its new node is removed.
func SelectGreedily(s *snapshot.Snapshot, k int, policy Policy, o Options) (count int, cost float64) {
	p := beginPlanRun(s, policy, &o)
	defer p.close()
	candidates := p.listCandidates(&VictimSelection{})
	p.s.Search.OrderTargetsByName()
	for _, c := range candidates {
		if count == k {
			break
		}
		mark := p.fork.Mark()
		_, all, _, _ := p.splitPodsByFate(c.node)
		p.fork.RemoveNodeAndPods(c.node)
		if len(p.placePods(all)) > 0 {
			p.fork.UndoToMark(mark)
			continue
		}
		count++
		cost += c.cost
	}
	return count, cost
}
