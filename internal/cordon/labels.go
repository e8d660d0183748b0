package cordon

import (
	"maps"
	"slices"
)

// wantLabels decides about the labels.
func (p *planner) wantLabels(wanted map[string]string) {
	for key, old := range p.mine.Labels {
		there, labelled := p.node.Labels[key]
		if _, still := wanted[key]; !still && labelled && there == old && !p.othersLabel(key, old) {
			p.labels[key] = nil
		}
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		p.wantLabel(key, wanted[key])
	}
}

func (p *planner) wantLabel(key, wanted string) {
	there, labelled := p.node.Labels[key]
	old, had := p.mine.Labels[key]
	switch {
	case !labelled:
		if had {
			p.restored = append(p.restored, "label "+key)
		}
		p.setLabel(key, wanted)
	case p.othersLabel(key, there), had && there == old && there == wanted:
		p.claimLabel(key, there)
	case had && there == old: // nobody else needs it as it is
		p.setLabel(key, wanted)
	default:
		p.foreign = append(p.foreign, "label "+key)
	}
}

func (p *planner) setLabel(key, value string) {
	p.labels[key] = &value
	p.claimLabel(key, value)
}

func (p *planner) claimLabel(key, value string) {
	if p.next.Labels == nil {
		p.next.Labels = map[string]string{}
	}
	p.next.Labels[key] = value
}

func (p *planner) othersLabel(key, value string) bool {
	return slices.ContainsFunc(p.others, func(r Record) bool {
		claimed, ok := r.Labels[key]
		return ok && claimed == value
	})
}

// phase sets the owner's own label, whose key is nobody else's.
func (p *planner) phase(key, value string) {
	there, labelled := p.node.Labels[key]
	switch {
	case value == "" && labelled:
		p.labels[key] = nil
	case value != "" && (!labelled || there != value):
		p.labels[key] = &value
	}
}
