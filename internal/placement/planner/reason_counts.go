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

func (t reasonCounts) sortByCount() placement.Tallies {
	list := make(placement.Tallies, 0, len(t))
	for r, n := range t {
		list = append(list, placement.Tally{Nodes: n, Reason: r})
	}
	slices.SortFunc(list, func(a, b placement.Tally) int {
		return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), cmp.Compare(a.Reason.Text, b.Reason.Text),
			cmp.Compare(a.Reason.Predicate, b.Reason.Predicate))
	})
	return list
}
