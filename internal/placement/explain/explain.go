// Package explain puts the answers of placement in words and tables, the same ones for the plan command, the manager's
// events and the status of a retirement. It decides nothing: what it prints is the trace that placement returned.
package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// Selection prints which nodes would go, in order, and why the others that were looked at would not. wide adds where
// each pod would go.
func Selection(w io.Writer, s *planner.Selection, wide bool) error {
	p := newPrinter(w)
	p.line("REMOVE\tCOST\tPODS TO MOVE\tPODS THAT GO WITH IT")
	for i := range s.Victims {
		v := &s.Victims[i]
		p.line("%s\t%s\t%d\t%d", v.Node, cost(v.Cost), len(v.Moves), len(v.Stays))
		if wide {
			for _, m := range v.Moves {
				p.line("  %s -> %s", m.Pod, m.To)
			}
		}
	}
	if len(s.Victims) == 0 {
		p.line("(none)")
	}
	if len(s.Passed) > 0 {
		p.line("")
		p.line("KEEP\tRULE\tBECAUSE")
		for _, passed := range s.Passed {
			for _, r := range passed.Refusals {
				p.line("%s\t%s\t%s", passed.Node, r.Rule, r)
			}
		}
	}
	return p.flush()
}

// Node prints what would become of one node: each pod, each rule that holds it, and what would change the answer.
func Node(w io.Writer, e *planner.Evacuation) error {
	p := newPrinter(w)
	if e.Feasible() {
		p.line("%s can go: %s would be created anew elsewhere, at a cost of %s.", e.Node, pods(len(e.Moves)), cost(e.Cost))
	} else {
		p.line("%s cannot go.", e.Node)
	}
	p.section("HELD BY\tBECAUSE\tWHAT WOULD HELP", len(e.Refusals))
	for _, r := range e.Refusals {
		p.line("%s\t%s\t%s", r.Rule, r, r.Remedy)
	}
	p.section("POD\tWOULD GO TO", len(e.Moves))
	for _, m := range e.Moves {
		p.line("%s\t%s", m.Pod, m.To)
	}
	p.section("POD\tGOES WITH THE NODE", len(e.Stays))
	for _, s := range e.Stays {
		p.line("%s\t%s", s.Pod, s.Rule)
	}
	return p.flush()
}

// Pod prints why a pod is pending, and which machine would help.
func Pod(w io.Writer, s *planner.Pending) error {
	p := newPrinter(w)
	switch {
	case s.Node != "" && len(s.Fits) > 0:
		p.line("%s is not pending: it is on %s. One more like it would fit on %s.", s.Pod, s.Node, some(s.Fits))
	case s.Node != "":
		p.line("%s is not pending: it is on %s. One more like it would fit on no node.", s.Pod, s.Node)
	case len(s.Fits) > 0:
		p.line("%s fits on %s: it waits for the scheduler.", s.Pod, some(s.Fits))
	default:
		p.line("%s fits on no node.", s.Pod)
	}
	p.section("NODES\tREASON\tPREDICATE", len(s.Nodes))
	for _, t := range s.Nodes {
		p.line("%d\t%s\t%s", t.Nodes, t.Reason, t.Reason.Predicate)
	}
	p.section("NEW MACHINE\tWOULD HELP", len(s.Machines))
	for _, name := range sorted(s.Machines) {
		answer := s.Machines[name]
		if answer == placement.Fits.String() {
			answer = "yes"
		}
		p.line("%s\t%s", name, answer)
	}
	return p.flush()
}

// Plan prints what would be launched for pending pods, if there are any, and what would be removed.
func Plan(w io.Writer, s *planner.Plan, wide bool) error {
	if s.Launch != nil {
		if err := Packing(w, s.Launch); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
	}
	return Selection(w, s.Remove, wide)
}

// Packing prints which machines would be launched, for how many pods, and the pods that none would help.
func Packing(w io.Writer, s *planner.Packing) error {
	p := newPrinter(w)
	launched := 0
	p.line("LAUNCH\tZONE\tPODS")
	for _, m := range s.Machines {
		p.line("%s\t%s\t%d", m.Flavour, m.Zone, len(m.Pods))
		launched += len(m.Pods)
	}
	if len(s.Machines) == 0 {
		p.line("(none)")
	}
	p.line("")
	p.line("%s on nodes that are there, %s on new machines, at a cost of %s.", pods(len(s.Moves)-launched), pods(launched),
		cost(s.Cost))
	p.section("POD THAT NO MACHINE HELPS\tFLAVOUR\tBECAUSE", len(s.Helpless))
	for _, h := range s.Helpless {
		for _, name := range sorted(h.Reasons) {
			p.line("%s\t%s\t%s", h.Pod, name, h.Reasons[name])
		}
	}
	return p.flush()
}

// few is how many names are listed before the rest is counted.
const few = 5

func some(names []string) string {
	if len(names) <= few+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d others", strings.Join(names[:few], ", "), len(names)-few)
}

func sorted(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func cost(c float64) string { return fmt.Sprintf("%.4g", c) }

func pods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// printer aligns columns and remembers the first error.
type printer struct {
	w   *tabwriter.Writer
	err error
}

func newPrinter(w io.Writer) *printer { return &printer{w: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)} }

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// section begins a table, unless it has no rows.
func (p *printer) section(header string, rows int) {
	if rows > 0 {
		p.line("")
		p.line("%s", header)
	}
}

func (p *printer) flush() error {
	if p.err != nil {
		return p.err
	}
	return p.w.Flush()
}
