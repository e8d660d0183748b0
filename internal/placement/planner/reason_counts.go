package planner

import (
	"cmp"
	"slices"

	"github.com/slipway-dev/slipway/internal/placement"
)

// reasonCounts counts reasons. Sorted, the most frequent come first, then by text.
type reasonCounts map[placement.Reason]int

func (t reasonCounts) addVerdict(v placement.Verdict) {
	for _, r := range v.Reasons {
		t[r]++
	}
}

func (t reasonCounts) sortByCount() placement.ReasonCounts {
	list := make(placement.ReasonCounts, 0, len(t))
	for r, n := range t {
		list = append(list, placement.ReasonCount{Nodes: n, Reason: r})
	}
	slices.SortFunc(list, func(a, b placement.ReasonCount) int {
		return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), cmp.Compare(a.Reason.Message, b.Reason.Message),
			cmp.Compare(a.Reason.Predicate, b.Reason.Predicate))
	})
	return list
}
