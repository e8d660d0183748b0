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
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

const started = notice.Started

// describeNode returns the activity of a node. If a node has several activities, it returns the one that matters most
// for the next minutes.
func (b *builder) describeNode(n *corev1.Node, g *v1alpha1.NodeGroup) Activity {
	records, unreadable := cordon.ListRecords(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: n.Annotations}})
	notices := readNodeNotices(n)
	slices.SortStableFunc(notices, compareDue)
	rt := b.retirementByNode[n.Name]
	others := disruptionbudget.FindRemovingTools(n)
	switch {
	case rt != nil && rt.Spec.Notice == nil:
		return describeRetirement(rt)
	case len(notices) > 0:
		return b.describeNotice(n, notices[0])
	case rt != nil:
		return describeRetirement(rt)
	case len(others) > 0:
		return Activity{Severity: Changing, Text: "being removed by " + strings.Join(others, ", ")}
	case n.DeletionTimestamp != nil:
		return Activity{Severity: Changing, Text: "its Node is being deleted", Since: n.DeletionTimestamp.Time}
	case !disruptionbudget.IsReady(n):
		return Activity{Severity: Trouble, Text: "not Ready", Since: notReadySince(n)}
	case n.Spec.Unschedulable:
		return describeCordon(n, records, unreadable)
	}
	if key := nodegroup.FindKeepAnnotation(n, b.Now); key != "" {
		return Activity{Severity: Protected, Text: "protected", Detail: key}
	}
	return b.describeNodeInService(n, g)
}

// describeNodeInService returns the activity of a node that is not being removed.
func (b *builder) describeNodeInService(n *corev1.Node, g *v1alpha1.NodeGroup) Activity {
	d, known := b.Decisions[n.Name]
	if known && d.IdleSince != nil && d.RemovableAt != nil {
		idle := Activity{Severity: Waiting, Text: "idle", Since: *d.IdleSince, Until: *d.RemovableAt}
		if d.Verdict == nodegroup.VerdictBlocked && len(d.Reasons) > 0 {
			idle.Detail = "stays: " + d.Reasons[0].Message
		}
		return idle
	}
	if g != nil {
		cooldown, asked := plan.UnderutilizedCooldown(g)
		if since := plan.ReadUnderutilizedSince(n, b.Now); asked && !since.IsZero() {
			return Activity{Severity: Waiting, Text: "underutilized", Since: since, Until: since.Add(cooldown)}
		}
	}
	if known && len(d.Reasons) > 0 && d.Reasons[0].Rule == nodegroup.KeepingPod {
		return Activity{Text: "in use", Detail: d.Reasons[0].Message}
	}
	switch load, known := b.Loads[n.Name]; {
	case !known:
		return Activity{Text: "in service"} // its pods are unknown
	case load.Pods == 0:
		return Activity{Text: "empty"}
	}
	return Activity{Text: "in use"}
}

// describeRetirement returns the progress of a retirement.
func describeRetirement(rt *v1alpha1.NodeRetirement) Activity {
	switch rt.Status.Phase {
	case "":
		return Activity{Severity: Changing, Text: "retirement requested", Detail: "no manager has processed it yet"}
	case v1alpha1.Pending:
		return Activity{Severity: retirementSeverity(rt), Text: "retirement pending", Detail: rt.Status.Message}
	case v1alpha1.Cordoned:
		return Activity{Severity: retirementSeverity(rt), Text: "cordoned, drain pending", Detail: formatFirstReason(rt)}
	case v1alpha1.Draining:
		return describeDraining(rt)
	case v1alpha1.Drained:
		return Activity{Severity: retirementSeverity(rt), Text: "drained", Since: retirement.PhaseReachedAt(rt), Detail: formatFirstReason(rt)}
	case v1alpha1.NodeDeleted:
		d := Activity{Severity: retirementSeverity(rt), Text: "VM deleting", Since: retirement.PhaseReachedAt(rt), Detail: formatFirstReason(rt)}
		if op := rt.Status.Operation; op != nil && op.RetryAfter != nil {
			d.Severity, d.Detail = Trouble, cmp.Or(d.Detail, fmt.Sprintf("%d attempts have failed", op.Attempts))
		}
		return d
	case v1alpha1.InstanceDeleted:
		return Activity{Severity: Changing, Text: "VM deleted, last checks", Detail: formatFirstReason(rt)}
	}
	return Activity{Severity: Trouble, Text: "retirement " + string(rt.Status.Phase), Detail: rt.Status.Message}
}

