package main

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/notice/condition"
)

// conditionType is a type of conditions that Slipway sets, and the reasons that it gives them.
type conditionType struct {
	constant constant
	reasons  []string
}

// anyCode stands for the codes of what blocks a retirement or ends it early.
const anyCode = "one of the codes below"

// nodeGroupConditions are those of NodeGroups.
func nodeGroupConditions(t *testing.T) []conditionType {
	t.Helper()
	notRead := namedConstants(t, "internal/nodegroup", "CloudNotRead")
	return withReasons(t, "Conditions of a NodeGroup", map[string][]string{
		"GroupAccepted":       append(valuesOf(blockOf(t, "api/v1alpha1", "Reasons of the condition Accepted")), notRead...),
		"GroupCloudReachable": append(valuesOf(blockOf(t, "internal/nodegroup", "Reasons of the condition CloudReachable")), notRead...),
	})
}

// retirementConditions are those of NodeRetirements.
func retirementConditions(t *testing.T) []conditionType {
	t.Helper()
	words := namedConstants(t, "internal/retirement", "admitted", "goesOn", "nodeDeleting")
	phase := func(name string) []string { return namedConstants(t, "api/v1alpha1", name) }
	return withReasons(t, "Conditions of a NodeRetirement", map[string][]string{
		"RetirementAdmitted":        {words[0], anyCode},
		"RetirementDrained":         phase("Drained"),
		"RetirementNodeDeleted":     append(phase("NodeDeleted"), words[2]),
		"RetirementInstanceDeleted": phase("InstanceDeleted"),
		"RetirementBlocked":         {words[1], anyCode},
		"RetirementSucceeded":       append(phase("Succeeded"), anyCode),
	})
}

func withReasons(t *testing.T, title string, reasons map[string][]string) (all []conditionType) {
	t.Helper()
	for _, c := range blockOf(t, "api/v1alpha1", title) {
		if reasons[c.name] == nil {
			t.Errorf("the reference has no reasons of the condition %s", c.name)
		}
		all = append(all, conditionType{c, reasons[c.name]})
		delete(reasons, c.name)
	}
	for name := range reasons {
		t.Errorf("the reference has reasons of %s, which is no condition", name)
	}
	return all
}

// ownOf is a constant's comment without its name at the beginning.
func ownOf(c constant) string {
	return capital(strings.TrimPrefix(strings.Join(strings.Fields(c.doc), " "), c.name+" "))
}

func TestTheReferenceOfConditionsIsCurrent(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Conditions\n\nEvery type of condition that Slipway sets or goes by.\n")
	for _, of := range []struct {
		kind string
		all  []conditionType
	}{{"NodeGroups", nodeGroupConditions(t)}, {"NodeRetirements", retirementConditions(t)}} {
		fmt.Fprintf(&b, "\n## On %s\n\n| type | | reasons |\n|---|---|---|\n", of.kind)
		for _, c := range of.all {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.constant.value, inCell.Replace(ownOf(c.constant)), strings.ReplaceAll(listed(c.reasons), "`"+anyCode+"`", anyCode))
		}
	}
	fmt.Fprintf(&b, "\nThe codes say what blocks a retirement or has ended it early; `status.reasons` has them too, each with its object and a message: %s.\n",
		listed(retirementCodes(t)))
	b.WriteString("\n## On Nodes, set\n\nThe lifecycle conditions of KEP-5683, each while it holds; afterwards they are taken off.\n\n| type | | reason |\n|---|---|---|\n")
	ours := namedConstants(t, "internal/agent", "conditionReason")
	if other := namedConstants(t, "internal/retirement", "conditionReason"); !slices.Equal(ours, other) {
		t.Errorf("agent and manager give other reasons: %s and %s", ours, other)
	}
	for _, c := range blockOf(t, "internal/cordon", "Types of the node lifecycle conditions") {
		if c.doc == "" {
			t.Errorf("the condition %s has no comment", c.name)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.value, inCell.Replace(ownOf(c)), listed(ours))
	}
	b.WriteString("\n## On Nodes, read\n\n| type | |\n|---|---|\n| `Ready` | Whether a node counts as available. |\n")
	fmt.Fprintf(&b, "| %s | AKS's node-problem-detector announces by these what Scheduled Events announce too: they are confirmed with the metadata service (`onUnconfirmed`, "+
		"[configuration.md](configuration.md)). |\n| any other | What the agent's `conditions` say. |\n", listed(condition.Hints()))
	current(t, "conditions.md", b.String())
}

func TestEveryConditionThatIsSetIsInTheReference(t *testing.T) {
	known := map[string]bool{}
	for _, c := range slices.Concat(nodeGroupConditions(t), retirementConditions(t)) {
		known["v1alpha1."+c.constant.name] = true
	}
	for _, c := range blockOf(t, "internal/cordon", "Types of the node lifecycle conditions") {
		known["cordon."+c.name] = true
	}
	set := map[string]bool{}
	note := func(path string, e ast.Expr) {
		name := spelt(e)
		if known[name] {
			set[name] = true
			return
		}
		if text, is := textOf(e); is || strings.HasPrefix(name, "v1alpha1.") || strings.HasPrefix(name, "cordon.") {
			t.Errorf("package %s sets a condition %s%s, which is not in the reference", path, name, text)
		}
	}
	for path, s := range everySource(t) {
		s.each(func(n ast.Node) {
			switch n := n.(type) {
			case *ast.CompositeLit:
				of := ""
				if n.Type != nil {
					of = spelt(n.Type)
					if list, is := n.Type.(*ast.ArrayType); is {
						of = spelt(list.Elt)
					}
				}
				if of != "metav1.Condition" && of != "cordon.Condition" {
					return
				}
				typesIn(n, func(e ast.Expr) { note(path, e) })
			case *ast.CallExpr:
				if spelt(n.Fun) == "p.condition" {
					note(path, n.Args[0])
				}
			}
		})
	}
	// A variable says which condition is reached with which phase.
	for _, f := range sourceOf(t, "internal/retirement").files {
		ast.Inspect(f, func(n ast.Node) bool {
			if e, is := n.(*ast.SelectorExpr); is && known[spelt(e)] {
				set[spelt(e)] = true
			}
			return true
		})
	}
	for name := range known {
		if !set[name] {
			t.Errorf("nothing sets %s, which is in the reference", name)
		}
	}
}

// typesIn visits the values of the keys Type of a literal, and of those within it.
func typesIn(n *ast.CompositeLit, visit func(ast.Expr)) {
	for _, e := range n.Elts {
		switch e := e.(type) {
		case *ast.KeyValueExpr:
			if key, is := e.Key.(*ast.Ident); is && key.Name == "Type" {
				visit(e.Value)
			}
		case *ast.CompositeLit:
			if e.Type == nil {
				typesIn(e, visit)
			}
		}
	}
}
