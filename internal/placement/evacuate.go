package placement

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Move is where one pod would go.
type Move struct {
	Pod PodKey `json:"pod"`
	To  string `json:"to"`
}

// Stay is a pod that goes with its node.
type Stay struct {
	Pod PodKey `json:"pod"`
	// Rule is the rule that says so, such as "daemonset-pod".
	Rule string `json:"rule"`
}

// Evacuation answers what would become of the pods of one node.
type Evacuation struct {
	Node string `json:"node"`
	// Cost is what the evacuation costs by the policy it was asked under; see Policy.
	Cost float64 `json:"cost"`
	// Moves lists the pods that would be created anew elsewhere, in the order in which they were placed.
	Moves []Move `json:"moves,omitempty"`
	// Stays lists the pods that go with the node.
	Stays []Stay `json:"stays,omitempty"`
	// Refusals is every reason against it, by rule; empty when the node can go.
	Refusals []Refusal `json:"refusals,omitempty"`
}

// Feasible reports whether nothing speaks against the evacuation.
func (e *Evacuation) Feasible() bool { return len(e.Refusals) == 0 }

// Evacuate answers where each pod of a node would go if the node went now, or every reason why it cannot. All rules are
// asked and all pods tried, so that the answer is complete; the snapshot is left as it was. The pods are judged with the
// node gone and all its pods off it, each one placed before the next is judged.
func (s *Snapshot) Evacuate(nodeName string, policy Policy, o Options) (*Evacuation, error) {
	n, err := s.nodeNamed(nodeName)
	if err != nil {
		return nil, err
	}
	s.arrangePlain()
	p := s.newPlanner(policy, &o)
	defer p.close()
	e := &Evacuation{Node: nodeName, Cost: p.cost(n), Refusals: s.nodeRefusals(n, &o)}
	movers := p.sortPods(n, e)
	e.Refusals = append(e.Refusals, p.limits.refusals(n)...)
	e.Refusals = append(e.Refusals, p.budgetRefusals(movers)...)
	mark := len(s.log)
	p.clear(n)
	e.Refusals = append(e.Refusals, p.placeAll(movers)...)
	for _, pod := range p.placedSince(mark) {
		e.Moves = append(e.Moves, Move{pod.key, s.nodes[pod.node].name()})
	}
	return e, nil
}

// placedSince lists the pods that the plan has placed since a mark of the log, in the order in which it did.
func (p *planner) placedSince(mark int) []*pod {
	var pods []*pod
	for _, c := range p.s.log[mark:] {
		if c.kind == attached {
			pods = append(pods, c.pod)
		}
	}
	return pods
}

// planner is one run of planning: a fork, the order in which targets are tried, and what the plan has used up.
type planner struct {
	s       *Snapshot
	o       *Options
	policy  Policy
	fork    Fork
	ledger  ledger
	limits  *limits
	failed  map[*class]Tallies // why a class fitted nowhere when that first happened
	scratch []*pod
	from    int32 // position at which the search for a target starts
	turn    int   // mark of the log at which a victim's turn began
}

func (s *Snapshot) newPlanner(policy Policy, o *Options) *planner {
	p := &planner{s: s, o: o, policy: policy, fork: s.Fork(), ledger: ledger{}, failed: map[*class]Tallies{}}
	p.limits = s.newLimits(o)
	s.rooms.planning = true
	return p
}

// close takes the plan back.
func (p *planner) close() {
	p.fork.Rollback()
	p.s.rooms.planning = false
	if !p.s.rooms.plain {
		p.s.rooms.reshape()
	}
}

// arrangeTargets sets the order in which nodes are tried as targets: those that cannot go themselves first, then the
// candidates from the last in the order of removal to the first, so that pods land where they can stay.
func (p *planner) arrangeTargets(candidates []candidate) {
	going := make(map[int32]bool, len(candidates))
	for i := range candidates {
		going[candidates[i].node.id] = true
	}
	order := make([]int32, 0, len(p.s.nodes))
	for _, n := range p.s.byName() {
		if !going[n.id] && p.s.target(n) {
			order = append(order, n.id)
		}
	}
	for i := len(candidates) - 1; i >= 0; i-- {
		if p.s.target(candidates[i].node) {
			order = append(order, candidates[i].node.id)
		}
	}
	p.s.arrange(order)
}

