package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/report"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

const started = notice.Started

// doing says what a node is doing: of all that is true, what decides most about its next minutes.
func (b *builder) doing(n *corev1.Node, g *v1alpha1.NodeGroup) Doing {
	records, unreadable := cordon.List(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: n.Annotations}})
	notices := noticesOf(n)
	slices.SortStableFunc(notices, compareDue)
	rt := b.about(n)
	others := budget.Others(n)
	switch {
	case rt != nil && rt.Spec.Notice == nil:
		return leaving(rt)
	case len(notices) > 0:
		return b.noticed(n, notices[0])
	case rt != nil:
		return leaving(rt)
	case len(others) > 0:
		return Doing{Mood: Moving, Text: "being removed by " + strings.Join(others, ", ")}
	case n.DeletionTimestamp != nil:
		return Doing{Mood: Moving, Text: "its Node is being deleted", Since: n.DeletionTimestamp.Time}
	case !budget.Ready(n):
		return Doing{Mood: Trouble, Text: "not Ready", Since: notReadySince(n)}
	case n.Spec.Unschedulable:
		return cordoned(n, records, unreadable)
	}
	if key := nodegroup.HeldBy(n, b.Now); key != "" {
		return Doing{Mood: Held, Text: "held", Detail: key}
	}
	return b.used(n, g)
}

// used is what a node is doing that nobody takes away.
func (b *builder) used(n *corev1.Node, g *v1alpha1.NodeGroup) Doing {
	d, known := b.Idle[n.Name]
	if known && d.IdleSince != nil && d.MayLeaveAt != nil {
		idle := Doing{Mood: Waiting, Text: "idle", Since: *d.IdleSince, Until: *d.MayLeaveAt}
		if d.Verdict == nodegroup.Refused && len(d.Reasons) > 0 {
			idle.Detail = "stays: " + d.Reasons[0].Message
		}
		return idle
	}
	if g != nil {
		cooldown, asked := plan.UnderusedCooldown(g)
		if since := plan.Since(n, b.Now); asked && !since.IsZero() {
			return Doing{Mood: Waiting, Text: "underused", Since: since, Until: since.Add(cooldown)}
		}
	}
	if known && len(d.Reasons) > 0 && d.Reasons[0].Rule == nodegroup.KeepingPod {
		return Doing{Text: "in use", Detail: d.Reasons[0].Message}
	}
	switch load, known := b.Loads[n.Name]; {
	case !known:
		return Doing{Text: "in service"} // with what on it nobody can say
	case load.Pods == 0:
		return Doing{Text: "empty"}
	}
	return Doing{Text: "in use"}
}

// leaving is how far a retirement is.
func leaving(rt *v1alpha1.NodeRetirement) Doing {
	switch rt.Status.Phase {
	case "":
		return Doing{Mood: Moving, Text: "to leave", Detail: "no manager has looked at it yet"}
	case v1alpha1.Pending:
		return Doing{Mood: blockedMood(rt), Text: "to leave", Detail: rt.Status.Message}
	case v1alpha1.Cordoned:
		return Doing{Mood: blockedMood(rt), Text: "cordoned, to be drained", Detail: blocking(rt)}
	case v1alpha1.Draining:
		return draining(rt)
	case v1alpha1.Drained:
		return Doing{Mood: blockedMood(rt), Text: "drained", Since: retirement.ReachedAt(rt), Detail: blocking(rt)}
	case v1alpha1.NodeDeleted:
		d := Doing{Mood: blockedMood(rt), Text: "VM deleting", Since: retirement.ReachedAt(rt), Detail: blocking(rt)}
		if op := rt.Status.Operation; op != nil && op.RetryAfter != nil {
			d.Mood, d.Detail = Trouble, cmp.Or(d.Detail, fmt.Sprintf("%d attempts have failed", op.Attempts))
		}
		return d
	case v1alpha1.InstanceDeleted:
		return Doing{Mood: Moving, Text: "VM deleted, last checks", Detail: blocking(rt)}
	}
	return Doing{Mood: Trouble, Text: "retirement " + string(rt.Status.Phase), Detail: rt.Status.Message}
}

// draining is "draining 7 of 12", and which budgets or pods it waits for.
func draining(rt *v1alpha1.NodeRetirement) Doing {
	d := Doing{Mood: blockedMood(rt), Text: "draining"}
	p := rt.Status.Drain
	if p == nil {
		return d
	}
	d.Text = fmt.Sprintf("draining %d of %d", p.Gone, p.Total)
	switch budgets := budgetsIn(p.Summary); {
	case len(budgets) > 0:
		d.Mood, d.Detail = Trouble, "waiting for PDB "+strings.Join(budgets, ", ")
	case len(rt.Status.Reasons) > 0:
		d.Detail = "waiting for " + blocking(rt)
	case p.Stopping > 0:
		d.Detail = fmt.Sprintf("%d stopping", p.Stopping)
	}
	return d
}

