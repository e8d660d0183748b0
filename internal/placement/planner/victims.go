package planner

import (
	"fmt"
	"slices"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// VictimSelection is the result of SelectVictims.
type VictimSelection struct {
	Policy Policy `json:"policy"`
	// Victims lists the nodes in the order of removal. Cordon all of them first. Then empty them in this order: every
	// pod finds room on the node that its move names.
	Victims []Evacuation `json:"victims"`
	// Skipped lists the evaluated nodes that cannot be removed, with the reason that decided.
	Skipped []SkippedNode `json:"skipped,omitempty"`
	// Cost is the sum of the victims' costs.
	Cost float64 `json:"cost"`

	isOptimal bool // no other choice is better; see isBetterThan
}

// SkippedNode is a node that was evaluated and not chosen.
type SkippedNode struct {
	Node     string    `json:"node"`
	Refusals []Refusal `json:"refusals"`
}

// SelectVictims chooses up to maxVictims nodes that can be removed together. Nodes without groups of pods that lose their
// work together come first, and of these the best by the policy. It evaluates
// each node with the pods of the earlier nodes already moved (invariant I9: nodes chosen together are feasible
// together). Disruption budgets, group sizes and zones are respected for the whole set. No pod is planned to move
// twice.
//
// The choice is greedy, with a second attempt for nodes that were used as targets. It is never worse than a decision on
// one candidate after the other, but it is not always the largest possible set. If s is forked, it plans for the
// cluster with the changes of the fork. It fails if maxVictims is negative.
func SelectVictims(s *snapshot.Snapshot, maxVictims int, policy Policy, o Options) (*VictimSelection, error) {
	if maxVictims < 0 {
		return nil, fmt.Errorf("number of victims is %d: it must not be negative", maxVictims)
	}
	best := runSelection(s, maxVictims, policy, &o, true)
	if best.hasNoRoomRejection() && !best.isOptimal {
		if plain := runSelection(s, maxVictims, policy, &o, false); plain.isBetterThan(best) {
			best = plain
		}
	}
	return best, nil
}

// hasNoRoomRejection reports whether a node was rejected because its pods fit nowhere. Then other targets might help.
func (s *VictimSelection) hasNoRoomRejection() bool {
	for _, p := range s.Skipped {
		for _, r := range p.Refusals {
			if r.Rule == "no-room" {
				return true
			}
		}
	}
	return false
}

// isBetterThan reports whether s removes more nodes than other, or the same number with fewer groups, or with the same
// number of groups at less cost.
func (s *VictimSelection) isBetterThan(other *VictimSelection) bool {
	if len(s.Victims) != len(other.Victims) {
		return len(s.Victims) > len(other.Victims)
	}
	if a, b := s.countGroups(), other.countGroups(); a != b {
		return a < b
	}
	return s.Cost < other.Cost
}

func (s *VictimSelection) countGroups() (n int) {
	for i := range s.Victims {
		n += len(s.Victims[i].Groups)
	}
	return n
}

// chosenVictim is a chosen node. The targets of its pods are read from the snapshot at the end.
type chosenVictim struct {
	candidate
	deletedPods []DeletedPod
	movers      []*filter.Pod
	charges     map[placement.PodKey]int32
}

// runSelection runs one plan. If avoidCandidates is true, it avoids candidates as targets, and tries nodes that received
// pods last. Otherwise it tries targets by name, and candidates in any state.
func runSelection(s *snapshot.Snapshot, maxVictims int, policy Policy, o *Options, avoidCandidates bool) *VictimSelection {
	p := beginPlanRun(s, policy, o)
	defer p.close()
	out := &VictimSelection{Policy: policy}
	candidates := p.listCandidates(out)
	most := p.computeRemovableUpperBound(candidates)
	if avoidCandidates {
		p.orderCandidatesLast(candidates)
	} else {
		p.s.Search.OrderTargetsByName()
	}
	var victims []chosenVictim
	var receivers []candidate
	for _, c := range candidates {
		if len(victims) == maxVictims {
			break
		}
		if avoidCandidates && p.hasReceivedPods(c.node) {
			receivers = append(receivers, c)
			continue
		}
		victims = p.removeOrRejectVictim(victims, c, out)
	}
	for _, c := range receivers {
		if len(victims) < maxVictims {
			victims = p.removeOrRejectVictim(victims, c, out)
		}
	}
	victims = p.makeVictimsExecutable(victims, out)
	p.writeEvacuations(victims, out)
	groups, cost := sumFirst(candidates, len(victims))
	out.isOptimal = avoidCandidates && len(victims) >= min(maxVictims, most) && out.countGroups() <= groups && out.Cost <= cost
	return out
}

// sumFirst returns the lowest possible number of groups of n candidates, and their lowest possible cost with that number.
func sumFirst(sorted []candidate, n int) (groups int, cost float64) {
	for _, c := range sorted[:n] {
		groups += len(c.groups)
		cost += c.cost
	}
	return groups, cost
}

// computeRemovableUpperBound returns an upper bound for the number of removable candidates, from cpu, memory and pod counts.
// Removing a node loses its free capacity and needs room for its pods elsewhere. Both together cannot exceed the
// total free capacity.
func (p *planRun) computeRemovableUpperBound(candidates []candidate) int {
	moving := make([][len(boundedResources)]int64, len(candidates))
	for i, c := range candidates {
		moving[i] = p.sumMovingRequests(c.node)
	}
	bound := len(candidates)
	needs := make([]int64, len(candidates))
	for k, r := range boundedResources {
		var free int64
		for _, n := range p.s.Nodes.SortedByName() {
			if n.CanReceivePods() {
				free += n.FreeAmount(r)
			}
		}
		for i, c := range candidates {
			needs[i] = moving[i][k]
			if c.node.CanReceivePods() {
				needs[i] += c.node.FreeAmount(r)
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

// boundedResources are the resources that computeRemovableUpperBound uses.
var boundedResources = [...]int32{filter.ResourceCPU, filter.ResourceMemory, filter.ResourcePodCount}

// sumMovingRequests returns the amount of each bounded resource that the moving pods of a node request.
func (p *planRun) sumMovingRequests(n *filter.Node) (sums [len(boundedResources)]int64) {
	for _, pod := range n.Pods {
		if fate, _ := p.rules.judgePod(pod); fate != podMoves {
			continue
		}
		for k, r := range boundedResources {
			if r == filter.ResourcePodCount {
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

// listCandidates applies the rules that do not depend on other removals.
func (p *planRun) listCandidates(out *VictimSelection) []candidate {
	list := make([]candidate, 0, p.s.Nodes.Len())
	for _, n := range p.s.Nodes.SortedByName() {
		if n.RemovedByPlan {
			continue
		}
		if refusal := p.findFirstRefusal(n); refusal != nil {
			out.Skipped = append(out.Skipped, SkippedNode{n.Name(), []Refusal{*refusal}})
			continue
		}
		list = append(list, candidate{n, p.listPodGroups(n), p.computeRemovalCost(n)})
	}
	sortCandidates(list)
	return list
}

// findFirstRefusal returns the first rule that forbids the removal of the node alone, or nil.
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
		if fate > podEnds || p.s.PDBs.IsEmpty() {
			continue
		}
		if _, refused := p.s.PDBs.FindPDBToCharge(pod); refused != "" {
			return &Refusal{Rule: "disruption-budget", Pod: pod.Key.String(), Message: refused}
		}
	}
	return nil
}

// hasReceivedPods reports whether the plan has moved pods to a node.
func (p *planRun) hasReceivedPods(n *filter.Node) bool {
	return len(n.Pods) > 0 && n.Pods[len(n.Pods)-1].IsMovedByPlan()
}

// removeOrRejectVictim removes a node in addition to the plan so far, or changes nothing.
func (p *planRun) removeOrRejectVictim(victims []chosenVictim, c candidate, out *VictimSelection) []chosenVictim {
	refusal := p.removeVictimIfAllowed(c, &victims)
	if refusal != nil {
		out.Skipped = append(out.Skipped, SkippedNode{c.node.Name(), []Refusal{*refusal}})
	}
	return victims
}

func (p *planRun) removeVictimIfAllowed(c candidate, victims *[]chosenVictim) *Refusal {
	if refusals := p.groupLimits.listRefusals(c.node); len(refusals) > 0 {
		return &refusals[0]
	}
	own, all, evicted, stays := p.splitPodsByFate(c.node)
	if refusal, _ := p.pdbUsage.chargeEvictionsIfAllowed(&p.s.PDBs, evicted); refusal != nil {
		return refusal
	}
	charges := countCharges(&p.s.PDBs, evicted)
	mark := p.fork.Mark()
	p.fork.RemoveNodeAndPods(c.node)
	if left := p.placePods(all); len(left) > 0 {
		r := p.newUnplacedPodRefusal(left[0])
		p.fork.UndoToMark(mark)
		p.pdbUsage.refundEvictions(&p.s.PDBs, evicted)
		return &r
	}
	p.groupLimits.adjustForRemoval(c.node, 1)
	if len(own) == len(all) {
		own = p.fork.PodsPlacedSince(mark)
	}
	*victims = append(*victims, chosenVictim{c, stays, own, charges})
	return nil
}

// splitPodsByFate returns the node's own pods that move, and the pods that stay. A pod that was moved there before the run is an
// own pod, because no other victim moves it. allMovers also includes the pods that the run has moved there. evicted also
// includes the own pods that nothing recreates.
func (p *planRun) splitPodsByFate(n *filter.Node) (ownMovers, allMovers, evicted []*filter.Pod, stays []DeletedPod) {
	ownMovers = make([]*filter.Pod, 0, len(n.Pods))
	var ending []*filter.Pod
	for _, pod := range n.Pods {
		if p.fork.HasMoved(pod) {
			allMovers = append(allMovers, pod)
			continue
		}
		fate, verdict := p.rules.judgePod(pod)
		switch fate {
		case podMoves, podBlocks:
			ownMovers = append(ownMovers, pod)
			continue
		case podEnds:
			ending = append(ending, pod)
		}
		stays = append(stays, DeletedPod{pod.Key, verdict.Rule.String()})
	}
	p.sortLargestFirst(ownMovers)
	evicted = concatPods(ownMovers, ending)
	if len(allMovers) == 0 {
		return ownMovers, ownMovers, evicted, stays
	}
	allMovers = append(allMovers, ownMovers...)
	p.sortLargestFirst(allMovers)
	return ownMovers, allMovers, evicted, stays
}

// makeVictimsExecutable makes sure that the plan can be executed as written. If no victim had received pods, it can.
// Otherwise the plan is repeated with the final targets, in an order that lets each victim be emptied. A victim
// that cannot be emptied is dropped.
func (p *planRun) makeVictimsExecutable(victims []chosenVictim, out *VictimSelection) []chosenVictim {
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
		out.Skipped = append(out.Skipped, SkippedNode{failed[0].node.Name(), []Refusal{{
			Rule:    "no-room",
			Message: "its pods fit on no node while the other nodes are being drained",
			Remedy:  "plan again after the other nodes are deleted",
		}}})
		p.fork.Reset()
		victims = p.retryVictims(append(ordered, failed[1:]...), out)
	}
	return victims
}

// hasMovedPodTwice reports whether a later victim moved pods of an earlier victim again.
func (p *planRun) hasMovedPodTwice(victims []chosenVictim) bool {
	own := 0
	for _, v := range victims {
		own += len(v.movers)
	}
	return p.fork.PlacementCount() != own
}

// replayVictims empties the victims. It moves each pod to its given target, or to another if it does not fit. In each
// step it empties the first victim that can be emptied. It returns the victims in this order, each with its pods in
// the order of placement, and the victims that could not be emptied.
func (p *planRun) replayVictims(victims []chosenVictim, targets map[*filter.Pod]int32) (ordered, failed []chosenVictim) {
	removed := make(map[int32]bool, len(victims))
	for _, v := range victims {
		removed[v.node.ID] = true
	}
	p.excludeFromSearchOrder(removed)
	left := slices.Clone(victims)
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(v chosenVictim) bool { return p.tryEmptyVictim(v, targets, removed) })
		if i < 0 {
			return ordered, left
		}
		v := left[i]
		v.movers = p.fork.PodsPlacedSince(p.removalMark)
		ordered = append(ordered, v)
		left = slices.Delete(left, i, i+1)
	}
	return ordered, nil
}

// tryEmptyVictim removes one victim, or changes nothing. removalMark is the mark before it.
func (p *planRun) tryEmptyVictim(v chosenVictim, targets map[*filter.Pod]int32, removed map[int32]bool) (emptied bool) {
	p.removalMark = p.fork.Mark()
	p.fork.RemoveNodeAndPods(v.node)
	var displaced []*filter.Pod
	for _, pod := range v.movers {
		if n := p.s.Nodes.ByID(targets[pod]); !removed[n.ID] && p.s.FitsOn(pod.Class, pod.UID, n) {
			p.fork.PlacePod(pod, n)
		} else {
			displaced = append(displaced, pod)
		}
	}
	if len(p.placePods(displaced)) > 0 {
		p.fork.UndoToMark(p.removalMark)
		return false
	}
	return true
}

// excludeFromSearchOrder removes nodes from the search order.
func (p *planRun) excludeFromSearchOrder(removed map[int32]bool) {
	order := make([]int32, 0, len(p.s.Search.Order))
	for _, id := range p.s.Search.Order {
		if !removed[id] {
			order = append(order, id)
		}
	}
	p.s.Search.SetOrder(order)
}

// retryVictims tries the victims without the earlier targets, and drops those that cannot be removed.
func (p *planRun) retryVictims(victims []chosenVictim, out *VictimSelection) []chosenVictim {
	p.pdbUsage, p.groupLimits = p.rules.PDBUsage.clone(), newRemovalLimits(p.s, p.rules.Options)
	var kept []chosenVictim
	for _, v := range victims {
		kept = p.removeOrRejectVictim(kept, v.candidate, out)
	}
	return kept
}

// writeEvacuations writes the plan into the result.
func (p *planRun) writeEvacuations(victims []chosenVictim, out *VictimSelection) {
	out.Victims = make([]Evacuation, len(victims))
	for i, v := range victims {
		e := Evacuation{Node: v.node.Name(), Cost: v.cost, Groups: v.groups, DeletedPods: v.deletedPods, Moves: make([]Move, len(v.movers)), charges: v.charges}
		for j, pod := range v.movers {
			e.Moves[j] = Move{pod.Key, p.s.Nodes.ByID(pod.Node).Name()}
		}
		out.Cost += v.cost
		out.Victims[i] = e
	}
}
