package nodegroup

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// BlockingReasons returns the reasons that forbid the retirement of a node under every rule. Package provisioning uses
// it for underutilized nodes, because that rule needs the whole cluster.
func (w *GroupSnapshot) BlockingReasons(n *Node) []Reason {
	reasons := w.blockingReasons(nil, n)
	if n.KeepingPods.Count > 0 {
		reasons = append(reasons, Reason{KeepingPod, n.KeepingPods.String()})
	}
	return reasons
}

// OpenRetirement returns the node's unfinished retirement, or nil.
func (n *Node) OpenRetirement() *v1alpha1.NodeRetirement { return n.openRetirement() }

// LastFailedRetirement returns the node's latest retirement that ended early, or nil.
func (n *Node) LastFailedRetirement() *v1alpha1.NodeRetirement { return n.lastFailedRetirement() }

// FailureCooldownEnd returns until when no rule requests another retirement of the node after a failed one. It returns
// zero if no retirement has failed. It ignores a failure with a time in the future, because the clock was set back
// after it.
func (w *GroupSnapshot) FailureCooldownEnd(n *Node) time.Time {
	var until time.Time
	for i := range n.Retirements {
		rt := &n.Retirements[i]
		if !n.isFailedRetirement(rt) || elapsed.IsFuture(rt.Status.Times.Finished.Time, w.Now) {
			continue
		}
		if at := rt.Status.Times.Finished.Add(retirement.FailureCooldown(w.Group)); at.After(until) {
			until = at
		}
	}
	return until
}

// ToBudgetNode returns the node as disruption budgets count it.
func (n *Node) ToBudgetNode() disruptionbudget.Node { return n.toBudgetNode() }

// CanCancel reports whether a retirement has not begun yet, so that it can be cancelled without a restore of its node.
func CanCancel(rt *v1alpha1.NodeRetirement) bool { return isCancellable(rt) && !isAdmitted(rt) }

// NewCluster returns a Cluster with nodes that the caller has read. Pods are read later, and only for groups with a
// rule that needs them.
func NewCluster(pods live.PodReader, groups []v1alpha1.NodeGroup, nodes []corev1.Node, retirements []v1alpha1.NodeRetirement,
	now time.Time,
) *Cluster {
	return &Cluster{Groups: groups, Nodes: nodes, Retirements: retirements, Assignment: AssignNodes(groups, nodes), Now: now, pods: pods}
}

// WhyNotAccepted returns why a group is not accepted: its current Fault, or the reason in its status. It returns "" if
// the group is accepted.
func (c *Cluster) WhyNotAccepted(g *v1alpha1.NodeGroup) string {
	if f, wrong := c.Assignment.FaultByGroup[g.Name]; wrong {
		return f.Message
	}
	return acceptance.FromGroup(g).Message
}