// budgetsIn are the PodDisruptionBudgets that a drain's summary names; see [drain.Progress].
func budgetsIn(summary string) (names []string) {
	_, obstacles, _ := strings.Cut(summary, "(")
	for _, obstacle := range strings.Split(strings.TrimSuffix(obstacles, ")"), ", ") {
		what, _, _ := strings.Cut(obstacle, ": ")
		if name, is := strings.CutPrefix(what, string(drain.Budget)+" "); is {
			names = append(names, name)
		}
	}
	return names
}

// blocking is the first thing that holds a retirement up; empty when nothing does.
func blocking(rt *v1alpha1.NodeRetirement) string {
	if len(rt.Status.Reasons) == 0 {
		return ""
	}
	r := rt.Status.Reasons[0]
	s := r.Message
	if r.Object != "" {
		s = r.Object + ": " + s
	}
	if more := len(rt.Status.Reasons) - 1; more > 0 {
		s += fmt.Sprintf(" (and %d more)", more)
	}
	return s
}

func blockedMood(rt *v1alpha1.NodeRetirement) Mood {
	if len(rt.Status.Reasons) > 0 {
		return Trouble
	}
	return Moving
}

// noticed is what the agent does about a notice. While something blocks its drain, the agent says how far that is; else
// how many pods are left is counted here.
func (b *builder) noticed(n *corev1.Node, of Notice) Doing {
	d := Doing{Mood: Moving, Due: of.Due, Text: cmp.Or(of.Phase, "noticed") + " for " + of.Type}
	if of.Type == string(notice.Condition) {
		d.Text = cmp.Or(of.Phase, "noticed") + " for condition " + of.ID
	}
	if of.Started {
		d.Due, d.Detail = time.Time{}, "it is under way"
	}
	load, known := b.Loads[n.Name]
	switch summary := BlockedDrain(n); {
	case of.Phase != "draining":
	case summary != "":
		d.Mood, d.Text, d.Detail = Trouble, blockedText(summary), "for "+of.Type
	case known:
		d.Detail = counted(load.Pods, "pod") + " on it"
	}
	if of.Phase == "not-drained" {
		d.Mood = Trouble
	}
	return d
}

// BlockedDrain is the summary of a node's drain that something blocks, as its agent has it in the conditions; empty while
// nothing does.
func BlockedDrain(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == cordon.DrainInProgress && c.Status == corev1.ConditionTrue {
			return report.Blocked(c.Message)
		}
	}
	return ""
}

// blockedText is "draining 7 of 12, waiting for PDB shop/web", of a drain's summary.
func blockedText(summary string) string {
	gone, _, _ := strings.Cut(summary, " gone")
	if budgets := budgetsIn(summary); len(budgets) > 0 {
		return "draining " + gone + ", waiting for PDB " + strings.Join(budgets, ", ")
	}
	_, obstacles, _ := strings.Cut(summary, " (")
	return "draining " + gone + ", blocked by " + strings.TrimSuffix(obstacles, ")")
}

// cordoned says by whom: an owner of ours, by its record, or else who last set spec.unschedulable.
func cordoned(n *corev1.Node, records []cordon.Record, unreadable []error) Doing {
	d := Doing{Mood: Held, Text: "cordoned"}
	if len(unreadable) > 0 {
		d.Mood, d.Detail = Trouble, unreadable[0].Error()
	}
	for _, r := range records {
		if r.Cordon == cordon.Own {
			d.Text, d.Since, d.Detail = "cordoned by "+r.Owner, r.Since, cmp.Or(r.Reason, d.Detail)
			return d
		}
	}
	if by := unschedulableBy(n); by != "" {
		d.Text = "cordoned by " + by
	}
	return d
}

// unschedulableBy is the field manager of spec.unschedulable, such as kubectl-cordon; empty when that is not told.
func unschedulableBy(n *corev1.Node) string {
	for _, f := range n.ManagedFields {
		if f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), `"f:unschedulable"`) {
			return f.Manager
		}
	}
	return ""
}

func notReadySince(n *corev1.Node) time.Time {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.LastTransitionTime.Time
		}
	}
	return n.CreationTimestamp.Time
}
