package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/observe"
)

// printReport prints the drain report of the node. The names of the answer are the drained nodes.
func (d *nodeDrain) printReport(r drain.Report) {
	err := d.flags.output.printRecord(d.out, json.RawMessage(r.JSON()), func(w io.Writer, wide bool) error {
		return writeDrainReport(w, r, wide)
	}, d.nameIf(r.Outcome == drain.Drained)...)
	if err != nil {
		d.printResult("cannot print the drain report: " + err.Error())
	}
}

// nameIf returns the name of the node for -o name if the node is, or would be, drained.
func (d *nodeDrain) nameIf(drained bool) []string {
	if !drained {
		return nil
	}
	return []string{formatName("Node", d.options.Node)}
}

// writeDrainReport writes the summary of a drain. If wide is true, it also writes a row for each pod. Otherwise it only names
// pods that were deleted without eviction, were killed early, or needed a successor.
func writeDrainReport(w io.Writer, r drain.Report, wide bool) error {
	var text bytes.Buffer
	fmt.Fprintln(&text, r.Summary())
	if wide {
		writePodTable(&text, r)
	} else {
		writeUnusualPods(&text, r)
	}
	_, err := text.WriteTo(w)
	return err
}

func writeUnusualPods(w io.Writer, r drain.Report) {
	for _, p := range r.Pods {
		if p.Removal == drain.ForceDeleted || p.WasCutShort() {
			fmt.Fprintf(w, "  %s/%s: %s with %d s of its %d s grace period, %s\n", p.Namespace, p.Name, p.Removal,
				p.GivenGraceSeconds, p.WantedGraceSeconds, p.End)
		}
		if p.Surge != nil {
			fmt.Fprintf(w, "  %s/%s: successor %s\n", p.Namespace, p.Name, p.Surge)
		}
	}
}

// podColumns are the columns of -o wide. A cell gets the start of the drain.
var podColumns = []struct {
	title string
	cell  func(p drain.PodReport, start time.Time) string
}{
	{"NAMESPACE", func(p drain.PodReport, _ time.Time) string { return p.Namespace }},
	{"POD", func(p drain.PodReport, _ time.Time) string { return p.Name }},
	{"OWNER", func(p drain.PodReport, _ time.Time) string { return p.Owner }},
	{"ACTION", func(p drain.PodReport, _ time.Time) string { return p.Action.String() }},
	{"WAVE", func(p drain.PodReport, _ time.Time) string { return strconv.Itoa(p.Wave) }},
	{"GROUP", func(p drain.PodReport, _ time.Time) string { return p.Group }},
	{"WAITED FOR", func(p drain.PodReport, _ time.Time) string { return describeDelays(p.Delays) }},
	{"REMOVAL", func(p drain.PodReport, _ time.Time) string { return string(p.Removal) }},
	{"GRACE", describeGrace},
	{"GONE AFTER", describeGone},
	{"END", func(p drain.PodReport, _ time.Time) string { return string(p.End) }},
	{"RULE", func(p drain.PodReport, _ time.Time) string { return describeDecision(p.Decision) }},
	{"SUCCESSOR", func(p drain.PodReport, _ time.Time) string { return p.Surge.String() }},
}

// writePodTable writes a row for each pod. It leaves out columns that are empty for all pods.
func writePodTable(w io.Writer, r drain.Report) {
	if len(r.Pods) == 0 {
		return
	}
	rows := make([][]string, len(r.Pods)+1)
	for _, column := range podColumns {
		cells, empty := []string{column.title}, true
		for _, p := range r.Pods {
			cell := column.cell(p, r.StartedAt)
			empty = empty && cell == ""
			cells = append(cells, cmp.Or(cell, "-"))
		}
		if empty {
			continue
		}
		for i, cell := range cells {
			rows[i] = append(rows[i], cell)
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, cells := range rows {
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	_ = table.Flush() // w is a buffer
}

// describeGrace returns the grace period that the pod got and wanted.
func describeGrace(p drain.PodReport, _ time.Time) string {
	if p.Action == podrules.Skip {
		return ""
	}
	return fmt.Sprintf("%ds of %ds", p.GivenGraceSeconds, p.WantedGraceSeconds)
}

// describeGone returns how long after the start of the drain the pod was gone.
func describeGone(p drain.PodReport, start time.Time) string {
	switch {
	case p.IsNotRemoved():
		return "still on the node"
	case p.EndedAt.IsZero():
		return ""
	}
	return p.EndedAt.Sub(start).Round(durationStep).String()
}

// durationStep is the precision of durations in the table.
const durationStep = 100 * time.Millisecond

// describeDecision returns the rule with its detail.
func describeDecision(d drain.Decision) string {
	if d.Detail == "" {
		return d.Rule.String()
	}
	return d.Rule.String() + " (" + d.Detail + ")"
}

// describeDelays returns what a pod waited for, such as "disruption-budget shop/web (refused 3 times in 2s)".
func describeDelays(delays []drain.Delay) string {
	var all []string
	for _, d := range delays {
		text := strings.TrimSpace(string(d.Reason) + " " + d.PDB)
		if d.Count > 0 {
			took := time.Duration(d.Seconds * float64(time.Second)).Round(durationStep)
			text += fmt.Sprintf(" (refused %s in %s)", observe.FormatCount(d.Count, "time"), took)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
