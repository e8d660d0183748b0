package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/screen"
)

// NodePods says for each pod of a node why it stays, or where it would go.
type NodePods struct {
	Node  string
	Lines []PaneLine
}

// DescribeNodePods describes the pods of a node from the watched objects. It applies the rules of slipway why and sends no
// request.
func (w *Watcher) DescribeNodePods(ctx context.Context, node string, policy planner.Policy, rules planner.Options) (NodePods, error) {
	pods, err := w.pods.ListOnNode(ctx, node)
	if err != nil {
		return NodePods{}, err
	}
	w.mu.Lock()
	plan, err := planner.PlanEvacuation(w.loads, node, policy, rules)
	pdbs := w.findExhaustedPDBs(pods)
	w.mu.Unlock()
	if err != nil {
		return NodePods{}, err
	}
	lines := describeNodePods(pods, plan, pdbs, rules.Now)
	for _, k := range w.kinds {
		if p := w.findKindProblem(k, rules.Now); p != "" && (k.optional || k.name == "pods") {
			lines = append([]PaneLine{{Trouble, "! " + p}}, lines...)
		}
	}
	return NodePods{node, lines}, nil
}

// findExhaustedPDBs returns for each pod the PodDisruptionBudget that allows no eviction now. The caller holds the lock.
func (w *Watcher) findExhaustedPDBs(pods []*corev1.Pod) map[string]string {
	found := map[string]string{}
	for _, p := range pods {
		key := placement.PodKey{Namespace: p.Namespace, Name: p.Name}
		known := w.loads.Pod(key)
		if known == nil {
			continue
		}
		if b, refused := w.loads.PDBs.FindPDBToCharge(known); refused == "" && b != nil && b.Allowed <= 0 {
			found[key.String()] = b.Key.String()
		}
	}
	return found
}

// describeNodePods returns a line for each pod: pods that stay first, then terminating pods, then the others. The reasons that
// concern the node come before all pods. exhausted maps pods to the PDB that allows no eviction.
func describeNodePods(pods []*corev1.Pod, plan *planner.Evacuation, exhausted map[string]string, now time.Time) []PaneLine {
	refusals, moves, deleted := map[string]planner.Refusal{}, map[string]string{}, map[string]string{}
	var ofNode []PaneLine
	for _, r := range plan.Refusals {
		switch _, known := refusals[r.Pod]; {
		case r.Pod == "" && r.Rule != "disruption-budget": // the pods of a PDB have lines of their own
			ofNode = append(ofNode, PaneLine{Protected, "node stays: " + r.Message})
		case !known:
			refusals[r.Pod] = r
		}
	}
	for _, m := range plan.Moves {
		moves[m.Pod.String()] = m.To
	}
	for _, d := range plan.DeletedPods {
		deleted[d.Pod.String()] = d.Rule
	}
	type podLine struct {
		rank       int
		name, text string
		severity   Severity
	}
	var lines []podLine
	width := 0
	for _, p := range pods {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		line := podLine{name: p.Namespace + "/" + p.Name}
		r, refused := refusals[line.name]
		pdb := exhausted[line.name]
		switch {
		case p.DeletionTimestamp != nil:
			line.rank, line.severity, line.text = 1, Changing, describeTermination(p.DeletionTimestamp.Sub(now))
		case deleted[line.name] != "":
			line.rank, line.text = 3, "is deleted with the node: "+deleted[line.name]
		case pdb != "":
			line.severity, line.text = Trouble, "waits for PDB "+pdb+", which allows no eviction now"
		case refused:
			r.Pod = ""
			line.severity, line.text = Trouble, "stays ("+r.Rule+"): "+r.String()
			if r.Remedy != "" {
				line.text += "; " + r.Remedy
			}
		case moves[line.name] != "":
			line.rank, line.text = 2, "would move to "+moves[line.name]
		default:
			line.rank, line.text = 2, "can be evicted"
		}
		width = max(width, len(line.name))
		lines = append(lines, line)
	}
	slices.SortFunc(lines, func(a, b podLine) int { return cmp.Or(cmp.Compare(a.rank, b.rank), strings.Compare(a.name, b.name)) })
	all := ofNode
	for _, line := range lines {
		all = append(all, PaneLine{line.severity, screen.ShortenName(line.name, min(width, maxPodNameWidth)) + "  " + line.text})
	}
	if len(lines) == 0 {
		all = append(all, PaneLine{Normal, "no pods"})
	}
	return all
}

// eventObjectWidth is the width of the object in a line about an Event, in cells.
const eventObjectWidth = 34

// maxPodNameWidth is the longest name of a pod in a pane, in cells.
const maxPodNameWidth = 44

// describeTermination returns how long a pod may still take to terminate.
func describeTermination(left time.Duration) string {
	if left < 0 {
		return fmt.Sprintf("is terminating, and its grace ended %s ago", screen.FormatDuration(-left))
	}
	return fmt.Sprintf("is terminating, at most %s longer", screen.FormatDuration(left))
}

// describeEvents returns the Events as lines of a pane.
func describeEvents(s State, now time.Time) (lines []PaneLine) {
	if s.EventProblem != "" {
		lines = append(lines, PaneLine{Trouble, "! " + s.EventProblem})
	}
	for _, e := range s.Events {
		line := PaneLine{Normal, fmt.Sprintf("%s  %s  %s  %s", screen.PadRight(screen.FormatDuration(now.Sub(e.At)), 7), screen.PadRight(e.Reason, 16), screen.ShortenName(e.Object, eventObjectWidth), e.Message)}
		if e.Count > 1 {
			line.Text += fmt.Sprintf(" (%d times)", e.Count)
		}
		if e.Warning {
			line.Severity = Trouble
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		lines = append(lines, PaneLine{Normal, "no Events about nodes, NodeGroups and NodeRetirements"})
	}
	return lines
}
