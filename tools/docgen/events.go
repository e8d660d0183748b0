package main

import (
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/compat/aksnth"
	"github.com/slipway-dev/slipway/internal/compat/awsnth"
	"github.com/slipway-dev/slipway/internal/compat/mechanic"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/observe"
)

type event struct{ name, reason, kind, on, when string }

// reasonComment matches the comment that the constant of an Event reason must have.
var reasonComment = regexp.MustCompile(`(?s)^(\w+) is (Normal|Warning), on ((?:Node|Pod|NodeGroup|NodeRetirement)(?: and (?:Node|Pod|NodeGroup|NodeRetirement))*): (.+)$`)

// eventTypes lists the names of the Go types that Event reasons have.
var eventTypes = []string{"EventReason", "eventReason"}

// findPackageEvents returns the Events of a package, from the constants in the block "The reasons.". It panics if
// the comment of a constant does not match reasonComment.
func findPackageEvents(path string) (all []event) {
	for _, c := range findSource(path).constants() {
		if !slices.Contains(eventTypes, c.typeName) || c.group == "" || !strings.HasPrefix(c.group, "The reasons.") {
			continue
		}
		m := reasonComment.FindStringSubmatch(c.doc)
		if m == nil || m[1] != c.name {
			failf("package %s: the comment of %s must state the type of its Events, their object and their occasion: %q", path, c.name, c.doc)
		}
		all = append(all, event{c.name, c.value, m[2], m[3], strings.Join(strings.Fields(m[4]), " ")})
	}
	return all
}

// eventPackages lists the packages that write Events, in the order of the reference page.
var eventPackages = []struct{ path, title, text string }{
	{"internal/agent", "Agent", "Events about the agent's node, for notices, conditions and `slipway drain`."},
	{"internal/retirement", "Retirements", "Events of a manager that retires a node."},
	{"internal/provisioning/replacement", "Replacements", "Events of a manager that replaces an instance after its cloud has reclaimed it."},
	{"internal/nodegroup", "Idle nodes", "Events of a manager about NodeGroups with `scaleDown.idleByLabel`, and about the acceptance of NodeGroups."},
	{"internal/provisioning", "Scaling", "Events of a manager about NodeGroups with `scaleUp` or `scaleDown.underutilized`."},
	{"cmd/internal/startqueue", "AWS queue", "Events of a manager, or of `slipway aws-node-termination-handler`, about its own pod, which are in the namespace of the pod."},
	{"internal/orphans", "Orphans", "Events of a manager about instances without a Node and Nodes without an instance."},
}

func eventsPage() string {
	var b strings.Builder
	b.WriteString("# Events\n\nAll reasons of the Kubernetes Events that Slipway writes. Events of Nodes, NodeGroups and NodeRetirements are in the namespace `default`.\n")
	reasons := map[string]string{}
	for _, w := range eventPackages {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| reason | type | on | when |\n|---|---|---|---|\n", w.title, w.text)
		for _, e := range findPackageEvents(w.path) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", e.reason, e.kind, e.on, cellEscaper.Replace(e.when))
			if other := reasons[e.reason]; other != "" {
				failf("%s is a reason of %s and of %s", e.reason, other, w.path)
			}
			reasons[e.reason] = w.path
		}
	}
	b.WriteString("\n## Drop-in commands\n\n`slipway mechanic`, `slipway aks-node-termination-handler` and `slipway aws-node-termination-handler -emit-kubernetes-events` write some of the agent's Events with the texts of the tools that they replace.\n\n" +
		"| command | instead of | reason | type | message |\n|---|---|---|---|---|\n")
	for _, v := range []struct {
		command string
		voice   agent.EventFormatter
		source  string
	}{
		{"mechanic", mechanic.NewEventFormatter("NODE"), azure.SourceName}, {"aks-node-termination-handler", aksnth.FormatEvent, azure.SourceName},
		{awsnth.Tool, newAWSNTHFormatter(), aws.SourceName},
	} {
		count := 0
		for _, c := range findSource("internal/agent").constants() {
			if !slices.Contains(eventTypes, c.typeName) {
				continue
			}
			kinds := notice.Interruptions()
			if v.source == aws.SourceName {
				kinds = append(kinds, notice.Rebalance)
			}
			for _, kind := range kinds {
				all, _ := v.voice(agent.EventTrigger{Reason: agent.EventReason(c.value), Message: "MESSAGE", Notice: notice.Notice{ID: "ID", Source: v.source, Type: kind, NotBefore: sampleTime, Description: "CODE: DESCRIPTION"}})
				for _, words := range all {
					row := fmt.Sprintf("| `%s` | `%s` | `%s` | %s | %s |\n", v.command, c.value, words.Reason, words.Type, cellEscaper.Replace(sampleTimes.Replace(words.Message)))
					if !strings.Contains(b.String(), row) {
						b.WriteString(row)
						count++
					}
				}
			}
		}
		if count == 0 {
			failf("slipway %s has no Events of its own", v.command)
		}
	}
	return b.String()
}

// sampleTime is the time of the interruption in sample notices. The reference shows TIME instead of it.
var (
	sampleTime  = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	sampleTimes = strings.NewReplacer(sampleTime.Format(time.RFC3339), "TIME", sampleTime.Format("2 Jan 2006 15:04:05 GMT"), "TIME")
)

// newAWSNTHFormatter returns the Events of aws-node-termination-handler with all monitors enabled.
func newAWSNTHFormatter() agent.EventFormatter {
	o, err := awsnth.ParseOptions([]string{"-node-name=NODE", "-emit-kubernetes-events", "-enable-asg-lifecycle-draining", "-enable-rebalance-monitoring"},
		func(string) string { return "" }, io.Discard)
	must(err)
	return awsnth.NewReporter(o, awsnth.NewMetrics(observe.NewRegistry()), &awsnth.Identity{}, slog.New(slog.DiscardHandler)).FormatEvents
}
