package main

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

func TestEveryConditionIsInReference(t *testing.T) {
	known := map[string]bool{}
	for _, c := range slices.Concat(nodeGroupConditions(), retirementConditions()) {
		known["v1alpha1."+c.constant.name] = true
	}
	for _, c := range constantBlock("internal/cordon", "Types of the node lifecycle conditions") {
		known["cordon."+c.name] = true
	}
	set := map[string]bool{}
	note := func(path string, e ast.Expr) {
		name := formatCallee(e)
		if known[name] {
			set[name] = true
			return
		}
		if text, ok := stringValue(e); ok || strings.HasPrefix(name, "v1alpha1.") || strings.HasPrefix(name, "cordon.") {
			t.Errorf("package %s sets the condition %s%s, which is not in the reference", path, name, text)
		}
	}
	for path, s := range allSources() {
		s.visitNodes(func(n ast.Node) {
			switch n := n.(type) {
			case *ast.CompositeLit:
				of := ""
				if n.Type != nil {
					of = formatCallee(n.Type)
					if list, ok := n.Type.(*ast.ArrayType); ok {
						of = formatCallee(list.Elt)
					}
				}
				if of != "metav1.Condition" && of != "cordon.Condition" {
					return
				}
				visitTypes(n, func(e ast.Expr) { note(path, e) })
			case *ast.CallExpr:
				if formatCallee(n.Fun) == "p.setCondition" {
					note(path, n.Args[0])
				}
			}
		})
	}
	// A variable maps phases to conditions.
	for _, f := range findSource("internal/retirement").files {
		ast.Inspect(f, func(n ast.Node) bool {
			if e, ok := n.(*ast.SelectorExpr); ok && known[formatCallee(e)] {
				set[formatCallee(e)] = true
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

// visitTypes visits the values of the keys Type of a literal and its nested literals.
func visitTypes(n *ast.CompositeLit, visit func(ast.Expr)) {
	for _, e := range n.Elts {
		switch e := e.(type) {
		case *ast.KeyValueExpr:
			if key, ok := e.Key.(*ast.Ident); ok && key.Name == "Type" {
				visit(e.Value)
			}
		case *ast.CompositeLit:
			if e.Type == nil {
				visitTypes(e, visit)
			}
		}
	}
}
