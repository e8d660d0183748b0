package cordon

import (
	"maps"
	"slices"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

func (p *claimPlanner) planConditions(wanted []Condition) {
	for _, kind := range slices.Sorted(maps.Keys(p.ownRecord.Conditions)) {
		if slices.ContainsFunc(wanted, func(c Condition) bool { return c.Type == kind }) {
			continue
		}
		claim := p.ownRecord.Conditions[kind]
		if on := p.currentCondition(kind); on != nil && claim.matches(on) && p.oldestOtherRecordClaiming(on) == nil {
			p.removedConditions = append(p.removedConditions, kind)
			p.addConditionClaim(kind, claim) // until the condition is removed
		}
	}
	for _, c := range wanted {
		p.planCondition(c)
	}
}

func (p *claimPlanner) planCondition(c Condition) {
	on := p.currentCondition(c.Type)
	if on == nil {
		claim := p.newConditionClaim(c)
		p.addConditionClaim(c.Type, claim)
		p.addConditionPatch(c, claim)
		return
	}
	mine, had := p.ownRecord.Conditions[c.Type]
	had = had && mine.matches(on)
	first := p.oldestOtherRecordClaiming(on)
	if !had && first == nil {
		p.notOurs = append(p.notOurs, "condition "+c.Type)
		return
	}
	claim := ConditionClaim{Since: on.LastTransitionTime.UTC(), Reason: on.Reason}
	p.addConditionClaim(c.Type, claim)
	if had && on.Message != c.Message && (first == nil || compareAge(p.ownRecord, *first) < 0) {
		p.addConditionPatch(c, claim)
	}
}

func (p *claimPlanner) addConditionPatch(c Condition, claim ConditionClaim) {
	p.setConditions = append(p.setConditions, conditionPatch{
		Type: c.Type, Status: "True", Reason: claim.Reason, Message: c.Message,
		LastTransitionTime: claim.Since, LastHeartbeatTime: p.now,
	})
}

// newConditionClaim returns a new claim to a condition that is not on the node. If the record already claims the
// condition with the same reason, it returns that claim. A process may have ended after it wrote the record and before
// it wrote the condition.
func (p *claimPlanner) newConditionClaim(c Condition) ConditionClaim {
	if claim, ok := p.ownRecord.Conditions[c.Type]; ok && claim.Reason == c.Reason {
		return claim
	}
	return ConditionClaim{Since: p.now, Reason: c.Reason}
}

func (p *claimPlanner) addConditionClaim(kind string, claim ConditionClaim) {
	if p.nextRecord.Conditions == nil {
		p.nextRecord.Conditions = map[string]ConditionClaim{}
	}
	p.nextRecord.Conditions[kind] = claim
}

// oldestOtherRecordClaiming returns the oldest record of another owner that claims the condition, or nil.
func (p *claimPlanner) oldestOtherRecordClaiming(on *kubeapi.Condition) *Record {
	for i, r := range p.otherRecords {
		if claim, ok := r.Conditions[on.Type]; ok && claim.matches(on) {
			return &p.otherRecords[i]
		}
	}
	return nil
}

func (p *claimPlanner) currentCondition(kind string) *kubeapi.Condition {
	for i := range p.node.Status.Conditions {
		if c := &p.node.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}