// describeDraining returns the progress of a drain, such as "draining 7 of 12". It adds the PDBs or pods that the drain
// waits for.
func describeDraining(rt *v1alpha1.NodeRetirement) Activity {
	d := Activity{Severity: retirementSeverity(rt), Text: "draining"}
	p := rt.Status.Drain
	if p == nil {
		return d
	}
	d.Text = fmt.Sprintf("draining %d of %d", p.Gone, p.Total)
	switch budgets := parsePDBNames(p.Summary); {
	case len(budgets) > 0:
		d.Severity, d.Detail = Trouble, "waiting for PDB "+strings.Join(budgets, ", ")
	case len(rt.Status.Reasons) > 0:
		d.Detail = "waiting for " + formatFirstReason(rt)
	case p.Stopping > 0:
		d.Detail = fmt.Sprintf("%d stopping", p.Stopping)
	}
	return d
}

// parsePDBNames returns the names of the PodDisruptionBudgets in the summary of a drain, see [drain.Progress].
func parsePDBNames(summary string) (names []string) {
	_, obstacles, _ := strings.Cut(summary, "(")
	for _, obstacle := range strings.Split(strings.TrimSuffix(obstacles, ")"), ", ") {
		what, _, _ := strings.Cut(obstacle, ": ")
		if name, is := strings.CutPrefix(what, string(drain.ObstaclePDB)+" "); is {
			names = append(names, name)
		}
	}
	return names
}

// formatFirstReason returns the first reason that blocks a retirement. It returns "" if nothing blocks the retirement.
func formatFirstReason(rt *v1alpha1.NodeRetirement) string {
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

func retirementSeverity(rt *v1alpha1.NodeRetirement) Severity {
	if len(rt.Status.Reasons) > 0 {
		return Trouble
	}
	return Changing
}

// describeNotice returns what the agent does about a notice. If something blocks the drain, the text has the agent's
// progress. Otherwise it has the number of pods on the node.
func (b *builder) describeNotice(n *corev1.Node, of Notice) Activity {
	d := Activity{Severity: Changing, Due: of.Due, Text: cmp.Or(of.Phase, "noticed") + " for " + of.Type}
	if of.Type == string(notice.Condition) {
		d.Text = cmp.Or(of.Phase, "noticed") + " for condition " + of.ID
	}
	if of.Started {
		d.Due, d.Detail = time.Time{}, "started"
	}
	load, known := b.Loads[n.Name]
	switch summary := FindBlockedDrain(n); {
	case of.WaitsFor != "":
		d.Detail = "waits for " + of.WaitsFor
	case of.Phase != "draining":
	case summary != "":
		d.Severity, d.Text, d.Detail = Trouble, formatBlockedDrain(summary), "for "+of.Type
	case known:
		d.Detail = observe.FormatCount(load.Pods, "pod") + " on it"
	}
	if of.Phase == "not-drained" {
		d.Severity = Trouble
	}
	return d
}

// FindBlockedDrain returns the summary of a blocked drain from the node's conditions. It returns "" if no drain is
// blocked.
func FindBlockedDrain(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == cordon.DrainInProgress && c.Status == corev1.ConditionTrue {
			return report.BlockedProgress(c.Message)
		}
	}
	return ""
}

// formatBlockedDrain converts the summary of a drain to a text such as "draining 7 of 12, waiting for PDB shop/web".
func formatBlockedDrain(summary string) string {
	gone, _, _ := strings.Cut(summary, " gone")
	if budgets := parsePDBNames(summary); len(budgets) > 0 {
		return "draining " + gone + ", waiting for PDB " + strings.Join(budgets, ", ")
	}
	_, obstacles, _ := strings.Cut(summary, " (")
	return "draining " + gone + ", blocked by " + strings.TrimSuffix(obstacles, ")")
}

// describeCordon returns the activity of a cordoned node, with the name of the owner of a cordon claim. Without a claim
// it uses the field manager of spec.unschedulable.
func describeCordon(n *corev1.Node, records []cordon.Record, unreadable []error) Activity {
	d := Activity{Severity: Protected, Text: "cordoned"}
	if len(unreadable) > 0 {
		d.Severity, d.Detail = Trouble, unreadable[0].Error()
	}
	for _, r := range records {
		if r.Cordon == cordon.OwnCordon {
			d.Text, d.Since, d.Detail = "cordoned by "+r.Owner, r.Since, cmp.Or(r.Reason, d.Detail)
			return d
		}
	}
	if by := findUnschedulableManager(n); by != "" {
		d.Text = "cordoned by " + by
	}
	return d
}

// findUnschedulableManager returns the field manager that set spec.unschedulable, such as kubectl-cordon. It returns ""
// if it is unknown.
func findUnschedulableManager(n *corev1.Node) string {
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
