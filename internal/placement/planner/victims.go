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

	optimal bool // no choice could remove more nodes, or as many at less cost
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
	best := choose(s, k, policy, &o, true)
	if best.crowded() && !best.optimal {
		if plain := choose(s, k, policy, &o, false); plain.better(best) {
			best = plain
		}
	}
	return best, nil
}

// crowded reports whether a node was passed over because its pods found no place, so that other places might matter.
func (s *Selection) crowded() bool {
	for _, p := range s.Passed {
		for _, r := range p.Refusals {
			if r.Rule == "no-room" {
				return true
			}
		}
	}
	return false
}

// better reports whether s removes more nodes than other, or as many at less cost.
func (s *Selection) better(other *Selection) bool {
	if len(s.Victims) != len(other.Victims) {
		return len(s.Victims) > len(other.Victims)
	}
	return s.Cost < other.Cost
}

// chosen is a victim under construction. Where its pods go is read off them at the end.
type chosen struct {
	candidate
	stays  []Stay
	movers []*filter.Pod
}

// choose runs one plan. considerate keeps pods away from nodes that may go, and passes over nodes that have received
// any at first; otherwise targets are tried in the order of their names and any node may go at any time.
func choose(s *snapshot.Snapshot, k int, policy Policy, o *Options, considerate bool) *Selection {
	p := newPlanner(s, policy, o)
	defer p.close()
	out := &Selection{Policy: policy}
	candidates := p.candidates(out)
	most := p.most(candidates)
	if considerate {
		p.arrangeTargets(candidates)
	} else {
		p.s.Rooms.ArrangeByName()
	}
	var victims []chosen
	var receivers []candidate
	for _, c := range candidates {
		if len(victims) == k {
			break
		}
		if considerate && p.received(c.node) {
			receivers = append(receivers, c)
			continue
		}
		victims = p.try(victims, c, out)
	}
	for _, c := range receivers {
		if len(victims) < k {
			victims = p.try(victims, c, out)
		}
	}
	victims = p.settle(victims, out)
	p.write(victims, out)
	out.optimal = considerate && len(victims) >= min(k, most) && out.Cost <= cheapest(candidates, len(victims))
	return out
}

// cheapest is the least that any choice of n candidates can cost.
func cheapest(candidates []candidate, n int) float64 {
	var cost float64
	for _, c := range candidates[:n] {
		cost += c.cost
	}
	return cost
}

