package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slipway-dev/slipway/internal/notice/condition"
)

// conditionType is the type of a condition that Slipway sets, with the reasons that the condition can have.
type conditionType struct {
	constant constant
	reasons  []string
}

// anyCodePlaceholder is the text in place of a list of all codes that block a retirement or end it early.
const anyCodePlaceholder = "one of the codes below"

// otherReasons is the text for the reasons that the condition Ready takes from other conditions.
const otherReasons = "a reason of another condition"

func nodeGroupConditions() []conditionType {
	notRead := namedConstants("internal/nodegroup", "CloudUnreadable")
	return newConditionTypes("Conditions of a NodeGroup", map[string][]string{
		"GroupReady":          append(namedConstants("api/v1alpha1", "ReadyReason"), otherReasons),
		"GroupAccepted":       append(constantValues(constantBlock("api/v1alpha1", "Reasons of the condition Accepted")), notRead...),
		"GroupCloudReachable": append(constantValues(constantBlock("internal/nodegroup", "Reasons of the condition CloudReachable")), notRead...),
		"GroupScaleUpAllowed": constantValues(constantBlock("api/v1alpha1", "Reasons of the condition ScaleUpAllowed")),
	})
}

func retirementConditions() []conditionType {
	words := namedConstants("internal/retirement", "admittedReason", "unblockedReason", "deletingReason")
	phase := func(name string) []string { return namedConstants("api/v1alpha1", name) }
	return newConditionTypes("Conditions of a NodeRetirement", map[string][]string{
		"RetirementAdmitted":        {words[0], anyCodePlaceholder},
		"RetirementDrained":         phase("Drained"),
		"RetirementNodeDeleted":     append(phase("NodeDeleted"), words[2]),
		"RetirementInstanceDeleted": phase("InstanceDeleted"),
		"RetirementBlocked":         {words[1], anyCodePlaceholder},
		"RetirementSucceeded":       append(phase("Succeeded"), anyCodePlaceholder),
	})
}

func newConditionTypes(title string, reasons map[string][]string) (all []conditionType) {
	for _, c := range constantBlock("api/v1alpha1", title) {
		if reasons[c.name] == nil {
			failf("the reference has no reasons of the condition %s: add them in tools/docgen", c.name)
		}
		all = append(all, conditionType{c, reasons[c.name]})
		delete(reasons, c.name)
	}
	for name := range reasons {
		failf("the reference has reasons of %s, which is not a condition", name)
	}
	return all
}

// phrases removes the code marks around the two placeholder texts, because these texts are not reasons.
var phrases = strings.NewReplacer("`"+anyCodePlaceholder+"`", anyCodePlaceholder, "`"+otherReasons+"`", otherReasons)

// commentWithoutName returns the comment of a constant without the constant's name at the beginning.
func commentWithoutName(c constant) string {
	return capitalize(strings.TrimPrefix(strings.Join(strings.Fields(c.doc), " "), c.name+" "))
}

func conditionsPage() string {
	var b strings.Builder
	b.WriteString("# Conditions\n\nAll types of conditions that Slipway sets or reads.\n")
	for _, of := range []struct {
		kind string
		all  []conditionType
	}{{"NodeGroups", nodeGroupConditions()}, {"NodeRetirements", retirementConditions()}} {
		fmt.Fprintf(&b, "\n## On %s\n\n| type | | reasons |\n|---|---|---|\n", of.kind)
		for _, c := range of.all {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.constant.value, cellEscaper.Replace(commentWithoutName(c.constant)), phrases.Replace(formatList(c.reasons)))
		}
	}
	fmt.Fprintf(&b, "\nThe codes name what blocks a retirement or has ended it early. `status.reasons` has them too, each with its object and a message: %s.\n",
		formatList(retirementCodes()))
	b.WriteString("\n## On Nodes, set\n\nThe lifecycle conditions of KEP-5683. Each is removed when it no longer holds.\n\n| type | | reason |\n|---|---|---|\n")
	ours := namedConstants("internal/agent", "conditionReason")
	if other := namedConstants("internal/retirement", "conditionReason"); !slices.Equal(ours, other) {
		failf("agent and manager set different reasons: %s and %s", ours, other)
	}
	for _, c := range constantBlock("internal/cordon", "Types of the node lifecycle conditions") {
		if c.doc == "" {
			failf("the condition %s has no comment", c.name)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.value, cellEscaper.Replace(commentWithoutName(c)), formatList(ours))
	}
	b.WriteString("\n## On Nodes, read\n\n| type | |\n|---|---|\n| `Ready` | Whether a node counts as available. |\n")
	fmt.Fprintf(&b, "| %s | AKS's node-problem-detector sets these for Scheduled Events. They are confirmed with the metadata service (`onUnconfirmed`, "+
		"[configuration.md](configuration.md)). |\n| any other | As the agent's `conditions` define. |\n", formatList(condition.HintTypes()))
	return b.String()
}
