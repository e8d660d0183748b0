package cordon

import (
	"slices"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// wantTaints decides about the taints, and leaves the order of all others as it is.
func (p *planner) wantTaints(wanted []Taint) {
	p.taints = slices.Clone(p.node.Spec.Taints)
	for _, old := range p.mine.Taints {
		if slices.ContainsFunc(wanted, old.same) || p.othersHave(old) {
			continue
		}
		before := len(p.taints)
		p.taints = slices.DeleteFunc(p.taints, func(t kubeapi.Taint) bool { return short(t) == old })
		p.newTaints = p.newTaints || len(p.taints) != before
	}
	for _, t := range wanted {
		p.wantTaint(t)
	}
}

func (p *planner) wantTaint(wanted Taint) {
	i := slices.IndexFunc(p.taints, func(t kubeapi.Taint) bool { return short(t).same(wanted) })
	if i < 0 {
		if slices.ContainsFunc(p.mine.Taints, wanted.same) {
			p.restored = append(p.restored, "taint "+wanted.String())
		}
		p.addTaint(wanted)
		return
	}
	switch there := short(p.taints[i]); {
	case p.othersHave(there), slices.Contains(p.mine.Taints, there) && there == wanted:
		p.next.Taints = append(p.next.Taints, there)
	case slices.Contains(p.mine.Taints, there): // nobody else needs it as it is
		p.taints[i].Value = wanted.Value
		p.newTaints = true
		p.next.Taints = append(p.next.Taints, wanted)
	default:
		p.foreign = append(p.foreign, "taint "+there.String())
	}
}

func (p *planner) addTaint(t Taint) {
	p.taints = append(p.taints, kubeapi.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	p.newTaints = true
	p.next.Taints = append(p.next.Taints, t)
}

func (p *planner) othersHave(t Taint) bool {
	return slices.ContainsFunc(p.others, func(r Record) bool { return slices.Contains(r.Taints, t) })
}

func short(t kubeapi.Taint) Taint { return Taint{Key: t.Key, Value: t.Value, Effect: t.Effect} }
