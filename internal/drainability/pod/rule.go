package pod

import (
	"fmt"
	"slices"
)

// Rule names the rule that has decided about a pod. The zero Rule means that no rule matches the pod.
type Rule uint8

// The rules in the order of evaluation. The first match decides if it is RuleFinished or a rule before it. Among all
// later rules that match, the rule with the strictest action decides: permission to lose one thing does not permit the
// loss of another.
const (
	NoRule Rule = iota
	RuleKeepsNode
	RuleMirror
	RuleExcluded
	RuleDaemonSet
	RuleTerminating
	RuleFinished
	RuleProtected
	RuleUnmanaged
	RuleLocalStorage
	RuleHostPath
	numRules
)

// rule is the definition of a Rule. Each definition is in a file with the rule's name.
type rule struct {
	name    string
	matches func(*Facts) bool
	// action is the action of a voluntary drain.
	action Action
	// isWaived reports whether annotations allow what the rule refuses; nil means never.
	isWaived func(*Facts) bool
	// describe returns the reason as a predicate of the pod, such as "has finished".
	describe func(*Facts) string
	// remedy says how to remove the obstacle.
	remedy string
}

var rules = [numRules]rule{
	NoRule:        {name: "ordinary", describe: fixedText("")},
	RuleKeepsNode: keepsNodeRule, RuleMirror: mirrorRule, RuleExcluded: excludedRule, RuleDaemonSet: daemonSetRule, RuleTerminating: terminatingRule,
	RuleFinished: finishedRule, RuleProtected: protectedRule, RuleUnmanaged: unmanagedRule, RuleLocalStorage: localStorageRule, RuleHostPath: hostPathRule,
}

func hasFlag(flag Flags) func(*Facts) bool { return func(f *Facts) bool { return f.HasFlag(flag) } }

func fixedText(text string) func(*Facts) string { return func(*Facts) string { return text } }

// String returns the rule's name in reports and documentation.
func (r Rule) String() string {
	if r >= numRules {
		return fmt.Sprintf("Rule(%d)", uint8(r))
	}
	return rules[r].name
}

// Remedy returns how a user can remove the obstacle. It returns "" without a simple way.
func (r Rule) Remedy() string { return rules[r].remedy }

// MarshalText returns the rule's name.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses a rule's name.
func (r *Rule) UnmarshalText(text []byte) error {
	i := slices.IndexFunc(rules[:], func(one rule) bool { return one.name == string(text) })
	if i < 0 {
		return fmt.Errorf("unknown rule %q", text)
	}
	*r = Rule(i)
	return nil
}

// Action is what a drain does with a pod.
type Action uint8

const (
	// Evict evicts the pod and waits until it is gone.
	Evict Action = iota
	// Skip skips the pod: the drain does not evict it and does not wait for it.
	Skip
	// AwaitTermination waits until the pod is gone, without evicting it.
	AwaitTermination
	// RefuseDrain stops the whole drain.
	RefuseDrain
)

var actionNames = [...]string{"evict", "leave", "await", "refuse"}

// String returns the action's name in reports.
func (a Action) String() string { return actionNames[a] }

// MarshalText writes the action's name in reports: "evict", "leave", "await" or "refuse".
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what MarshalText writes. It returns an error for any other text.
func (a *Action) UnmarshalText(text []byte) error {
	i := slices.Index(actionNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown action %q", text)
	}
	*a = Action(i)
	return nil
}