// sortPods tells the pods that have to run elsewhere from those that go with the node or hold it. What it finds goes
// into the evacuation, if one is given.
func (p *planner) sortPods(n *node, e *Evacuation) []*pod {
	movers := make([]*pod, 0, len(n.pods))
	for _, pod := range n.pods {
		fate, rule := p.o.fate(pod)
		switch {
		case fate == fateMoves:
			movers = append(movers, pod)
		case fate == fateBlocked:
			movers = append(movers, pod)
			if e != nil {
				e.Refusals = append(e.Refusals, podRefusal(pod, rule))
			}
		case e != nil:
			e.Stays = append(e.Stays, Stay{pod.key, rule.name})
		}
	}
	p.s.largestFirst(movers)
	return movers
}

// largestFirst sorts pods by size, so that the ones that are hard to place choose first. Pods of one class stay together;
// of classes that are equally hard, the one with the first pod by name comes first.
func (s *Snapshot) largestFirst(pods []*pod) {
	for _, p := range pods {
		p.class.first = nil
	}
	for _, p := range pods {
		c := p.class
		if c.first == nil {
			c.size = s.sizeOf(c)
		}
		if c.first == nil || compareKeys(p.key, c.first.key) < 0 {
			c.first = p
		}
	}
	slices.SortFunc(pods, func(a, b *pod) int {
		if a.class == b.class {
			return compareKeys(a.key, b.key)
		}
		return cmp.Or(cmp.Compare(b.class.size, a.class.size), cmp.Compare(b.class.strictness(), a.class.strictness()),
			compareKeys(a.class.first.key, b.class.first.key))
	})
}

// strictness counts what restricts a class beyond its size.
func (c *class) strictness() int {
	return len(c.affinity) + len(c.antiAffinity) + len(c.spreads) + len(c.ports)
}

// clear takes all pods off a node and the node away.
func (p *planner) clear(n *node) {
	for len(n.pods) > 0 {
		p.s.lift(n.pods[len(n.pods)-1])
	}
	p.s.withdraw(n)
}

// place finds a node for every pod. Those that fit nowhere at first are tried again as long as others have been placed,
// since a pod can depend on another's company. It returns the pods left over.
func (p *planner) place(pods []*pod) []*pod {
	for len(pods) > 0 {
		left := p.scratch[:0]
		for i := 0; i < len(pods); i++ {
			if run := companions(pods[i:]); run > 1 && p.together(pods[i:i+run]) {
				i += run - 1
			} else if n := p.target(pods[i]); n != nil {
				p.s.put(pods[i], n)
			} else {
				left = append(left, pods[i])
			}
		}
		p.scratch = left[:0]
		if len(left) == 0 || len(left) == len(pods) {
			return left
		}
		pods = slices.Clone(left)
	}
	return nil
}

// companions counts the pods at the head of a list that have to share one node with each other, and are not yet bound
// to one by others of their kind.
func companions(pods []*pod) int {
	c := pods[0].class
	if !c.shareNode() {
		return 1
	}
	n := 1
	for n < len(pods) && pods[n].class == c {
		n++
	}
	return n
}

// shareNode reports whether pods of the class have to be on one node, and none that they have to be with is anywhere.
func (c *class) shareNode() bool {
	if !c.selfAffine {
		return false
	}
	host := false
	for _, a := range c.affinity {
		if a.total > 0 {
			return false
		}
		host = host || a.key.name == corev1.LabelHostname
	}
	return host
}

// tries bounds how many nodes are tried for pods that have to share one.
const tries = 16

