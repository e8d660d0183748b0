package plan

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// Launched is an instance that was launched for a group, with its Node, which has not been usable yet.
type Launched struct {
	launch.Expected
	Node *corev1.Node
	// Overdue says that the join timeout is over: the instance does not count as provisioning any more.
	Overdue bool
}

// isProvisioning reports an instance that still counts as provisioning: in time, and with a Node that nothing takes out of service.
func (l *Launched) isProvisioning() bool { return !l.Overdue && !budget.IsLeaving(l.Node) }

// JoinOf tells how far the Node of an instance of a group has come. One that does not match the group's selector is unusable whether it
// leaves or not: it says of the next one that it would not match either.
func JoinOf(g *v1alpha1.NodeGroup, n *corev1.Node) launch.Join {
	switch {
	case !budget.Ready(n):
		return launch.HasNode
	case budget.IsLeaving(n) && retirement.Selects(g, n.Labels):
		return launch.NodeLeaving
	case WhyUnusable(g, n) != "":
		return launch.NodeUnusable
	}
	return launch.NodeUsable
}

// WhyUnusable says why a Ready Node takes no pods of a group, and what to do; empty when it takes some.
func WhyUnusable(g *v1alpha1.NodeGroup, n *corev1.Node) string {
	startup := startupTaints(g)
	at := slices.IndexFunc(n.Spec.Taints, func(t corev1.Taint) bool { return isTemporaryTaint(t.Key, startup) })
	switch {
	case !retirement.Selects(g, n.Labels):
		return fmt.Sprintf("Node %s does not match spec.nodeSelector: have new Nodes join with its labels, or delete the Node and its instance", n.Name)
	case n.Spec.Unschedulable:
		return fmt.Sprintf("Node %s is cordoned: uncordon it, or retire it", n.Name)
	case at >= 0:
		return fmt.Sprintf("Node %s has the taint %s: whatever starts the Node has to remove it; else retire the Node", n.Name, n.Spec.Taints[at].Key)
	}
	return ""
}

func (g *Group) isNodeStarting(n *corev1.Node, now time.Time) bool {
	return IsArriving(n, startupTaints(g.Group), g.Devices[n.Name], g.joinTimeout(), g.Observed[n.Name], now)
}

// IsProvisioning reports whether a Node of the group still counts as one that is coming.
func (g *Group) IsProvisioning(n *corev1.Node, now time.Time) bool {
	return g.isNodeOfLaunch(n) || g.isNodeStarting(n, now)
}

// isNodeOfLaunch reports whether a Node is that of an instance which still counts as provisioning.
func (g *Group) isNodeOfLaunch(n *corev1.Node) bool {
	return slices.ContainsFunc(g.Launched, func(l Launched) bool { return l.isProvisioning() && l.Node.Name == n.Name })
}

// provisioningInstances are the instances that count as on their way, without those whose Nodes are the group's: these count as nodes.
func (g *Group) provisioningInstances() []launch.Expected {
	all := g.Awaited
	for _, l := range g.Launched {
		if l.isProvisioning() && !retirement.Selects(g.Group, l.Node.Labels) {
			all = append(slices.Clip(all), l.Expected)
		}
	}
	return all
}

// NotSelected says that the Node of an instance of a group does not match the group's selector: what comes next would be of no use
// to the group either. It is nil when all match.
func (g *Group) NotSelected() *Reason {
	for _, l := range g.Launched {
		if budget.Ready(l.Node) && !retirement.Selects(g.Group, l.Node.Labels) {
			return &Reason{Rule: NodeNotSelected, Group: g.name(), Message: "no more instances are launched: " + WhyUnusable(g.Group, l.Node)}
		}
	}
	return nil
}

// whyNeverUsable says that an instance of a template has not become usable in time and is still there; nil when there is none. One whose Node
// is not Ready is retired, and does not count.
func (g *Group) whyNeverUsable(template string) *Reason {
	for _, l := range g.Launched {
		selected := retirement.Selects(g.Group, l.Node.Labels)
		if !l.Overdue || !launch.SameKind(l.Kind, template) || selected && !budget.Ready(l.Node) {
			continue
		}
		return &Reason{Rule: launch.NeverUsable, Group: g.name(), Template: template, Message: "no more instances are launched: " + WhyUnusable(g.Group, l.Node)}
	}
	return nil
}
