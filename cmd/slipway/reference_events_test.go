package main

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/compat/aksnth"
	"github.com/slipway-dev/slipway/internal/compat/mechanic"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
)

// event is a reason of Events.
type event struct{ name, reason, kind, on, when string }

// told is how the comment of an Event's reason is written.
var told = regexp.MustCompile(`(?s)^(\w+) is (Normal|Warning), on ((?:Node|Pod|NodeGroup|NodeRetirement)(?: and (?:Node|Pod|NodeGroup|NodeRetirement))*): (.+)$`)

// eventTypes are how packages call the type of the reasons of their Events.
var eventTypes = []string{"EventReason", "eventReason"}

// eventsOf are the reasons of a package's Events. Those without a comment of the form are occasions that no Event tells of.
func eventsOf(t *testing.T, path string) (all []event) {
	t.Helper()
	for _, c := range sourceOf(t, path).constants() {
		if !slices.Contains(eventTypes, c.of) || c.group == "" || !strings.HasPrefix(c.group, "The reasons.") {
			continue
		}
		m := told.FindStringSubmatch(c.doc)
		if m == nil || m[1] != c.name {
			t.Errorf("package %s: the comment of %s does not say of which type its Events are, what they are on, and when they are written: %q", path, c.name, c.doc)
			continue
		}
		all = append(all, event{c.name, c.value, m[2], m[3], strings.Join(strings.Fields(m[4]), " ")})
	}
	return all
}

// who are the packages that write Events, in the order of the reference.
var who = []struct{ path, title, text string }{
	{"internal/agent", "Agent", "Of the node that it guards, whoever asks for it: its cloud, its conditions, or `slipway drain`."},
	{"internal/retirement", "Retirements", "Of a manager that takes a node out of service."},
	{"internal/replacement", "Replacements", "Of a manager that orders a machine in the place of one that its cloud takes away."},
	{"internal/nodegroup", "Idle nodes", "Of a manager that looks at NodeGroups with `scaleDown.idleByLabel`, and at whether NodeGroups are acted on."},
	{"internal/nodegroup/autoscaler", "Scaling", "Of a manager that looks at NodeGroups with `scaleUp` or `scaleDown.underused`."},
	{"internal/manager", "Strays", "Of a manager that looks for machines without a Node and Nodes without a machine."},
}

func TestTheReferenceOfEventsIsCurrent(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Events\n\nEvery reason of the Kubernetes Events that Slipway writes. Events of Nodes, NodeGroups and NodeRetirements are in the namespace `default`.\n")
	reasons := map[string]string{}
	for _, w := range who {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| reason | type | on | when |\n|---|---|---|---|\n", w.title, w.text)
		for _, e := range eventsOf(t, w.path) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", e.reason, e.kind, e.on, inCell.Replace(e.when))
			if other := reasons[e.reason]; other != "" {
				t.Errorf("%s is a reason of %s and of %s", e.reason, other, w.path)
			}
			reasons[e.reason] = w.path
		}
	}
	b.WriteString("\n## Drop-in commands\n\n`slipway mechanic` and `slipway aks-node-termination-handler` say some of an agent's in the words of the tools that they stand in for.\n\n" +
		"| command | instead of | reason | type | message |\n|---|---|---|---|---|\n")
	for _, v := range []struct {
		command string
		voice   agent.Voice
	}{{"mechanic", mechanic.Voice("NODE")}, {"aks-node-termination-handler", aksnth.Voice}} {
		said := 0
		for _, c := range sourceOf(t, "internal/agent").constants() {
			if !slices.Contains(eventTypes, c.of) {
				continue
			}
			for _, kind := range notice.Interruptions() {
				words, ok := v.voice(agent.Occasion{Reason: agent.EventReason(c.value), Notice: notice.Notice{Source: azure.Name, Type: kind}})
				row := fmt.Sprintf("| `%s` | `%s` | `%s` | %s | %s |\n", v.command, c.value, words.Reason, words.Type, inCell.Replace(words.Message))
				if ok && !strings.Contains(b.String(), row) {
					b.WriteString(row)
					said++
				}
			}
		}
		if said == 0 {
			t.Errorf("slipway %s says nothing in words of its own", v.command)
		}
	}
	current(t, "events.md", b.String())
}

