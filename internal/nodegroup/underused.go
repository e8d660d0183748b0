package nodegroup

import (
	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// What follows is how the rule of underused nodes, which needs to know the whole cluster, sees the nodes of a group.

// Holding are the reasons for which a node stays whatever rule would have it leave.
func (w *World) Holding(n *Node) []Reason {
	reasons := w.holding(nil, n)
	if len(n.Keepers) > 0 {
		reasons = append(reasons, Reason{KeepingPod, keptBy(n.Keepers)})
	}
	return reasons
}

// Open is the node's retirement that is not over, or nil.
func (n *Node) Open() *v1alpha1.NodeRetirement { return n.open() }

// LastFailure is the node's latest retirement that ended early, or nil.
func (n *Node) LastFailure() *v1alpha1.NodeRetirement { return n.lastFailure() }

// Counted is the node as budgets count it.
func (n *Node) Counted() budget.Node { return n.counted() }

// Rescuable reports whether a retirement can be called off before it has begun.
func Rescuable(rt *v1alpha1.NodeRetirement) bool { return rescuable(rt) && !admitted(rt) }
