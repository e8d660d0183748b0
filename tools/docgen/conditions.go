package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slipway-dev/slipway/internal/notice/condition"
)

// conditionType is a type of conditions that Slipway sets, and the reasons that it gives them.
type conditionType struct {
	constant constant
	reasons  []string
}

// anyCode stands for the codes of what blocks a retirement or ends it early.
const anyCode = "one of the codes below"

// otherReasons stands for the reasons of the conditions that Ready summarizes.
const otherReasons = "a reason of another condition"

// nodeGroupConditions are those of NodeGroups.
func nodeGroupConditions() []conditionType {
	notRead := namedConstants("internal/nodegroup", "CloudNotRead")
	return withReasons("Conditions of a NodeGroup", map[string][]string{
		"GroupReady":          append(namedConstants("api/v1alpha1", "ReadyReason"), otherReasons),
		"GroupAccepted":       append(valuesOf(blockOf("api/v1alpha1", "Reasons of the condition Accepted")), notRead...),
		"GroupCloudReachable": append(valuesOf(blockOf("internal/nodegroup", "Reasons of the condition CloudReachable")), notRead...),
		"GroupScaleUpAllowed": valuesOf(blockOf("api/v1alpha1", "Reasons of the condition ScaleUpAllowed")),
	})
}

// retirementConditions are those of NodeRetirements.
func retirementConditions() []conditionType {
	words := namedConstants("internal/retirement", "admitted", "goesOn", "nodeDeleting")
	phase := func(name string) []string { return namedConstants("api/v1alpha1", name) }
	return withReasons("Conditions of a NodeRetirement", map[string][]string{
		"RetirementAdmitted":        {words[0], anyCode},
		"RetirementDrained":         phase("Drained"),
		"RetirementNodeDeleted":     append(phase("NodeDeleted"), words[2]),
		"RetirementInstanceDeleted": phase("InstanceDeleted"),
		"RetirementBlocked":         {words[1], anyCode},
		"RetirementSucceeded":       append(phase("Succeeded"), anyCode),
	})
}

func withReasons(title string, reasons map[string][]string) (all []conditionType) {
	for _, c := range blockOf("api/v1alpha1", title) {
		if reasons[c.name] == nil {
			failf("the reference has no reasons of the condition %s", c.name)
		}
		all = append(all, conditionType{c, reasons[c.name]})
		delete(reasons, c.name)
	}
	for name := range reasons {
		failf("the reference has reasons of %s, which is no condition", name)
	}
	return all
}

// phrases are no reasons, so that they are not printed as code.
var phrases = strings.NewReplacer("`"+anyCode+"`", anyCode, "`"+otherReasons+"`", otherReasons)

// ownOf is a constant's comment without its name at the beginning.
func ownOf(c constant) string {
	return capital(strings.TrimPrefix(strings.Join(strings.Fields(c.doc), " "), c.name+" "))
}

func conditionsPage() string {
	var b strings.Builder
	b.WriteString("# Conditions\n\nEvery type of condition that Slipway sets or goes by.\n")
	for _, of := range []struct {
		kind string
		all  []conditionType
	}{{"NodeGroups", nodeGroupConditions()}, {"NodeRetirements", retirementConditions()}} {
		fmt.Fprintf(&b, "\n## On %s\n\n| type | | reasons |\n|---|---|---|\n", of.kind)
		for _, c := range of.all {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.constant.value, inCell.Replace(ownOf(c.constant)), phrases.Replace(listed(c.reasons)))
		}
	}
	fmt.Fprintf(&b, "\nThe codes say what blocks a retirement or has ended it early; `status.reasons` has them too, each with its object and a message: %s.\n",
		listed(retirementCodes()))
	b.WriteString("\n## On Nodes, set\n\nThe lifecycle conditions of KEP-5683, each while it holds; afterwards they are taken off.\n\n| type | | reason |\n|---|---|---|\n")
	ours := namedConstants("internal/agent", "conditionReason")
	if other := namedConstants("internal/retirement", "conditionReason"); !slices.Equal(ours, other) {
		failf("agent and manager give other reasons: %s and %s", ours, other)
	}
	for _, c := range blockOf("internal/cordon", "Types of the node lifecycle conditions") {
		if c.doc == "" {
			failf("the condition %s has no comment", c.name)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.value, inCell.Replace(ownOf(c)), listed(ours))
	}
	b.WriteString("\n## On Nodes, read\n\n| type | |\n|---|---|\n| `Ready` | Whether a node counts as available. |\n")
	fmt.Fprintf(&b, "| %s | AKS's node-problem-detector announces by these what Scheduled Events announce too: they are confirmed with the metadata service (`onUnconfirmed`, "+
		"[configuration.md](configuration.md)). |\n| any other | What the agent's `conditions` say. |\n", listed(condition.Hints()))
	return b.String()
}
