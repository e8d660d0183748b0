package plan

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// LaunchedInstance is an instance that was launched for a group and has a Node that was not usable yet.
type LaunchedInstance struct {
	launch.ProvisioningInstance
	Node *corev1.Node
	// Overdue means that the join timeout is over. The instance no longer counts as provisioning.
	Overdue bool
}

// isProvisioning reports whether the instance still counts as provisioning. It does until the join timeout, unless its
// Node is being retired.
func (l *LaunchedInstance) isProvisioning() bool {
	return !l.Overdue && !disruptionbudget.IsBeingRemoved(l.Node)
}

// FindJoinState returns how far the Node of a group's instance has joined. A Node that does not match the group's
// selector counts as unusable even while it is being retired, because the next instance would not match either.
func FindJoinState(g *v1alpha1.NodeGroup, n *corev1.Node) launch.JoinState {
	switch {
	case !disruptionbudget.IsReady(n):
		return launch.NodeNotReady
	case disruptionbudget.IsBeingRemoved(n) && retirement.SelectsNode(g, n.Labels):
		return launch.NodeLeaving
	case WhyUnusable(g, n) != "":
		return launch.NodeUnusable
	}
	return launch.NodeUsable
}

// WhyUnusable returns why a Ready Node takes no pods of the group, and what to do. It returns "" for a usable Node.
func WhyUnusable(g *v1alpha1.NodeGroup, n *corev1.Node) string {
	if !retirement.SelectsNode(g, n.Labels) {
		return fmt.Sprintf("Node %s does not match spec.nodeSelector: have new Nodes join with its labels, or delete the Node and its instance", n.Name)
	}
	return whyUnschedulable(g, n)
}

// whyUnschedulable returns why a Ready Node takes no pods at all, and what to do. It returns "" for a Node that takes pods.
func whyUnschedulable(g *v1alpha1.NodeGroup, n *corev1.Node) string {
	startup := startupTaints(g)
	at := slices.IndexFunc(n.Spec.Taints, func(t corev1.Taint) bool { return isTemporaryTaint(t.Key, startup) })
	switch {
	case n.Spec.Unschedulable:
		return fmt.Sprintf("Node %s is cordoned: uncordon it, or retire it", n.Name)
	case at >= 0:
		return fmt.Sprintf("Node %s has the startup taint %s: remove the taint when the Node is ready, or retire the Node", n.Name, n.Spec.Taints[at].Key)
	}
	return ""
}

func (g *Group) isNodeStarting(n *corev1.Node, now time.Time) bool {
	return IsStarting(n, startupTaints(g.Group), g.DevicesByNode[n.Name], g.joinTimeout(), g.ObservedSince[n.Name], now)
}

// IsProvisioning reports whether a Node of the group still counts as provisioning.
func (g *Group) IsProvisioning(n *corev1.Node, now time.Time) bool {
	return g.isNodeOfLaunch(n) || g.isNodeStarting(n, now)
}

// isNodeOfLaunch reports whether the Node belongs to an instance that still counts as provisioning.
func (g *Group) isNodeOfLaunch(n *corev1.Node) bool {
	return slices.ContainsFunc(g.LaunchedInstances, func(l LaunchedInstance) bool { return l.isProvisioning() && l.Node.Name == n.Name })
}

// provisioningInstances returns the provisioning instances that have no Node in the group. Instances with a Node in the
// group are counted as nodes.
func (g *Group) provisioningInstances() []launch.ProvisioningInstance {
	all := g.Provisioning
	for _, l := range g.LaunchedInstances {
		if l.isProvisioning() && !retirement.SelectsNode(g.Group, l.Node.Labels) {
			all = append(slices.Clip(all), l.ProvisioningInstance)
		}
	}
	return all
}

// takesPods reports whether an instance has a Node that takes pods already. The Node need not be in the group.
func (g *Group) takesPods(instanceID string) bool {
	return slices.ContainsFunc(g.LaunchedInstances, func(l LaunchedInstance) bool {
		return l.ID == instanceID && disruptionbudget.IsReady(l.Node) && whyUnschedulable(g.Group, l.Node) == ""
	})
}

// WhyNotSelected returns why the Node of one of the instances does not match the group's selector. It returns nil if
// all Nodes match. As long as one does not match, further instances would not match either.
func (g *Group) WhyNotSelected() *Reason {
	for _, l := range g.LaunchedInstances {
		if disruptionbudget.IsReady(l.Node) && !retirement.SelectsNode(g.Group, l.Node.Labels) {
			return &Reason{Rule: NodeNotSelected, Group: g.name(), Message: "no more instances are launched: " + WhyUnusable(g.Group, l.Node)}
		}
	}
	return nil
}

// whyNeverUsable returns a reason if an instance of the template was not usable in time and still exists. Otherwise it
// returns nil. An instance whose Node is not Ready does not count, because it is retired.
func (g *Group) whyNeverUsable(template string) *Reason {
	for _, l := range g.LaunchedInstances {
		selected := retirement.SelectsNode(g.Group, l.Node.Labels)
		if !l.Overdue || !launch.IsSameTemplate(l.Template, template) || selected && !disruptionbudget.IsReady(l.Node) {
			continue
		}
		return &Reason{Rule: launch.NeverUsable, Group: g.name(), Template: template, Message: "no more instances are launched: " + WhyUnusable(g.Group, l.Node)}
	}
	return nil
}
