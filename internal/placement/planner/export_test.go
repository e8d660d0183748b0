package planner

import "github.com/slipway-dev/slipway/internal/placement/snapshot"

// OneByOne is the plain greedy choice: the cheapest node that can go goes, its pods first-fit in the order of names, and
// so on with what that leaves. A pod may be moved again when its new node goes.
func OneByOne(s *snapshot.Snapshot, k int, policy Policy, o Options) (count int, cost float64) {
	p := newPlanRun(s, policy, &o)
	defer p.close()
	candidates := p.listCandidates(&Selection{})
	p.s.Rooms.ArrangeByName()
	for _, c := range candidates {
		if count == k {
			break
		}
		mark := p.fork.Mark()
		_, all, _, _ := p.splitPods(c.node)
		p.fork.Clear(c.node)
		if len(p.placePods(all)) > 0 {
			p.fork.Undo(mark)
			continue
		}
		count++
		cost += c.cost
	}
	return count, cost
}

// HoldsNow reports whether the plan that the ranking remembers of a node still holds.
func (r *Ranking) HoldsNow(name string) bool {
	e := r.entries[name]
	r.s.Rooms.ArrangePlain()
	p := newPlanRun(r.s, r.policy, &r.o)
	defer p.close()
	n := r.s.Nodes.Named(name)
	movers, _ := p.listMovers(n, nil)
	return len(movers) == len(e.targets) && r.isPlanValid(p, n, e)
}
