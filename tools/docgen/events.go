package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

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
func eventsOf(path string) (all []event) {
	for _, c := range sourceOf(path).constants() {
		if !slices.Contains(eventTypes, c.of) || c.group == "" || !strings.HasPrefix(c.group, "The reasons.") {
			continue
		}
		m := told.FindStringSubmatch(c.doc)
		if m == nil || m[1] != c.name {
			failf("package %s: the comment of %s does not say of which type its Events are, what they are on, and when they are written: %q", path, c.name, c.doc)
		}
		all = append(all, event{c.name, c.value, m[2], m[3], strings.Join(strings.Fields(m[4]), " ")})
	}
	return all
}

// who are the packages that write Events, in the order of the reference.
var who = []struct{ path, title, text string }{
	{"internal/agent", "Agent", "Of the node that it guards, whoever asks for it: its cloud, its conditions, or `slipway drain`."},
	{"internal/retirement", "Retirements", "Of a manager that takes a node out of service."},
	{"internal/provisioning/replacement", "Replacements", "Of a manager that orders a machine in the place of one that its cloud takes away."},
	{"internal/nodegroup", "Idle nodes", "Of a manager that looks at NodeGroups with `scaleDown.idleByLabel`, and at whether NodeGroups are acted on."},
	{"internal/provisioning", "Scaling", "Of a manager that looks at NodeGroups with `scaleUp` or `scaleDown.underutilized`."},
	{"internal/orphans", "Orphans", "Of a manager that looks for machines without a Node and Nodes without a machine."},
}

func eventsPage() string {
	var b strings.Builder
	b.WriteString("# Events\n\nEvery reason of the Kubernetes Events that Slipway writes. Events of Nodes, NodeGroups and NodeRetirements are in the namespace `default`.\n")
	reasons := map[string]string{}
	for _, w := range who {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| reason | type | on | when |\n|---|---|---|---|\n", w.title, w.text)
		for _, e := range eventsOf(w.path) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", e.reason, e.kind, e.on, inCell.Replace(e.when))
			if other := reasons[e.reason]; other != "" {
				failf("%s is a reason of %s and of %s", e.reason, other, w.path)
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
		for _, c := range sourceOf("internal/agent").constants() {
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
			failf("slipway %s says nothing in words of its own", v.command)
		}
	}
	return b.String()
}
