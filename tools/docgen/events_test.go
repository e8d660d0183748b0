package main

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// eventWriters are the functions that send an Event to the API server.
var eventWriters = []string{"Eventf", "CreateEvent"}

func TestEveryEventReasonIsInReference(t *testing.T) {
	for path, s := range allSources() {
		reasons, takes := map[string]string{}, map[string][]int{} // the constants by name, and the functions that take one
		for _, c := range s.constants() {
			if slices.Contains(eventTypes, c.typeName) {
				reasons[c.name] = c.value
			}
		}
		writes := false
		s.visitNodes(func(n ast.Node) {
			switch n := n.(type) {
			case *ast.FuncDecl:
				takes[n.Name.Name] = reasonParameters(n)
			case *ast.CallExpr:
				writes = writes || slices.Contains(eventWriters, calledName(n))
			}
		})
		listed := slices.ContainsFunc(eventPackages, func(w struct{ path, title, text string }) bool { return w.path == path })
		if writes && !listed && path != "internal/kubeapi" {
			t.Errorf("package %s writes Events, and its reasons are not in the reference", path)
		}
		if listed && (!writes || len(reasons) == 0) {
			t.Errorf("package %s no longer writes Events", path)
		}
		used := map[string]bool{}
		kinds := eventKinds(t, path)
		s.visitNodes(func(n ast.Node) {
			if id, ok := n.(*ast.Ident); ok && reasons[id.Name] != "" {
				used[id.Name] = true
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return
			}
			name := calledName(call)
			if listed && name == "Eventf" && !isReason(call.Args[3]) {
				t.Errorf("package %s: the reason of an Event does not have the type of reasons: %s", path, formatCallee(call.Fun))
			}
			for _, at := range takes[name] {
				if at < len(call.Args) {
					if _, literal := call.Args[at].(*ast.BasicLit); literal {
						t.Errorf("package %s: a call of %s has a literal Event reason; use a constant", path, name)
					}
				}
			}
			checkSameKind(t, path, call, kinds)
		})
		for name := range reasons {
			if !used[name] {
				t.Errorf("package %s: %s is the reason of no Event", path, name)
			}
		}
	}
}

// reasonParameters returns the positions of a function's parameters that are Event reasons.
func reasonParameters(f *ast.FuncDecl) (places []int) {
	at := 0
	for _, field := range f.Type.Params.List {
		of, ok := field.Type.(*ast.Ident)
		for range max(len(field.Names), 1) {
			if ok && slices.Contains(eventTypes, of.Name) {
				places = append(places, at)
			}
			at++
		}
	}
	return places
}

// isReason reports whether an expression has the form string(reason).
func isReason(e ast.Expr) bool {
	c, ok := e.(*ast.CallExpr)
	return ok && calledName(c) == "string"
}

// eventKinds returns the types of a package's Events by the names of their reasons.
func eventKinds(t *testing.T, path string) map[string]string {
	t.Helper()
	kinds := map[string]string{}
	if slices.ContainsFunc(eventPackages, func(w struct{ path, title, text string }) bool { return w.path == path }) {
		for _, e := range findPackageEvents(path) {
			kinds[e.name] = e.kind
		}
	}
	return kinds
}

// checkSameKind compares the comment of a reason with a call that has both the reason and the type of its Event.
func checkSameKind(t *testing.T, path string, call *ast.CallExpr, kinds map[string]string) {
	t.Helper()
	is, name := "", ""
	switch calledName(call) {
	case "normal":
		is = "Normal"
	case "warning":
		is = "Warning"
	}
	for _, arg := range call.Args {
		if kind, found := strings.CutPrefix(formatCallee(arg), "corev1.EventType"); found {
			is = kind
		}
		if c, conversion := arg.(*ast.CallExpr); conversion && len(c.Args) == 1 {
			arg = c.Args[0]
		}
		if id, ident := arg.(*ast.Ident); ident && kinds[id.Name] != "" {
			name = id.Name
		}
	}
	if is != "" && name != "" && is != kinds[name] {
		t.Errorf("package %s: the comment of %s states the type %s, but an Event has the type %s", path, name, kinds[name], is)
	}
}
