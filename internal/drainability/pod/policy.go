package pod

import "time"

// Policy maps each rule to an action. The zero Policy is [Voluntary]. Policies with the same actions are equal.
type Policy struct {
	// changes has the actions that differ from the zero Policy, plus one.
	changes [numRules]Action
}

// Voluntary returns the policy of a drain that can be cancelled, and that is followed by the instance's deletion. It
// refuses to lose work.
func Voluntary() Policy { return Policy{} }

// Forced returns the policy for a node with an instance that stops in any case. A remaining pod would be lost without
// warning.
func Forced() Policy {
	return Voluntary().With(ByProtected, Evict).With(ByUnmanaged, Evict).With(ByLocalStorage, Evict).With(ByHostPath, Evict)
}

// With returns a copy of the policy with another action for a rule.
func (p Policy) With(r Rule, a Action) Policy {
	p.changes[r] = 0
	if a != rules[r].action {
		p.changes[r] = a + 1
	}
	return p
}

// Of returns the action for a rule.
func (p Policy) Of(r Rule) Action {
	if p.changes[r] > 0 {
		return p.changes[r] - 1
	}
	return rules[r].action
}

// Verdict is the action for one pod, and the rule that decides.
type Verdict struct {
	Rule   Rule
	Action Action
	// Until is when the decision may change although the pod does not, in nanoseconds since the Unix epoch; 0 is never.
	Until int64
}

// Text returns the reason as a predicate of the pod; empty if no rule matches.
func (v Verdict) Text(f *Facts) string { return rules[v.Rule].describe(f) }

// Judge applies the rules to a pod.
func (p Policy) Judge(f *Facts, now time.Time) Verdict {
	for r := ByKeepsNode; r <= ByFinished; r++ {
		if rules[r].matches(f) {
			return Verdict{Rule: r, Action: p.Of(r)}
		}
	}
	var v Verdict
	for r := ByProtected; r < numRules; r++ {
		if !rules[r].matches(f) || r == ByProtected && !f.Protection.InForce(now) {
			continue
		}
		a := p.Of(r)
		if a == Refuse && rules[r].isWaived != nil && rules[r].isWaived(f) {
			a = Evict
		}
		if v.Rule == Ordinary || a > v.Action {
			v.Rule, v.Action = r, a
		}
	}
	if v.Rule == ByProtected {
		v.Until = f.Protection.Until
	}
	return v
}
