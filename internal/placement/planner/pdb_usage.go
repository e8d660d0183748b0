package planner

import (
	"maps"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// PDBUsage counts the evictions that plans have charged to each PodDisruptionBudget of a snapshot. It is valid until the budgets
// of the snapshot change.
type PDBUsage map[*snapshot.PDB]int32

// clone returns a copy that is not nil.
func (l PDBUsage) clone() PDBUsage {
	out := PDBUsage{}
	maps.Copy(out, l)
	return out
}

// ChargeEvacuation charges the evictions of an evacuation, also beyond what the budgets allow.
func (l PDBUsage) ChargeEvacuation(m *snapshot.PDBs, e *Evacuation) {
	for key, n := range e.charges {
		l[m.Lookup(key)] += n
	}
}

// countCharges returns what the eviction of these pods charges, by PodDisruptionBudget.
func countCharges(m *snapshot.PDBs, pods []*filter.Pod) map[placement.PodKey]int32 {
	if m.IsEmpty() {
		return nil
	}
	charges := map[placement.PodKey]int32{}
	for _, p := range pods {
		if b, _ := m.FindPDBToCharge(p); b != nil {
			charges[b.Key]++
		}
	}
	return charges
}

// chargeEvictionsIfAllowed charges the eviction of these pods. If a budget does not allow it, it charges nothing. It then returns
// the refusal, and the first pod that the budget does not allow.
func (l PDBUsage) chargeEvictionsIfAllowed(m *snapshot.PDBs, pods []*filter.Pod) (*Refusal, *filter.Pod) {
	if m.IsEmpty() {
		return nil, nil
	}
	for i, p := range pods {
		b, _ := m.FindPDBToCharge(p)
		if b == nil {
			continue
		}
		l[b]++
		if l[b] > b.Allowed {
			needed := l[b]
			l.refundEvictions(m, pods[:i+1])
			r := newPDBRefusal(b, needed-l[b], b.Allowed-l[b])
			return &r, p
		}
	}
	return nil, nil
}

func (l PDBUsage) refundEvictions(m *snapshot.PDBs, pods []*filter.Pod) {
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
