package planner

import (
	"cmp"
	"slices"

	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Rank is the entry of one node in a ranking.
type Rank struct {
	Node string  `json:"node"`
	Cost float64 `json:"cost"`
	// Groups is the number of groups of pods that lose their work together and have pods on the node.
	Groups int `json:"groups,omitempty"`
	// Removable reports whether the node alone can be removed now.
	Removable bool `json:"removable"`
	// Rule is the rule that forbids the removal. Pod is the pod that it concerns, if any. Message says more. It is empty for a pod
	// without room, because its reasons are on all other nodes.
	Rule    string `json:"rule,omitempty"`
	Pod     string `json:"pod,omitempty"`
	Message string `json:"message,omitempty"`
}

// RankNodes evaluates the removal of every node alone, with the group limits of the options. It returns the removable
// nodes by their number of groups and by cost, then the other nodes by name.
func RankNodes(s *snapshot.Snapshot, policy Policy, o Options) []Rank {
	gone := func(n *filter.Node) bool { return n.RemovedByPlan } // removed by a fork
	nodes := slices.DeleteFunc(slices.Clone(s.Nodes.SortedByName()), gone)
	if len(nodes) == 0 {
		return nil
	}
	s.Search.UseDefaultOrder()
	// Update the bitmaps before the plan, so that they stay valid after each reset.
	q := newRuleEvaluation(s, &o)
	for _, n := range nodes {
		for _, pod := range n.Pods {
			if fate, _ := q.judgePod(pod); fate == podMoves {
				s.Search.UpdateCandidateBitmap(pod.Class)
			}
		}
	}
	p := beginPlanRun(s, policy, &o)
	defer p.close()
	list := make([]Rank, 0, len(nodes))
	for _, n := range nodes {
		list = append(list, p.rankNode(n))
		p.fork.Reset()
	}
	slices.SortFunc(list, compareRanks)
	return list
}

func (p *planRun) rankNode(n *filter.Node) Rank {
	r := Rank{Node: n.Name(), Cost: p.computeRemovalCost(n), Groups: len(p.listPodGroups(n))}
	if refusal := p.findFirstRefusal(n); refusal != nil {
		r.Rule, r.Pod, r.Message = refusal.Rule, refusal.Pod, refusal.Message
		return r
	}
	if refusals := p.groupLimits.listRefusals(n); len(refusals) > 0 {
		r.Rule, r.Message = refusals[0].Rule, refusals[0].Message
		return r
	}
	movers, evicted := p.listMovingAndEvictedPods(n, nil)
	if refusal, pod := p.pdbUsage.chargeEvictionsIfAllowed(&p.s.PDBs, evicted); refusal != nil {
		r.Rule, r.Pod, r.Message = refusal.Rule, pod.Key.String(), refusal.Message
		return r
	}
	p.pdbUsage.refundEvictions(&p.s.PDBs, evicted)
	p.fork.RemoveNodeAndPods(n)
	if left := p.placePods(movers); len(left) > 0 {
		r.Rule, r.Pod = "no-room", left[0].Key.String()
		return r
	}
	r.Removable = true
	return r
}

func compareRanks(a, b Rank) int {
	switch {
	case a.Removable && !b.Removable:
		return -1
	case b.Removable && !a.Removable:
		return 1
	case !a.Removable:
		return cmp.Compare(a.Node, b.Node)
	default:
		return cmp.Or(a.Groups-b.Groups, cmp.Compare(a.Cost, b.Cost), cmp.Compare(a.Node, b.Node))
	}
}
