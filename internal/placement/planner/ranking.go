package planner

import (
	"cmp"
	"slices"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Rank is one node's place in a ranking.
type Rank struct {
	Node string  `json:"node"`
	Cost float64 `json:"cost"`
	// Removable reports whether the node, by itself, could go now.
	Removable bool `json:"removable"`
	// Rule is the rule that holds the node, and Pod the pod it concerns, if any.
	Rule string `json:"rule,omitempty"`
	Pod  string `json:"pod,omitempty"`
}

// Ranking judges every node by itself and keeps the answers current at the cost of what has changed: feed pods and
// disruption budgets to the snapshot through it. Any other event is noticed, and makes the next List start over.
//
// For each removable node it remembers where the pods would go. When a node gains pods, the plans that counted on it are
// checked where they stand, and made anew only if they no longer hold; when one loses pods, the nodes that were held by a
// pod that fits there now are judged anew. The counters of pod affinity and spreading that an event moves lead in the
// same way to the nodes with pods that read them. It is not safe for concurrent use.
type Ranking struct {
	s      *snapshot.Snapshot
	policy Policy
	o      Options
	seen   uint64 // events of the snapshot that the entries know of

	entries map[string]*ranked
	usedBy  map[string]map[*ranked]struct{}        // entries by the nodes that their plans send pods to
	blocked map[*filter.Class]map[*ranked]struct{} // entries held because a class fits nowhere
}

type ranked struct {
	Rank
	targets []target
	blocker *filter.Class
}

// target is where one pod of a plan goes; the pods are those of the node in the order of the plan.
type target struct {
	pod  placement.PodKey
	node string
}

// NewRanking judges all nodes. Groups' limits are those of the options. Made in a fork, it is good until that is rolled
// back.
func NewRanking(s *snapshot.Snapshot, policy Policy, o Options) *Ranking {
	r := &Ranking{s: s, policy: policy, o: o}
	r.startOver()
	return r
}

// startOver judges all nodes.
func (r *Ranking) startOver() {
	r.entries = make(map[string]*ranked, r.s.Nodes.Len())
	r.usedBy = map[string]map[*ranked]struct{}{}
	r.blocked = map[*filter.Class]map[*ranked]struct{}{}
	gone := func(n *filter.Node) bool { return n.Out } // a fork has taken it away
	r.judge(slices.DeleteFunc(slices.Clone(r.s.Nodes.InOrder()), gone))
	r.seen = r.s.Events()
}

// judge ranks nodes anew, all in one plan that is taken back after each. Rooms are made up before it, so that they last.
func (r *Ranking) judge(nodes []*filter.Node) {
	if len(nodes) == 0 {
		return
	}
	r.s.Rooms.ArrangePlain()
	q := newQuestion(r.s, &r.o)
	for _, n := range nodes {
		for _, pod := range n.Pods {
			if fate, _ := q.fate(pod); fate == fateMoves {
				r.s.Rooms.RoomFor(pod.Class)
			}
		}
	}
	p := newPlanner(r.s, r.policy, &r.o)
	defer p.close()
	for _, n := range nodes {
		r.replace(r.rank(p, n))
		p.fork.Reset()
	}
}

// rank judges one node.
func (r *Ranking) rank(p *planner, n *filter.Node) *ranked {
	e := &ranked{Rank: Rank{Node: n.Name(), Cost: p.cost(n)}}
	if refusal := p.firstRefusal(n); refusal != nil {
		e.Rule, e.Pod = refusal.Rule, refusal.Pod
		return e
	}
	if refusals := p.limits.refusals(n); len(refusals) > 0 {
		e.Rule = refusals[0].Rule
		return e
	}
	movers, evicted := p.sortPods(n, nil)
	short, _ := p.ledger.afford(&r.s.Budgets, evicted)
	if short != nil {
		e.Rule = "disruption-budget"
		return e
	}
	p.ledger.refund(&r.s.Budgets, evicted)
	mark := p.fork.Mark()
	p.fork.Clear(n)
	p.from = 0
	if position := r.s.Rooms.PositionOf(n); position != filter.None {
		p.from = position
	}
	if left := p.place(movers); len(left) > 0 {
		e.Rule, e.Pod, e.blocker = "no-room", left[0].Key.String(), left[0].Class
		return e
	}
	e.Removable = true
	e.targets = make([]target, len(movers))
	for i, pod := range p.fork.PlacedSince(mark) {
		e.targets[i] = target{pod.Key, r.s.Nodes.At(pod.Node).Name()}
	}
	return e
}

// replace puts an entry in the place of the one before, and into the indices.
func (r *Ranking) replace(e *ranked) {
	r.drop(e.Node)
	r.entries[e.Node] = e
	for _, t := range e.targets {
		insert(r.usedBy, t.node, e)
	}
	if e.blocker != nil {
		insert(r.blocked, e.blocker, e)
	}
}

func (r *Ranking) drop(name string) {
	old := r.entries[name]
	if old == nil {
		return
	}
	delete(r.entries, name)
	for _, t := range old.targets {
		erase(r.usedBy, t.node, old)
	}
	if old.blocker != nil {
		erase(r.blocked, old.blocker, old)
	}
}

func insert[K comparable](m map[K]map[*ranked]struct{}, key K, e *ranked) {
	if m[key] == nil {
		m[key] = map[*ranked]struct{}{}
	}
	m[key][e] = struct{}{}
}

func erase[K comparable](m map[K]map[*ranked]struct{}, key K, e *ranked) {
	delete(m[key], e)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// List returns the ranking: removable nodes first, cheapest first, then the others by name.
func (r *Ranking) List() []Rank {
	if r.seen != r.s.Events() {
		r.startOver()
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
