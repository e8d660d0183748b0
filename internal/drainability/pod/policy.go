package pod

import "time"

// Policy maps each rule to an action. The zero Policy equals [VoluntaryPolicy]. Two policies with the same actions are
// equal by ==.
type Policy struct {
	// changes has the actions that differ from the zero Policy, plus one.
	changes [numRules]Action
}

// VoluntaryPolicy returns the policy for a drain that can be cancelled. After such a drain the instance is deleted. It
// refuses the drain if work would be lost.
func VoluntaryPolicy() Policy { return Policy{} }

// ForcedPolicy returns the policy for a node with an instance that stops in any case. It evicts as many pods as
// possible, because a remaining pod would be lost without warning.
func ForcedPolicy() Policy {
	return VoluntaryPolicy().WithAction(RuleProtected, Evict).WithAction(RuleUnmanaged, Evict).WithAction(RuleLocalStorage, Evict).WithAction(RuleHostPath, Evict)
}

// WithAction returns a copy of the policy with another action for a rule.
func (p Policy) WithAction(r Rule, a Action) Policy {
	p.changes[r] = 0
	if a != rules[r].action {
		p.changes[r] = a + 1
	}
	return p
}

// ActionFor returns the action for a rule.
func (p Policy) ActionFor(r Rule) Action {
	if p.changes[r] > 0 {
		return p.changes[r] - 1
	}
	return rules[r].action
}

// Decision is the action for one pod, and the rule that has decided it.
type Decision struct {
	Rule   Rule
	Action Action
	// ValidUntil is when the decision may change although the pod does not, in nanoseconds since the Unix epoch; 0 is never.
	ValidUntil int64
}

// Reason returns the reason for the decision as a predicate, such as "belongs to a DaemonSet", to follow the pod's
// name. It returns "" if no rule matches.
func (v Decision) Reason(f *Facts) string { return rules[v.Rule].describe(f) }

// Decide applies the rules to a pod.
func (p Policy) Decide(f *Facts, now time.Time) Decision {
	for r := RuleKeepsNode; r <= RuleFinished; r++ {
		if rules[r].matches(f) {
			return Decision{Rule: r, Action: p.ActionFor(r)}
		}
	}
	var v Decision
	for r := RuleProtected; r < numRules; r++ {
		if !rules[r].matches(f) || r == RuleProtected && !f.Protection.IsActive(now) {
			continue
		}
		a := p.ActionFor(r)
		if a == RefuseDrain && rules[r].isWaived != nil && rules[r].isWaived(f) {
			a = Evict
		}
		if v.Rule == NoRule || a > v.Action {
			v.Rule, v.Action = r, a
		}
	}
	if v.Rule == RuleProtected {
		v.ValidUntil = f.Protection.Until
	}
	return v
}
