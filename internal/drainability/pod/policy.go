package pod

import "time"

// Policy says what a drain does about the pods under each rule. The zero Policy is [Voluntary]. Two are equal if they do
// the same.
type Policy struct {
	// changes are the actions that differ from those of the zero Policy, plus one.
	changes [numRules]Action
}

// Voluntary is the policy of a drain after which the instance is deleted, and which could as well not take place: it refuses
// what would lose work.
func Voluntary() Policy { return Policy{} }

// Forced is the policy for a node whose instance goes in any case: a pod that is left behind would be lost without warning.
func Forced() Policy {
	return Voluntary().With(ByProtected, Evict).With(ByUnmanaged, Evict).With(ByLocalStorage, Evict).With(ByHostPath, Evict)
}

// With returns the policy with another action for a rule.
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

// Verdict is what a drain does about one pod, and the rule that decides.
type Verdict struct {
	Rule   Rule
	Action Action
	// Until is when the verdict may change although the pod does not, in nanoseconds of Unix time; 0 is never.
	Until int64
}

// Text says why, with the pod as its subject; empty if no rule matches.
func (v Verdict) Text(f *Facts) string { return rules[v.Rule].text(f) }

// Judge applies the rules to a pod.
func (p Policy) Judge(f *Facts, now time.Time) Verdict {
	for r := ByKeepsNode; r <= ByFinished; r++ {
		if rules[r].match(f) {
			return Verdict{Rule: r, Action: p.Of(r)}
		}
	}
	var v Verdict
	for r := ByProtected; r < numRules; r++ {
		if !rules[r].match(f) || r == ByProtected && !f.Protection.InForce(now) {
			continue
		}
		a := p.Of(r)
		if a == Refuse && rules[r].waived != nil && rules[r].waived(f) {
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
