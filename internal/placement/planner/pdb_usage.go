package planner

import (
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// pdbUsage counts the evictions that a plan has charged to each PodDisruptionBudget.
type pdbUsage map[*snapshot.PDB]int32

// chargeEvictionsIfAllowed charges the eviction of these pods. If a budget does not allow it, it charges nothing and returns that
// budget with the number of disruptions that it would need.
func (l pdbUsage) chargeEvictionsIfAllowed(m *snapshot.PDBs, pods []*filter.Pod) (exceeded *snapshot.PDB, needed int32) {
	if m.IsEmpty() {
		return nil, 0
	}
	for i, p := range pods {
		b, _ := m.FindPDBToCharge(p)
		if b == nil {
			continue
		}
		l[b]++
		if l[b] > b.Allowed {
			needed = l[b]
			l.refundEvictions(m, pods[:i+1])
			return b, needed
		}
	}
	return nil, 0
}

func (l pdbUsage) refundEvictions(m *snapshot.PDBs, pods []*filter.Pod) {
	if m.IsEmpty() {
		return
	}
	for _, p := range pods {
		if b, _ := m.FindPDBToCharge(p); b != nil {
			if l[b]--; l[b] == 0 {
				delete(l, b)
			}
		}
	}
}
