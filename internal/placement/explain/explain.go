// Package explain prints the results of placement as text and tables, for the plan command, the manager's events and
// the status of a retirement. It decides nothing.
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

// PrintVictimSelection prints the nodes to remove, in order, and why the other evaluated nodes stay. showPodTargets adds the target of
// each pod.
func PrintVictimSelection(w io.Writer, s *planner.VictimSelection, showPodTargets bool) error {
	p := newPrinter(w)
	p.printLine("REMOVE\tCOST\tPODS TO MOVE\tPODS DELETED WITH IT")
	for i := range s.Victims {
		v := &s.Victims[i]
		p.printLine("%s\t%s\t%d\t%d", v.Node, formatCost(v.Cost), len(v.Moves), len(v.DeletedPods))
		for _, g := range v.Groups {
			p.printLine("  restarts %s (%s here)", g.Name, formatPodCount(g.Pods))
		}
		if showPodTargets {
			for _, m := range v.Moves {
				p.printLine("  %s -> %s", m.Pod, m.To)
			}
		}
	}
	if len(s.Victims) == 0 {
		p.printLine("(none)")
	}
	if len(s.Skipped) > 0 {
		p.printLine("")
		p.printLine("KEEP\tRULE\tREASON")
		for _, node := range s.Skipped {
			for _, r := range node.Refusals {
				p.printLine("%s\t%s\t%s", node.Node, r.Rule, r)
			}
		}
	}
	return p.flush()
}

// PrintEvacuation prints what would happen to the pods of a removed node, each rule against the removal, and what would help.
func PrintEvacuation(w io.Writer, e *planner.Evacuation) error {
	p := newPrinter(w)
	if e.IsFeasible() {
		p.printLine("%s can be removed: %s would be recreated on other nodes, at a cost of %s.", e.Node, formatPodCount(len(e.Moves)), formatCost(e.Cost))
	} else {
		p.printLine("%s cannot be removed.", e.Node)
	}
	p.startSectionUnlessEmpty("BLOCKED BY\tREASON\tREMEDY", len(e.Refusals))
	for _, r := range e.Refusals {
		p.printLine("%s\t%s\t%s", r.Rule, r, r.Remedy)
	}
	p.startSectionUnlessEmpty("GROUP THAT WOULD RESTART\tPODS HERE", len(e.Groups))
	for _, g := range e.Groups {
		p.printLine("%s\t%d", g.Name, g.Pods)
	}
	p.startSectionUnlessEmpty("POD\tWOULD MOVE TO", len(e.Moves))
	for _, m := range e.Moves {
		p.printLine("%s\t%s", m.Pod, m.To)
	}
	p.startSectionUnlessEmpty("POD\tDELETED WITH THE NODE, BY RULE", len(e.DeletedPods))
	for _, s := range e.DeletedPods {
		p.printLine("%s\t%s", s.Pod, s.Rule)
	}
	return p.flush()
}

// PrintPendingPod prints why a pod is pending, and which new instance would help. If showAllNodes is true, it lists every
// node that the pod fits on.
func PrintPendingPod(w io.Writer, s *planner.PendingPod, showAllNodes bool) error {
	p := newPrinter(w)
	fitting := abbreviateNames(s.FittingNodes)
	if showAllNodes {
		fitting = strings.Join(s.FittingNodes, ", ")
	}
	switch {
	case s.Node != "" && len(s.FittingNodes) > 0:
		p.printLine("%s is not pending: it is on %s. A second one would fit on %s.", s.Pod, s.Node, fitting)
	case s.Node != "":
		p.printLine("%s is not pending: it is on %s. A second one would fit on no node.", s.Pod, s.Node)
	case len(s.FittingNodes) > 0:
		p.printLine("%s fits on %s: it waits for the scheduler.", s.Pod, fitting)
	default:
		p.printLine("%s fits on no node.", s.Pod)
	}
	p.startSectionUnlessEmpty("NODES\tREASON\tPREDICATE", len(s.Nodes))
	for _, t := range s.Nodes {
		p.printLine("%d\t%s\t%s", t.Nodes, t.Reason, t.Reason.Predicate)
	}
	p.startSectionUnlessEmpty("NEW INSTANCE\tWOULD HELP", len(s.NewInstances))
	for _, name := range sortedKeys(s.NewInstances) {
		answer := s.NewInstances[name]
		if answer == placement.Fits.String() {
			answer = "yes"
		}
		p.printLine("%s\t%s", name, answer)
	}
	return p.flush()
}

// PrintPlan prints the launches for pending pods, if any, and the nodes to remove.
func PrintPlan(w io.Writer, s *planner.Plan, showPodTargets bool) error {
	if s.Launch != nil {
		if err := PrintPacking(w, s.Launch); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
	}
	return PrintVictimSelection(w, s.Remove, showPodTargets)
}

// PrintPacking prints the launches with their numbers of pods, and the pods that no launch would help.
func PrintPacking(w io.Writer, s *planner.Packing) error {
	p := newPrinter(w)
	launched := 0
	p.printLine("LAUNCH\tZONE\tPODS")
	for _, m := range s.Instances {
		p.printLine("%s\t%s\t%d", m.Template, m.Zone, len(m.Pods))
		launched += len(m.Pods)
	}
	if len(s.Instances) == 0 {
		p.printLine("(none)")
	}
	p.printLine("")
	p.printLine("%s on existing nodes, %s on new instances, at a cost of %s.", formatPodCount(len(s.Moves)-launched), formatPodCount(launched),
		formatCost(s.Cost))
	p.startSectionUnlessEmpty("UNSCHEDULABLE POD\tTEMPLATE\tREASON", len(s.Unschedulable))
	for _, h := range s.Unschedulable {
		for _, name := range sortedKeys(h.Reasons) {
			p.printLine("%s\t%s\t%s", h.Pod, name, h.Reasons[name])
		}
	}
	return p.flush()
}

// maxNames is how many names are listed. The rest is only counted.
const maxNames = 5

func abbreviateNames(names []string) string {
	if len(names) <= maxNames+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d others", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func formatCost(c float64) string {
	if c >= 1000 { // without an exponent, for costs in seconds
		return fmt.Sprintf("%.0f", c)
	}
	return fmt.Sprintf("%.4g", c)
}

func formatPodCount(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// printer aligns columns and keeps the first error.
type printer struct {
	w   *tabwriter.Writer
	err error
}

func newPrinter(w io.Writer) *printer { return &printer{w: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)} }

func (p *printer) printLine(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// startSectionUnlessEmpty starts a table with a header, unless it has no rows.
func (p *printer) startSectionUnlessEmpty(header string, rowCount int) {
	if rowCount > 0 {
		p.printLine("")
		p.printLine("%s", header)
	}
}

func (p *printer) flush() error {
	if p.err != nil {
		return p.err
	}
	return p.w.Flush()
}
