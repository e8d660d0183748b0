package cordon

import (
	"maps"
	"slices"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// wantConditions decides about the conditions.
func (p *planner) wantConditions(wanted []Condition) {
	for _, kind := range slices.Sorted(maps.Keys(p.mine.Conditions)) {
		if slices.ContainsFunc(wanted, func(c Condition) bool { return c.Type == kind }) {
			continue
		}
		claim := p.mine.Conditions[kind]
		if on := p.current(kind); on != nil && claim.matches(on) && p.firstClaim(on) == nil {
			p.drop = append(p.drop, kind)
			p.claim(kind, claim) // until it is gone
		}
	}
	for _, c := range wanted {
		p.wantCondition(c)
	}
}

func (p *planner) wantCondition(c Condition) {
	on := p.current(c.Type)
	if on == nil {
		claim := p.claimFor(c)
		p.claim(c.Type, claim)
		p.setCondition(c, claim)
		return
	}
	mine, had := p.mine.Conditions[c.Type]
	had = had && mine.matches(on)
	first := p.firstClaim(on)
	if !had && first == nil {
		p.foreign = append(p.foreign, "condition "+c.Type)
		return
	}
	claim := Claim{Since: on.LastTransitionTime.UTC(), Reason: on.Reason}
	p.claim(c.Type, claim)
	if had && on.Message != c.Message && (first == nil || older(p.mine, *first) < 0) {
		p.setCondition(c, claim)
	}
}

func (p *planner) setCondition(c Condition, claim Claim) {
	p.set = append(p.set, condition{
		Type: c.Type, Status: "True", Reason: claim.Reason, Message: c.Message,
		LastTransitionTime: claim.Since, LastHeartbeatTime: p.now,
	})
}

// claimFor is the claim to a condition that is not on the node: the one that is written down already, when a process
// ended between that and the condition; or else a new one.
func (p *planner) claimFor(c Condition) Claim {
	if claim, ok := p.mine.Conditions[c.Type]; ok && claim.Reason == c.Reason {
		return claim
	}
	return Claim{Since: p.now, Reason: c.Reason}
}

func (p *planner) claim(kind string, claim Claim) {
	if p.next.Conditions == nil {
		p.next.Conditions = map[string]Claim{}
	}
	p.next.Conditions[kind] = claim
}

// firstClaim is the record of the oldest other owner that claims the condition, or nil.
func (p *planner) firstClaim(on *kubeapi.Condition) *Record {
	for i, r := range p.others {
		if claim, ok := r.Conditions[on.Type]; ok && claim.matches(on) {
			return &p.others[i]
		}
	}
	return nil
}

func (p *planner) current(kind string) *kubeapi.Condition {
	for i := range p.node.Status.Conditions {
		if c := &p.node.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}