// most bounds how many candidates can go at all: removing a node gives up what is free on it, and needs what its pods
// take elsewhere; both together cannot exceed all that is free. The bound counts cpu, memory and pods.
func (p *planner) most(candidates []candidate) int {
	moving := make([][len(bounding)]int64, len(candidates))
	for i, c := range candidates {
		moving[i] = p.moving(c.node)
	}
	bound := len(candidates)
	needs := make([]int64, len(candidates))
	for k, r := range bounding {
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

// bounding are the resources that most counts.
var bounding = [...]int32{filter.ResourceCPU, filter.ResourceMemory, filter.PodCount}

// moving is how much of each bounding resource the pods take that have to move when a node goes.
func (p *planner) moving(n *filter.Node) (sums [len(bounding)]int64) {
	for _, pod := range n.Pods {
		if fate, _ := p.q.fate(pod); fate != fateMoves {
			continue
		}
		for k, r := range bounding {
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

// candidates applies the rules that do not depend on what else goes.
func (p *planner) candidates(out *Selection) []candidate {
	list := make([]candidate, 0, p.s.Nodes.Len())
	for _, n := range p.s.Nodes.InOrder() {
		if n.Out {
			continue
		}
		if refusal := p.firstRefusal(n); refusal != nil {
			out.Passed = append(out.Passed, Passed{n.Name(), []Refusal{*refusal}})
			continue
		}
		list = append(list, candidate{n, p.cost(n)})
	}
	inOrder(list)
	return list
}

// firstRefusal is the first rule against a node by itself; nil when there is none.
func (p *planner) firstRefusal(n *filter.Node) *Refusal {
	if refusals := p.q.nodeRefusals(n); len(refusals) > 0 {
		return &refusals[0]
	}
	for _, pod := range n.Pods {
		fate, verdict := p.q.fate(pod)
		if fate == fateBlocked {
			r := p.q.podRefusal(pod, verdict)
			return &r
		}
		if fate > fateEnds || p.s.Budgets.Empty() {
			continue
		}
		if _, refused := p.s.Budgets.Charge(pod); refused != "" {
			return &Refusal{Rule: "disruption-budget", Pod: pod.Key.String(), Text: refused}
		}
	}
	return nil
}

// received reports whether the plan has sent pods to a node.
func (p *planner) received(n *filter.Node) bool {
	return len(n.Pods) > 0 && n.Pods[len(n.Pods)-1].Moved
}

// try takes a node away on top of what the plan has done, or leaves everything as it was.
func (p *planner) try(victims []chosen, c candidate, out *Selection) []chosen {
	refusal := p.take(c, &victims)
	if refusal != nil {
		out.Passed = append(out.Passed, Passed{c.node.Name(), []Refusal{*refusal}})
	}
	return victims
}

func (p *planner) take(c candidate, victims *[]chosen) *Refusal {
	if refusals := p.limits.refusals(c.node); len(refusals) > 0 {
		return &refusals[0]
	}
	own, all, evicted, stays := p.split(c.node)
	if b, needs := p.ledger.afford(&p.s.Budgets, evicted); b != nil {
		r := shortBudget(b, needs-p.ledger[b], b.Allowed-p.ledger[b])
		return &r
	}
	mark := p.fork.Mark()
	p.fork.Clear(c.node)
	if left := p.place(all); len(left) > 0 {
		r := p.noRoom(left[0])
		p.fork.Undo(mark)
		p.ledger.refund(&p.s.Budgets, evicted)
		return &r
	}
	p.limits.take(c.node, 1)
	if len(own) == len(all) {
		own = p.fork.PlacedSince(mark)
	}
	*victims = append(*victims, chosen{c, stays, own})
	return nil
}

// split tells the node's own pods that move from those that go with it; all adds the pods that the plan has sent there, and
// evicted the own pods that nothing creates anew.
func (p *planner) split(n *filter.Node) (own, all, evicted []*filter.Pod, stays []Stay) {
	own = make([]*filter.Pod, 0, len(n.Pods))
	var ending []*filter.Pod
	for _, pod := range n.Pods {
		if pod.Moved {
			all = append(all, pod)
			continue
		}
		fate, verdict := p.q.fate(pod)
		switch fate {
		case fateMoves, fateBlocked:
			own = append(own, pod)
			continue
		case fateEnds:
			ending = append(ending, pod)
		}
		stays = append(stays, Stay{pod.Key, verdict.Rule.String()})
	}
	p.largestFirst(own)
	evicted = concat(own, ending)
	if len(all) == 0 {
		return own, own, evicted, stays
	}
	all = append(all, own...)
	p.largestFirst(all)
	return own, all, evicted, stays
}

// settle makes sure that the plan can be carried out as written. As long as no victim had received pods before, it was
// built exactly as it will be carried out. Otherwise it is played again with the final places, in an order in which each
// victim can be emptied at its turn; a victim that cannot at any is left out.
func (p *planner) settle(victims []chosen, out *Selection) []chosen {
	for p.reshuffled(victims) {
		places := make(map[*filter.Pod]int32)
		for _, v := range victims {
			for _, pod := range v.movers {
				places[pod] = pod.Node
			}
		}
		p.fork.Reset()
		ordered, failed := p.replay(victims, places)
		if len(failed) == 0 {
			return ordered
		}
		out.Passed = append(out.Passed, Passed{failed[0].node.Name(), []Refusal{{
			Rule:   "no-room",
			Text:   "its pods find no place while the other nodes are being emptied",
			Remedy: "plan again once the others are gone",
		}}})
		p.fork.Reset()
		victims = p.again(append(ordered, failed[1:]...), out)
	}
	return victims
}

// reshuffled reports whether pods of an early victim have been moved on when a later one was taken.
func (p *planner) reshuffled(victims []chosen) bool {
	own := 0
	for _, v := range victims {
		own += len(v.movers)
	}
	return p.fork.Placed() != own
}

// replay empties the victims, sending each pod to its given place or, where it does not fit there, to another. At each
// turn the first victim goes that can be emptied. It returns the victims in the order in which they went, each with its
// pods in the order in which they were placed, and those that could not go.
func (p *planner) replay(victims []chosen, places map[*filter.Pod]int32) (ordered, failed []chosen) {
	doomed := make(map[int32]bool, len(victims))
	for _, v := range victims {
		doomed[v.node.ID] = true
	}
	p.excluding(doomed)
	left := slices.Clone(victims)
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(v chosen) bool { return p.empty(v, places, doomed) })
		if i < 0 {
			return ordered, left
		}
		v := left[i]
		v.movers = p.fork.PlacedSince(p.turn)
		ordered = append(ordered, v)
		left = slices.Delete(left, i, i+1)
	}
	return ordered, nil
}

// empty takes one victim away, or leaves everything as it was. turn marks where it began.
func (p *planner) empty(v chosen, places map[*filter.Pod]int32, doomed map[int32]bool) bool {
	p.turn = p.fork.Mark()
	p.fork.Clear(v.node)
	var displaced []*filter.Pod
	for _, pod := range v.movers {
		if n := p.s.Nodes.At(places[pod]); !doomed[n.ID] && p.s.Fits(pod.Class, pod.UID, n) {
			p.fork.Put(pod, n)
		} else {
			displaced = append(displaced, pod)
		}
	}
	if len(p.place(displaced)) > 0 {
		p.fork.Undo(p.turn)
		return false
	}
	return true
}

// excluding arranges the targets that are left when some nodes are to go.
func (p *planner) excluding(doomed map[int32]bool) {
	order := make([]int32, 0, len(p.s.Rooms.Order))
	for _, id := range p.s.Rooms.Order {
		if !doomed[id] {
			order = append(order, id)
		}
	}
	p.s.Rooms.Arrange(order)
}

// again plays victims without regard for earlier places, leaving out what no longer goes.
func (p *planner) again(victims []chosen, out *Selection) []chosen {
	p.ledger, p.limits = ledger{}, newLimits(p.s, p.q.Options)
	var kept []chosen
	for _, v := range victims {
		kept = p.try(kept, v.candidate, out)
	}
	return kept
}

// write turns the plan as it stands into the answer.
func (p *planner) write(victims []chosen, out *Selection) {
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
