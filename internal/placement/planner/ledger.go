package planner

import (
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// pdbUsage counts what a plan has taken of each budget.
type pdbUsage map[*snapshot.Budget]int32

// chargePods reports whether the budgets allow evicting these pods on top of what was taken, naming the one that does not.
// Nothing is taken when it does not.
func (l pdbUsage) chargePods(m *snapshot.Budgets, pods []*filter.Pod) (short *snapshot.Budget, needs int32) {
	if m.Empty() {
		return nil, 0
	}
	for i, p := range pods {
		b, _ := m.Charge(p)
		if b == nil {
			continue
		}
		l[b]++
		if l[b] > b.Allowed {
			needs = l[b]
			l.refundPods(m, pods[:i+1])
			return b, needs
		}
	}
	return nil, 0
}

func (l pdbUsage) refundPods(m *snapshot.Budgets, pods []*filter.Pod) {
	if m.Empty() {
		return
	}
	for _, p := range pods {
		if b, _ := m.Charge(p); b != nil {
			if l[b]--; l[b] == 0 {
				delete(l, b)
			}
		}
	}
}