// writers are the functions that hand an Event on to the API server.
var writers = []string{"Eventf", "CreateEvent"}

func TestTheReasonOfEveryEventIsAConstantOfTheReference(t *testing.T) {
	for path, s := range everySource(t) {
		reasons, takes := map[string]string{}, map[string][]int{} // the constants by name, and the functions that take one
		for _, c := range s.constants() {
			if slices.Contains(eventTypes, c.of) {
				reasons[c.name] = c.value
			}
		}
		writes := false
		s.each(func(n ast.Node) {
			switch n := n.(type) {
			case *ast.FuncDecl:
				takes[n.Name.Name] = reasonParameters(n)
			case *ast.CallExpr:
				writes = writes || slices.Contains(writers, calledName(n))
			}
		})
		listed := slices.ContainsFunc(who, func(w struct{ path, title, text string }) bool { return w.path == path })
		if writes && !listed && path != "internal/kubeapi" {
			t.Errorf("package %s writes Events, and the reference does not have its reasons", path)
		}
		if listed && (!writes || len(reasons) == 0) {
			t.Errorf("package %s writes no Events any more", path)
		}
		used := map[string]bool{}
		kinds := kindsOf(t, path)
		s.each(func(n ast.Node) {
			if id, is := n.(*ast.Ident); is && reasons[id.Name] != "" {
				used[id.Name] = true
			}
			call, is := n.(*ast.CallExpr)
			if !is {
				return
			}
			name := calledName(call)
			if listed && name == "Eventf" && !isReason(call.Args[3]) {
				t.Errorf("package %s: the reason of an Event is not of the type: %s", path, spelt(call.Fun))
			}
			for _, at := range takes[name] {
				if at < len(call.Args) {
					if _, literal := call.Args[at].(*ast.BasicLit); literal {
						t.Errorf("package %s: the reason of an Event is written where %s is called", path, name)
					}
				}
			}
			sameKind(t, path, call, kinds)
		})
		for name := range reasons {
			if !used[name] {
				t.Errorf("package %s: %s is no reason of any Event", path, name)
			}
		}
	}
}

// reasonParameters are the places of a function's parameters that are reasons of Events.
func reasonParameters(f *ast.FuncDecl) (places []int) {
	at := 0
	for _, field := range f.Type.Params.List {
		of, is := field.Type.(*ast.Ident)
		for range max(len(field.Names), 1) {
			if is && slices.Contains(eventTypes, of.Name) {
				places = append(places, at)
			}
			at++
		}
	}
	return places
}

// isReason reports an expression such as string(reason).
func isReason(e ast.Expr) bool {
	c, is := e.(*ast.CallExpr)
	return is && calledName(c) == "string"
}

// kindsOf are the types of a package's Events, by the names of their reasons.
func kindsOf(t *testing.T, path string) map[string]string {
	t.Helper()
	kinds := map[string]string{}
	if slices.ContainsFunc(who, func(w struct{ path, title, text string }) bool { return w.path == path }) {
		for _, e := range eventsOf(t, path) {
			kinds[e.name] = e.kind
		}
	}
	return kinds
}

// sameKind holds the comment of a reason to a call that has both the reason and the type of its Event.
func sameKind(t *testing.T, path string, call *ast.CallExpr, kinds map[string]string) {
	t.Helper()
	is, name := "", ""
	switch calledName(call) {
	case "normal":
		is = "Normal"
	case "warning":
		is = "Warning"
	}
	for _, arg := range call.Args {
		if kind, found := strings.CutPrefix(spelt(arg), "corev1.EventType"); found {
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
		t.Errorf("package %s: the comment of %s says that its Events are %s, and one is %s", path, name, kinds[name], is)
	}
}
