package planner

import (
	"cmp"
	"slices"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Rank is the entry of one node in a ranking.
type Rank struct {
	Node string  `json:"node"`
	Cost float64 `json:"cost"`
	// Removable reports whether the node alone can be removed now.
	Removable bool `json:"removable"`
	// Rule is the rule that forbids the removal. Pod is the pod that it concerns, if any.
	Rule string `json:"rule,omitempty"`
	Pod  string `json:"pod,omitempty"`
}

// Ranking evaluates the removal of every node alone, and updates the results after events. Pass pods and
// PodDisruptionBudgets to the snapshot through it, and the cost is proportional to what has changed. After any other
// event the next List evaluates all nodes again.
//
// For each removable node it stores the targets of the pods. When a node gains pods, the plans that use it are
// checked, and made again only if they are invalid. When a node loses pods, it evaluates the nodes again that were
// blocked by a pod which fits there now. An event can also change counters of pod affinity and topology spread. Then
// the nodes with pods that depend on these counters are updated in the same way. A Ranking is not safe for concurrent
// use.
type Ranking struct {
	s          *snapshot.Snapshot
	policy     Policy
	o          Options
	eventsSeen uint64 // number of snapshot events in the entries

	entries   map[string]*rankEntry
	byTarget  map[string]map[*rankEntry]struct{}        // entries by the target nodes of their plans
	byBlocker map[*filter.Class]map[*rankEntry]struct{} // entries blocked by a class that fits nowhere
}

type rankEntry struct {
	Rank
	targets       []podTarget
	blockingClass *filter.Class
}

// podTarget is the target of one pod in a plan.
type podTarget struct {
	pod  placement.PodKey
	node string
}

// NewRanking evaluates all nodes, with the group limits of the options. A ranking that was created in a fork is valid
// until the rollback.
func NewRanking(s *snapshot.Snapshot, policy Policy, o Options) *Ranking {
	r := &Ranking{s: s, policy: policy, o: o}
	r.rankAll()
	return r
}

func (r *Ranking) rankAll() {
	r.entries = make(map[string]*rankEntry, r.s.Nodes.Len())
	r.byTarget = map[string]map[*rankEntry]struct{}{}
	r.byBlocker = map[*filter.Class]map[*rankEntry]struct{}{}
	gone := func(n *filter.Node) bool { return n.RemovedByPlan } // removed by a fork
	r.rankNodes(slices.DeleteFunc(slices.Clone(r.s.Nodes.SortedByName()), gone))
	r.eventsSeen = r.s.EventCount()
}

// rankNodes evaluates nodes in one plan, which is reset after each. It updates the bitmaps before the plan, so that
// they stay valid after it.
func (r *Ranking) rankNodes(nodes []*filter.Node) {
	if len(nodes) == 0 {
		return
	}
	r.s.Search.UseDefaultOrder()
	q := newRuleEvaluation(r.s, &r.o)
	for _, n := range nodes {
		for _, pod := range n.Pods {
			if fate, _ := q.judgePod(pod); fate == podMoves {
				r.s.Search.CandidatesFor(pod.Class)
			}
		}
	}
	p := newPlanRun(r.s, r.policy, &r.o)
	defer p.close()
	for _, n := range nodes {
		r.replaceEntry(r.rankNode(p, n))
		p.fork.Reset()
	}
}

func (r *Ranking) rankNode(p *planRun, n *filter.Node) *rankEntry {
	e := &rankEntry{Rank: Rank{Node: n.Name(), Cost: p.computeCost(n)}}
	if refusal := p.findFirstRefusal(n); refusal != nil {
		e.Rule, e.Pod = refusal.Rule, refusal.Pod
		return e
	}
	if refusals := p.groupLimits.listRefusals(n); len(refusals) > 0 {
		e.Rule = refusals[0].Rule
		return e
	}
	movers, evicted := p.listMovers(n, nil)
	short, _ := p.pdbUsage.chargePods(&r.s.PDBs, evicted)
	if short != nil {
		e.Rule = "disruption-budget"
		return e
	}
	p.pdbUsage.refundPods(&r.s.PDBs, evicted)
	mark := p.fork.Mark()
	p.fork.RemoveNode(n)
	p.searchStart = 0
	if position := r.s.Search.PositionOf(n); position != filter.None {
		p.searchStart = position
	}
	if left := p.placePods(movers); len(left) > 0 {
		e.Rule, e.Pod, e.blockingClass = "no-room", left[0].Key.String(), left[0].Class
		return e
	}
	e.Removable = true
	e.targets = make([]podTarget, len(movers))
	for i, pod := range p.fork.PodsPlacedSince(mark) {
		e.targets[i] = podTarget{pod.Key, r.s.Nodes.ByID(pod.Node).Name()}
	}
	return e
}

// replaceEntry replaces the entry of a node and updates the indices.
func (r *Ranking) replaceEntry(e *rankEntry) {
	r.dropEntry(e.Node)
	r.entries[e.Node] = e
	for _, t := range e.targets {
		insertEntry(r.byTarget, t.node, e)
	}
	if e.blockingClass != nil {
		insertEntry(r.byBlocker, e.blockingClass, e)
	}
}

func (r *Ranking) dropEntry(name string) {
	old := r.entries[name]
	if old == nil {
		return
	}
	delete(r.entries, name)
	for _, t := range old.targets {
		eraseEntry(r.byTarget, t.node, old)
	}
	if old.blockingClass != nil {
		eraseEntry(r.byBlocker, old.blockingClass, old)
	}
}

func insertEntry[K comparable](m map[K]map[*rankEntry]struct{}, key K, e *rankEntry) {
	if m[key] == nil {
		m[key] = map[*rankEntry]struct{}{}
	}
	m[key][e] = struct{}{}
}

func eraseEntry[K comparable](m map[K]map[*rankEntry]struct{}, key K, e *rankEntry) {
	delete(m[key], e)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// List returns the ranking: removable nodes by cost, then the other nodes by name.
func (r *Ranking) List() []Rank {
	if r.eventsSeen != r.s.EventCount() {
		r.rankAll()
	}
	list := make([]Rank, 0, len(r.entries))
	for _, e := range r.entries {
		list = append(list, e.Rank)
	}
	slices.SortFunc(list, compareRanks)
	return list
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
		return cmp.Or(cmp.Compare(a.Cost, b.Cost), cmp.Compare(a.Node, b.Node))
	}
}
