package planner

import (
	"fmt"
	"slices"

	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Selection is the answer of Victims.
type Selection struct {
	Policy Policy `json:"policy"`
	// Victims are the nodes to remove, in the order in which to remove them. All of them are to be cordoned first; then
	// each can be emptied in turn, every pod finding the place that its move names.
	Victims []Evacuation `json:"victims"`
	// Passed lists the nodes that were looked at and cannot go along, with the reason that decided.
	Passed []Passed `json:"passed,omitempty"`
	// Cost is the sum of the victims' costs.
	Cost float64 `json:"cost"`

	isOptimal bool // no choice could remove more nodes, or as many at less cost
}

// Passed is a node that was looked at and not chosen.
type Passed struct {
	Node     string    `json:"node"`
	Refusals []Refusal `json:"refusals"`
}

// Victims chooses up to k nodes that can go together, best first by the policy: each one is judged with the pods of
// those before it already moved (invariant I9), and budgets, group sizes and zones hold for the whole set. No pod is
// planned to move twice. The choice is greedy with a second look at nodes that had been taken as targets; it is never
// worse than going through the candidates one by one, and it is not promised to be the largest set there is. Asked in a
// fork, it answers for what the fork has made of the cluster.
func Victims(s *snapshot.Snapshot, k int, policy Policy, o Options) (*Selection, error) {
	if k < 0 {
		return nil, fmt.Errorf("number of victims is %d: it must not be negative", k)
	}
	best := runSelection(s, k, policy, &o, true)
	if best.lacksRoom() && !best.isOptimal {
		if plain := runSelection(s, k, policy, &o, false); plain.isBetterThan(best) {
			best = plain
		}
	}
	return best, nil
}

// lacksRoom reports whether a node was passed over because its pods found no place, so that other places might matter.
func (s *Selection) lacksRoom() bool {
	for _, p := range s.Passed {
		for _, r := range p.Refusals {
			if r.Rule == "no-room" {
				return true
			}
		}
	}
	return false
}

// isBetterThan reports whether s removes more nodes than other, or as many at less cost.
func (s *Selection) isBetterThan(other *Selection) bool {
	if len(s.Victims) != len(other.Victims) {
		return len(s.Victims) > len(other.Victims)
	}
	return s.Cost < other.Cost
}

// chosenVictim is a victim under construction. Where its pods go is read off them at the end.
type chosenVictim struct {
	candidate
	stays  []Stay
	movers []*filter.Pod
}

// runSelection runs one plan. considerate keeps pods away from nodes that may go, and passes over nodes that have received
// any at first; otherwise targets are tried in the order of their names and any node may go at any time.
func runSelection(s *snapshot.Snapshot, k int, policy Policy, o *Options, considerate bool) *Selection {
	p := newPlanRun(s, policy, o)
	defer p.close()
	out := &Selection{Policy: policy}
	candidates := p.listCandidates(out)
	most := p.countRemovable(candidates)
	if considerate {
		p.arrangeTargets(candidates)
	} else {
		p.s.Rooms.ArrangeByName()
	}
	var victims []chosenVictim
	var receivers []candidate
	for _, c := range candidates {
		if len(victims) == k {
			break
		}
		if considerate && p.hasReceivedPods(c.node) {
			receivers = append(receivers, c)
			continue
		}
		victims = p.tryVictim(victims, c, out)
	}
	for _, c := range receivers {
		if len(victims) < k {
			victims = p.tryVictim(victims, c, out)
		}
	}
	victims = p.ensureExecutable(victims, out)
	p.writeEvacuations(victims, out)
	out.isOptimal = considerate && len(victims) >= min(k, most) && out.Cost <= minCost(candidates, len(victims))
	return out
}

// minCost is the least that any choice of n candidates can cost.
func minCost(candidates []candidate, n int) float64 {
	var cost float64
	for _, c := range candidates[:n] {
		cost += c.cost
	}
	return cost
}

// countRemovable bounds how many candidates can go at all: removing a node gives up what is free on it, and needs what its pods
// take elsewhere; both together cannot exceed all that is free. The bound counts cpu, memory and pods.
func (p *planRun) countRemovable(candidates []candidate) int {
	moving := make([][len(boundedResources)]int64, len(candidates))
	for i, c := range candidates {
		moving[i] = p.sumMoving(c.node)
	}
	bound := len(candidates)
	needs := make([]int64, len(candidates))
	for k, r := range boundedResources {
		var free int64
		for _, n := range p.s.Nodes.InOrder() {
			if n.Target() {
				free += n.Free(r)
			}
		}
		for i, c := range candidates {
			needs[i] = moving[i][k]
			if c.node.Target() {
				needs[i] += c.node.Free(r)
			}
		}
		slices.Sort(needs)
		fits := 0
		for fits < len(needs) && needs[fits] <= free {
			free -= needs[fits]
			fits++
		}
		bound = min(bound, fits)
	}
	return bound
}

// boundedResources are the resources that most counts.
var boundedResources = [...]int32{filter.ResourceCPU, filter.ResourceMemory, filter.PodCount}

// sumMoving is how much of each bounding resource the pods take that have to move when a node goes.
func (p *planRun) sumMoving(n *filter.Node) (sums [len(boundedResources)]int64) {
	for _, pod := range n.Pods {
		if fate, _ := p.rules.judgePod(pod); fate != podMoves {
			continue
		}
		for k, r := range boundedResources {
			if r == filter.PodCount {
				sums[k]++
			}
			for _, a := range pod.Class.Requests {
				if a.Resource == r {
					sums[k] += a.Value
				}
			}
		}
	}
	return sums
}

// listCandidates applies the rules that do not depend on what else goes.
func (p *planRun) listCandidates(out *Selection) []candidate {
	list := make([]candidate, 0, p.s.Nodes.Len())
	for _, n := range p.s.Nodes.InOrder() {
		if n.Out {
			continue
		}
		if refusal := p.findFirstRefusal(n); refusal != nil {
			out.Passed = append(out.Passed, Passed{n.Name(), []Refusal{*refusal}})
			continue
		}
		list = append(list, candidate{n, p.computeCost(n)})
	}
	sortCandidates(list)
	return list
}

// findFirstRefusal is the first rule against a node by itself; nil when there is none.
func (p *planRun) findFirstRefusal(n *filter.Node) *Refusal {
	if refusals := p.rules.listNodeRefusals(n); len(refusals) > 0 {
		return &refusals[0]
	}
	for _, pod := range n.Pods {
		fate, verdict := p.rules.judgePod(pod)
		if fate == podBlocks {
			r := p.rules.newPodRefusal(pod, verdict)
			return &r
		}
		if fate > podEnds || p.s.Budgets.Empty() {
			continue
		}
		if _, refused := p.s.Budgets.Charge(pod); refused != "" {
			return &Refusal{Rule: "disruption-budget", Pod: pod.Key.String(), Text: refused}
		}
	}
	return nil
}

// hasReceivedPods reports whether the plan has sent pods to a node.
func (p *planRun) hasReceivedPods(n *filter.Node) bool {
	return len(n.Pods) > 0 && n.Pods[len(n.Pods)-1].Moved
}

// tryVictim takes a node away on top of what the plan has done, or leaves everything as it was.
func (p *planRun) tryVictim(victims []chosenVictim, c candidate, out *Selection) []chosenVictim {
	refusal := p.removeVictim(c, &victims)
	if refusal != nil {
		out.Passed = append(out.Passed, Passed{c.node.Name(), []Refusal{*refusal}})
	}
	return victims
}

func (p *planRun) removeVictim(c candidate, victims *[]chosenVictim) *Refusal {
	if refusals := p.groupLimits.listRefusals(c.node); len(refusals) > 0 {
		return &refusals[0]
	}
	own, all, evicted, stays := p.splitPods(c.node)
	if b, needs := p.pdbUsage.chargePods(&p.s.Budgets, evicted); b != nil {
		r := newPDBRefusal(b, needs-p.pdbUsage[b], b.Allowed-p.pdbUsage[b])
		return &r
	}
	mark := p.fork.Mark()
	p.fork.Clear(c.node)
	if left := p.placePods(all); len(left) > 0 {
		r := p.newNoRoomRefusal(left[0])
		p.fork.Undo(mark)
		p.pdbUsage.refundPods(&p.s.Budgets, evicted)
		return &r
	}
	p.groupLimits.countRemoval(c.node, 1)
	if len(own) == len(all) {
		own = p.fork.PlacedSince(mark)
	}
	*victims = append(*victims, chosenVictim{c, stays, own})
	return nil
}

// splitPods tells the node's own pods that move from those that go with it; all adds the pods that the plan has sent there, and
// evicted the own pods that nothing creates anew.
func (p *planRun) splitPods(n *filter.Node) (own, all, evicted []*filter.Pod, stays []Stay) {
	own = make([]*filter.Pod, 0, len(n.Pods))
	var ending []*filter.Pod
	for _, pod := range n.Pods {
		if pod.Moved {
			all = append(all, pod)
			continue
		}
		fate, verdict := p.rules.judgePod(pod)
		switch fate {
		case podMoves, podBlocks:
			own = append(own, pod)
			continue
		case podEnds:
			ending = append(ending, pod)
		}
		stays = append(stays, Stay{pod.Key, verdict.Rule.String()})
	}
	p.sortLargestFirst(own)
	evicted = concatPods(own, ending)
	if len(all) == 0 {
		return own, own, evicted, stays
	}
	all = append(all, own...)
	p.sortLargestFirst(all)
	return own, all, evicted, stays
}

// ensureExecutable makes sure that the plan can be carried out as written. As long as no victim had received pods before, it was
// built exactly as it will be carried out. Otherwise it is played again with the final places, in an order in which each
// victim can be emptied at its turn; a victim that cannot at any is left out.
func (p *planRun) ensureExecutable(victims []chosenVictim, out *Selection) []chosenVictim {
	for p.hasMovedPodTwice(victims) {
		places := make(map[*filter.Pod]int32)
		for _, v := range victims {
			for _, pod := range v.movers {
				places[pod] = pod.Node
			}
		}
		p.fork.Reset()
		ordered, failed := p.replayVictims(victims, places)
		if len(failed) == 0 {
			return ordered
		}
		out.Passed = append(out.Passed, Passed{failed[0].node.Name(), []Refusal{{
			Rule:   "no-room",
			Text:   "its pods find no place while the other nodes are being emptied",
			Remedy: "plan again once the others are gone",
		}}})
		p.fork.Reset()
		victims = p.retryVictims(append(ordered, failed[1:]...), out)
	}
	return victims
}

// hasMovedPodTwice reports whether pods of an early victim have been moved on when a later one was taken.
func (p *planRun) hasMovedPodTwice(victims []chosenVictim) bool {
	own := 0
	for _, v := range victims {
		own += len(v.movers)
	}
	return p.fork.Placed() != own
}

// replayVictims empties the victims, sending each pod to its given place or, where it does not fit there, to another. At each
// turn the first victim goes that can be emptied. It returns the victims in the order in which they went, each with its
// pods in the order in which they were placed, and those that could not go.
func (p *planRun) replayVictims(victims []chosenVictim, places map[*filter.Pod]int32) (ordered, failed []chosenVictim) {
	doomed := make(map[int32]bool, len(victims))
	for _, v := range victims {
		doomed[v.node.ID] = true
	}
	p.excludeTargets(doomed)
	left := slices.Clone(victims)
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(v chosenVictim) bool { return p.emptyVictim(v, places, doomed) })
		if i < 0 {
			return ordered, left
		}
		v := left[i]
		v.movers = p.fork.PlacedSince(p.removalMark)
		ordered = append(ordered, v)
		left = slices.Delete(left, i, i+1)
	}
	return ordered, nil
}

