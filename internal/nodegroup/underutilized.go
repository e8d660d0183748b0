package nodegroup

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// What follows is how the rule of underused nodes, which needs to know the whole cluster, sees the nodes of a group.

// Holding are the reasons for which a node stays whatever rule would have it leave.
func (w *World) Holding(n *Node) []Reason {
	reasons := w.blockingReasons(nil, n)
	if n.Keepers.Count > 0 {
		reasons = append(reasons, Reason{KeepingPod, n.Keepers.String()})
	}
	return reasons
}

// Open is the node's retirement that is not over, or nil.
func (n *Node) Open() *v1alpha1.NodeRetirement { return n.openRetirement() }

// LastFailure is the node's latest retirement that ended early, or nil.
func (n *Node) LastFailure() *v1alpha1.NodeRetirement { return n.lastFailedRetirement() }

// AfterFailure is until when nobody asks for a node's retirement again since one has failed; zero where none has. A failure in the future, as
// when the clock was set back since, does not count.
func (w *World) AfterFailure(n *Node) time.Time {
	var until time.Time
	for i := range n.Retirements {
		rt := &n.Retirements[i]
		if !n.isFailedRetirement(rt) || elapsed.Future(rt.Status.Times.Finished.Time, w.Now) {
			continue
		}
		if at := rt.Status.Times.Finished.Add(retirement.AfterFailure(w.Group)); at.After(until) {
			until = at
		}
	}
	return until
}

// Counted is the node as budgets count it.
func (n *Node) Counted() budget.Node { return n.toBudgetNode() }

// Rescuable reports whether a retirement can be called off before it has begun.
func Rescuable(rt *v1alpha1.NodeRetirement) bool { return isCancellable(rt) && !isAdmitted(rt) }

// NewCluster is what all groups are judged by, of nodes that were read elsewhere. Pods that keep nodes are read where a
// group has a rule that asks for them.
func NewCluster(pods live.Pods, groups []v1alpha1.NodeGroup, nodes []corev1.Node, retirements []v1alpha1.NodeRetirement,
	now time.Time,
) *Cluster {
	return &Cluster{Groups: groups, Nodes: nodes, Retirements: retirements, Claims: Claim(groups, nodes), Now: now, pods: pods}
}

// NotAccepted is why a group is not acted on, by what a manager has found and by what is wrong with it now; empty when
// it is acted on.
func (c *Cluster) NotAccepted(g *v1alpha1.NodeGroup) string {
	if f, wrong := c.Claims.Faults[g.Name]; wrong {
		return f.Message
	}
	return acceptance.Of(g).Message
}