// together places all of the pods, which are of one class, on one node.
func (p *planner) together(pods []*pod) bool {
	c, from := pods[0].class, p.from
	for range tries {
		n := p.s.find(c, from)
		if n == nil {
			return false
		}
		if p.fill(n, pods) {
			return true
		}
		if from = p.s.rooms.position[n.id] + 1; int(from) == len(p.s.rooms.order) {
			from = 0
		}
	}
	return false
}

// fill puts all of the pods on a node, or none.
func (p *planner) fill(n *node, pods []*pod) bool {
	mark := len(p.s.log)
	for _, pod := range pods {
		if !p.s.fits(pod.class, n) {
			p.s.undo(mark)
			return false
		}
		p.s.put(pod, n)
	}
	return true
}

// target finds a node for one pod. A claim that is made anew for each pod has a volume yet to be made: where, is not
// known.
func (p *planner) target(pod *pod) *node {
	if pod.class.volumes.hasEphemeral() {
		return nil
	}
	return p.s.find(pod.class, p.from)
}

// placeAll is place for Evacuate, with the reasons of every pod that is left over.
func (p *planner) placeAll(pods []*pod) []Refusal {
	var refusals []Refusal
	for _, pod := range slices.Clone(p.place(pods)) {
		refusals = append(refusals, p.noRoom(pod))
	}
	return refusals
}

// noRoom says why a pod fits nowhere, and what would give it a place.
func (p *planner) noRoom(pod *pod) Refusal {
	r := Refusal{Rule: "no-room", Pod: pod.key.String(), Text: "fits on no other node"}
	switch refusal := p.s.refusal(pod.class); {
	case pod.class.volumes.hasEphemeral():
		r.Rule, r.Text = "undecidable", "uses a generic ephemeral volume that is made anew for each pod"
		return r
	case refusal != nil:
		r.Text, r.Remedy = "fits nowhere: "+refusal.Text, refusal.remedy()
		return r
	case len(p.s.rooms.order) == 0:
		r.Text, r.Remedy = "has no other node to go to", "add a node"
		return r
	}
	r.Nodes = p.tally(pod.class)
	r.Remedy = r.Nodes.remedy()
	return r
}

// tally counts the targets by their reasons against a class, once per class and plan.
func (p *planner) tally(c *class) Tallies {
	if t, ok := p.failed[c]; ok {
		return t
	}
	counts := tallies{}
	for _, id := range p.s.rooms.order {
		if n := p.s.nodes[id]; !n.out {
			counts.add(p.s.judge(c, n))
		}
	}
	p.failed[c] = counts.sorted()
	return p.failed[c]
}

// budgetRefusals names every budget that forbids evicting these pods. It takes nothing from the ledger.
func (p *planner) budgetRefusals(movers []*pod) []Refusal {
	var refusals []Refusal
	needs := map[*budget]int32{}
	for _, pod := range movers {
		b, refused := p.s.charge(pod)
		if refused != "" {
			refusals = append(refusals, Refusal{
				Rule: "disruption-budget", Pod: pod.key.String(), Text: refused,
				Remedy: "correct the disruption budgets",
			})
		} else if b != nil {
			needs[b]++
		}
	}
	for _, key := range p.s.budgetKeys(needs) {
		b := p.s.budgets[key]
		if left := b.allowed - p.ledger[b]; needs[b] > left {
			refusals = append(refusals, shortBudget(b, needs[b], left))
		}
	}
	return refusals
}

func shortBudget(b *budget, needs, left int32) Refusal {
	return Refusal{
		Rule:   "disruption-budget",
		Text:   fmt.Sprintf("disruption budget %s allows %s, %d needed", b.key, plural(int(max(left, 0)), "disruption"), needs),
		Remedy: "wait until more of its pods are healthy, or raise the budget",
	}
}

func (s *Snapshot) budgetKeys(m map[*budget]int32) []PodKey {
	keys := make([]PodKey, 0, len(m))
	for b := range m {
		keys = append(keys, b.key)
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}
