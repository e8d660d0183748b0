package cordon

import (
	"slices"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// planTaints plans the taints. It keeps the order of all other taints.
func (p *claimPlanner) planTaints(wanted []Taint) {
	p.taints = slices.Clone(p.node.Spec.Taints)
	for _, old := range p.ownRecord.Taints {
		if slices.ContainsFunc(wanted, old.matches) || p.isOthersTaint(old) {
			continue
		}
		before := len(p.taints)
		p.taints = slices.DeleteFunc(p.taints, func(t kubeapi.Taint) bool { return toTaint(t) == old })
		p.taintsChanged = p.taintsChanged || len(p.taints) != before
	}
	for _, t := range wanted {
		p.planTaint(t)
	}
}

func (p *claimPlanner) planTaint(wanted Taint) {
	i := slices.IndexFunc(p.taints, func(t kubeapi.Taint) bool { return toTaint(t).matches(wanted) })
	if i < 0 {
		if slices.ContainsFunc(p.ownRecord.Taints, wanted.matches) {
			p.restored = append(p.restored, "taint "+wanted.String())
		}
		p.addTaint(wanted)
		return
	}
	switch there := toTaint(p.taints[i]); {
	case p.isOthersTaint(there), slices.Contains(p.ownRecord.Taints, there) && there == wanted:
		p.nextRecord.Taints = append(p.nextRecord.Taints, there)
	case slices.Contains(p.ownRecord.Taints, there): // no other owner needs the old value
		p.taints[i].Value = wanted.Value
		p.taintsChanged = true
		p.nextRecord.Taints = append(p.nextRecord.Taints, wanted)
	default:
		p.notOurs = append(p.notOurs, "taint "+there.String())
	}
}

func (p *claimPlanner) addTaint(t Taint) {
	p.taints = append(p.taints, kubeapi.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	p.taintsChanged = true
	p.nextRecord.Taints = append(p.nextRecord.Taints, t)
}

func (p *claimPlanner) isOthersTaint(t Taint) bool {
	return slices.ContainsFunc(p.otherRecords, func(r Record) bool { return slices.Contains(r.Taints, t) })
}

func toTaint(t kubeapi.Taint) Taint { return Taint{Key: t.Key, Value: t.Value, Effect: t.Effect} }
