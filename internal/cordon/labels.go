package cordon

import (
	"maps"
	"slices"
)

func (p *claimPlanner) planLabels(wanted map[string]string) {
	for key, old := range p.ownRecord.Labels {
		there, labelled := p.node.Labels[key]
		if _, still := wanted[key]; !still && labelled && there == old && !p.isOthersLabel(key, old) {
			p.labels[key] = nil
		}
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		p.planLabel(key, wanted[key])
	}
}

func (p *claimPlanner) planLabel(key, wanted string) {
	there, labelled := p.node.Labels[key]
	old, had := p.ownRecord.Labels[key]
	switch {
	case !labelled:
		if had {
			p.restored = append(p.restored, "label "+key)
		}
		p.setLabel(key, wanted)
	case p.isOthersLabel(key, there), had && there == old && there == wanted:
		p.claimLabel(key, there)
	case had && there == old: // no other owner needs the old value
		p.setLabel(key, wanted)
	default:
		p.notOurs = append(p.notOurs, "label "+key)
	}
}

func (p *claimPlanner) setLabel(key, value string) {
	p.labels[key] = &value
	p.claimLabel(key, value)
}

func (p *claimPlanner) claimLabel(key, value string) {
	if p.nextRecord.Labels == nil {
		p.nextRecord.Labels = map[string]string{}
	}
	p.nextRecord.Labels[key] = value
}

func (p *claimPlanner) isOthersLabel(key, value string) bool {
	return slices.ContainsFunc(p.otherRecords, func(r Record) bool {
		claimed, ok := r.Labels[key]
		return ok && claimed == value
	})
}

// planPhaseLabel sets or removes the owner's phase label. No other owner uses its key.
func (p *claimPlanner) planPhaseLabel(key, value string) {
	there, labelled := p.node.Labels[key]
	switch {
	case value == "" && labelled:
		p.labels[key] = nil
	case value != "" && (!labelled || there != value):
		p.labels[key] = &value
	}
}
