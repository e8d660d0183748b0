package placement

import (
	"fmt"
	"slices"
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
func (s *Snapshot) Victims(k int, policy Policy, o Options) (*Selection, error) {
	if k < 0 {
		return nil, fmt.Errorf("number of victims is %d: it must not be negative", k)
	}
	best := s.victims(k, policy, &o, true)
	if best.crowded() && !best.optimal {
		if plain := s.victims(k, policy, &o, false); plain.better(best) {
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
	movers []*pod
}

// victims runs one plan. considerate keeps pods away from nodes that may go, and passes over nodes that have received
// any at first; otherwise targets are tried in the order of their names and any node may go at any time.
func (s *Snapshot) victims(k int, policy Policy, o *Options, considerate bool) *Selection {
	p := s.newPlanner(policy, o)
	defer p.close()
	out := &Selection{Policy: policy}
	candidates := p.candidates(out)
	most := p.most(candidates)
	if considerate {
		p.arrangeTargets(candidates)
	} else {
		p.s.arrangeByName()
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
		for _, n := range p.s.nodes {
			if p.s.target(n) {
				free += n.free(r)
			}
		}
		for i, c := range candidates {
			needs[i] = moving[i][k]
			if p.s.target(c.node) {
				needs[i] += c.node.free(r)
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

// podCount stands for the number of pods among the resources.
const podCount int32 = -1

// bounding are the resources that most counts.
var bounding = [...]int32{resourceCPU, resourceMemory, podCount}

// free is what is left of a resource, never less than nothing.
func (n *node) free(r int32) int64 {
	if r == podCount {
		return max(0, n.maxPods-int64(len(n.pods)))
	}
	return max(0, at(n.allocatable, r)-at(n.used, r))
}

// moving is how much of each bounding resource the pods take that have to move when a node goes.
func (p *planner) moving(n *node) (sums [len(bounding)]int64) {
	for _, pod := range n.pods {
		if fate, _ := p.o.fate(pod); fate != fateMoves {
			continue
		}
		for k, r := range bounding {
			if r == podCount {
				sums[k]++
			}
			for _, a := range pod.class.requests {
				if a.resource == r {
					sums[k] += a.value
				}
			}
		}
	}
	return sums
}

// candidates applies the rules that do not depend on what else goes.
func (p *planner) candidates(out *Selection) []candidate {
	list := make([]candidate, 0, len(p.s.nodeByName))
	for _, n := range p.s.byName() {
		if n.out {
			continue
		}
		if refusal := p.firstRefusal(n); refusal != nil {
			out.Passed = append(out.Passed, Passed{n.name(), []Refusal{*refusal}})
			continue
		}
		list = append(list, candidate{n, p.cost(n)})
	}
	inOrder(list)
	return list
}

// firstRefusal is the first rule against a node by itself; nil when there is none.
func (p *planner) firstRefusal(n *node) *Refusal {
	for i := range nodeRules {
		if r := nodeRules[i].judge(p.s, n, p.o); r != nil {
			return r
		}
	}
	for _, pod := range n.pods {
		fate, rule := p.o.fate(pod)
		if fate == fateBlocked {
			r := podRefusal(pod, rule)
			return &r
		}
		if fate != fateMoves || len(p.s.budgets) == 0 {
			continue
		}
		if _, refused := p.s.charge(pod); refused != "" {
			return &Refusal{Rule: "disruption-budget", Pod: pod.key.String(), Text: refused}
		}
	}
	return nil
}

// received reports whether the plan has sent pods to a node.
func (p *planner) received(n *node) bool {
	return len(n.pods) > 0 && n.pods[len(n.pods)-1].moved
}

// try takes a node away on top of what the plan has done, or leaves everything as it was.
func (p *planner) try(victims []chosen, c candidate, out *Selection) []chosen {
	refusal := p.take(c, &victims)
	if refusal != nil {
		out.Passed = append(out.Passed, Passed{c.node.name(), []Refusal{*refusal}})
	}
	return victims
}

func (p *planner) take(c candidate, victims *[]chosen) *Refusal {
	if !p.limits.allow(c.node) {
		return &p.limits.refusals(c.node)[0]
	}
	own, all, stays := p.split(c.node)
	if b, needs := p.ledger.afford(p.s, own); b != nil {
		r := shortBudget(b, needs-p.ledger[b], b.allowed-p.ledger[b])
		return &r
	}
	mark := len(p.s.log)
	p.clear(c.node)
	if left := p.place(all); len(left) > 0 {
		r := p.noRoom(left[0])
		p.s.undo(mark)
		p.ledger.refund(p.s, own)
		return &r
	}
	p.limits.take(c.node, 1)
	if len(own) == len(all) {
		own = p.placedSince(mark)
	}
	*victims = append(*victims, chosen{c, stays, own})
	return nil
}

// split tells the node's own pods that move from those that go with it; all adds the pods that the plan has sent there.
func (p *planner) split(n *node) (own, all []*pod, stays []Stay) {
	own = make([]*pod, 0, len(n.pods))
	for _, pod := range n.pods {
		fate, rule := p.o.fate(pod)
		switch {
		case pod.moved:
			all = append(all, pod)
		case fate == fateStays:
			stays = append(stays, Stay{pod.key, rule.name})
		default:
			own = append(own, pod)
		}
	}
	p.s.largestFirst(own)
	if len(all) == 0 {
		return own, own, stays
	}
	all = append(all, own...)
	p.s.largestFirst(all)
	return own, all, stays
}

// settle makes sure that the plan can be carried out as written. As long as no victim had received pods before, it was
// built exactly as it will be carried out. Otherwise it is played again with the final places, in an order in which each
// victim can be emptied at its turn; a victim that cannot at any is left out.
func (p *planner) settle(victims []chosen, out *Selection) []chosen {
	for p.reshuffled(victims) {
		places := make(map[*pod]int32)
		for _, v := range victims {
			for _, pod := range v.movers {
				places[pod] = pod.node
			}
		}
		p.s.undo(p.fork.mark)
		ordered, failed := p.replay(victims, places)
		if len(failed) == 0 {
			return ordered
		}
		out.Passed = append(out.Passed, Passed{failed[0].node.name(), []Refusal{{
			Rule:   "no-room",
			Text:   "its pods find no place while the other nodes are being emptied",
			Remedy: "plan again once the others are gone",
		}}})
		p.s.undo(p.fork.mark)
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
	moves := 0
	for _, c := range p.s.log[p.fork.mark:] {
		if c.kind == attached {
			moves++
		}
	}
	return moves != own
}

// replay empties the victims, sending each pod to its given place or, where it does not fit there, to another. At each
// turn the first victim goes that can be emptied. It returns the victims in the order in which they went, each with its
// pods in the order in which they were placed, and those that could not go.
func (p *planner) replay(victims []chosen, places map[*pod]int32) (ordered, failed []chosen) {
	doomed := make(map[int32]bool, len(victims))
	for _, v := range victims {
		doomed[v.node.id] = true
	}
	p.excluding(doomed)
	left := slices.Clone(victims)
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(v chosen) bool { return p.empty(v, places, doomed) })
		if i < 0 {
			return ordered, left
		}
		v := left[i]
		v.movers = p.placedSince(p.turn)
		ordered = append(ordered, v)
		left = slices.Delete(left, i, i+1)
	}
	return ordered, nil
}

// empty takes one victim away, or leaves everything as it was. turn marks where it began.
func (p *planner) empty(v chosen, places map[*pod]int32, doomed map[int32]bool) bool {
	p.turn = len(p.s.log)
	p.clear(v.node)
	var displaced []*pod
	for _, pod := range v.movers {
		if n := p.s.nodes[places[pod]]; !doomed[n.id] && p.s.fits(pod.class, n) {
			p.s.put(pod, n)
		} else {
			displaced = append(displaced, pod)
		}
	}
	if len(p.place(displaced)) > 0 {
		p.s.undo(p.turn)
		return false
	}
	return true
}

// excluding arranges the targets that are left when some nodes are to go.
func (p *planner) excluding(doomed map[int32]bool) {
	order := make([]int32, 0, len(p.s.rooms.order))
	for _, id := range p.s.rooms.order {
		if !doomed[id] {
			order = append(order, id)
		}
	}
	p.s.arrange(order)
}

// again plays victims without regard for earlier places, leaving out what no longer goes.
func (p *planner) again(victims []chosen, out *Selection) []chosen {
	p.ledger, p.limits = ledger{}, p.s.newLimits(p.o)
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
		e := Evacuation{Node: v.node.name(), Cost: v.cost, Stays: v.stays, Moves: make([]Move, len(v.movers))}
		for j, pod := range v.movers {
			e.Moves[j] = Move{pod.key, p.s.nodes[pod.node].name()}
		}
		out.Cost += v.cost
		out.Victims[i] = e
	}
}
