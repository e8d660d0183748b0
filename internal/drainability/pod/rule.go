package pod

import (
	"fmt"
	"slices"
)

// Rule is one of the rules; the zero Rule is that no rule matches.
type Rule uint8

// The rules, in the order in which they are tried. Up to ByFinished the first that matches decides. Of those after it the
// strictest does: permission to lose one thing is no permission to lose another.
const (
	Ordinary Rule = iota
	ByKeepsNode
	ByMirror
	ByExcluded
	ByDaemonSet
	ByTerminating
	ByFinished
	ByProtected
	ByUnmanaged
	ByLocalStorage
	ByHostPath
	numRules
)

// rule is one rule. Each is in the file named after it.
type rule struct {
	name  string
	match func(*Facts) bool
	// action is what a voluntary drain does.
	action Action
	// waived reports that annotations allow what the rule refuses; nil is never.
	waived func(*Facts) bool
	// text says why, with the pod as its subject.
	text func(*Facts) string
	// remedy says what would lift a refusal.
	remedy string
}

var rules = [numRules]rule{
	Ordinary:    {name: "ordinary", text: says("")},
	ByKeepsNode: keepsNode, ByMirror: mirror, ByExcluded: excluded, ByDaemonSet: daemonSet, ByTerminating: terminating,
	ByFinished: finished, ByProtected: protected, ByUnmanaged: unmanaged, ByLocalStorage: localStorage, ByHostPath: hostPath,
}

func has(flag Flags) func(*Facts) bool { return func(f *Facts) bool { return f.Has(flag) } }

func says(text string) func(*Facts) string { return func(*Facts) string { return text } }

// String is the rule's name in reports and documentation.
func (r Rule) String() string {
	if r >= numRules {
		return fmt.Sprintf("Rule(%d)", uint8(r))
	}
	return rules[r].name
}

// Remedy says what would lift a refusal; empty if nothing simple would.
func (r Rule) Remedy() string { return rules[r].remedy }

// MarshalText returns the rule's name.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads a rule's name.
func (r *Rule) UnmarshalText(text []byte) error {
	i := slices.IndexFunc(rules[:], func(one rule) bool { return one.name == string(text) })
	if i < 0 {
		return fmt.Errorf("rule %q is not known", text)
	}
	*r = Rule(i)
	return nil
}

// Action is what a drain does about a pod.
type Action uint8

// The actions.
const (
	// Evict asks the pod to leave, and waits for it.
	Evict Action = iota
	// Leave neither touches the pod nor waits for it.
	Leave
	// Await waits for the pod without asking.
	Await
	// Refuse stops the drain for the pod's sake.
	Refuse
)

var actions = [...]string{"evict", "leave", "await", "refuse"}

// String is the action's name in reports.
func (a Action) String() string { return actions[a] }

// MarshalText returns the action's name.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads an action's name.
func (a *Action) UnmarshalText(text []byte) error {
	i := slices.Index(actions[:], string(text))
	if i < 0 {
		return fmt.Errorf("action %q is not known", text)
	}
	*a = Action(i)
	return nil
}