// emptyVictim takes one victim away, or leaves everything as it was. turn marks where it began.
func (p *planRun) emptyVictim(v chosenVictim, places map[*filter.Pod]int32, doomed map[int32]bool) bool {
	p.removalMark = p.fork.Mark()
	p.fork.Clear(v.node)
	var displaced []*filter.Pod
	for _, pod := range v.movers {
		if n := p.s.Nodes.At(places[pod]); !doomed[n.ID] && p.s.Fits(pod.Class, pod.UID, n) {
			p.fork.Put(pod, n)
		} else {
			displaced = append(displaced, pod)
		}
	}
	if len(p.placePods(displaced)) > 0 {
		p.fork.Undo(p.removalMark)
		return false
	}
	return true
}

// excludeTargets arranges the targets that are left when some nodes are to go.
func (p *planRun) excludeTargets(doomed map[int32]bool) {
	order := make([]int32, 0, len(p.s.Rooms.Order))
	for _, id := range p.s.Rooms.Order {
		if !doomed[id] {
			order = append(order, id)
		}
	}
	p.s.Rooms.Arrange(order)
}

// retryVictims plays victims without regard for earlier places, leaving out what no longer goes.
func (p *planRun) retryVictims(victims []chosenVictim, out *Selection) []chosenVictim {
	p.pdbUsage, p.groupLimits = pdbUsage{}, newGroupLimits(p.s, p.rules.Options)
	var kept []chosenVictim
	for _, v := range victims {
		kept = p.tryVictim(kept, v.candidate, out)
	}
	return kept
}

// writeEvacuations turns the plan as it stands into the answer.
func (p *planRun) writeEvacuations(victims []chosenVictim, out *Selection) {
	out.Victims = make([]Evacuation, len(victims))
	for i, v := range victims {
		e := Evacuation{Node: v.node.Name(), Cost: v.cost, Stays: v.stays, Moves: make([]Move, len(v.movers))}
		for j, pod := range v.movers {
			e.Moves[j] = Move{pod.Key, p.s.Nodes.At(pod.Node).Name()}
		}
		out.Cost += v.cost
		out.Victims[i] = e
	}
}
