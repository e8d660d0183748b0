package doctor

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// checkGroupAccepted finds NodeGroups that the manager does not act on. Each finding has the manager's message.
func checkGroupAccepted(f *Facts) []Finding {
	var found []Finding
	for i := range f.NodeGroups {
		g := &f.NodeGroups[i]
		object := Object{Kind: "NodeGroup", Name: g.Name}
		switch a := acceptance.FromGroup(g); a.State {
		case acceptance.Accepted:
		case acceptance.NotObserved:
			found = append(found, Finding{
				Severity: Warning, Object: object, Message: a.Message,
				Remedy: "check that a manager runs and leads",
			})
		default:
			found = append(found, Finding{
				Severity: Problem, Object: object, Message: "the manager does not act on it: " + a.Message,
				Remedy: "correct what the message names; the manager checks again automatically",
			})
		}
	}
	return found
}

// checkNodeHasGroup finds nodes that no NodeGroup selects. It finds nothing if there is neither a manager nor a
// NodeGroup. It also finds nothing for a compatibility command, because its NodeGroup exists only in its process.
func checkNodeHasGroup(f *Facts) []Finding {
	switch managers := f.partsOfKind(Manager); {
	case len(managers) == 0 && len(f.NodeGroups) == 0,
		slices.ContainsFunc(managers, func(p Part) bool { return p.isCompatibilityCommand() }):
		return nil
	case len(f.NodeGroups) == 0:
		return []Finding{{
			Severity: Note, Message: "there is no NodeGroup: idle nodes are not removed, and no node is launched for pending pods",
			Remedy: "create NodeGroups (docs/nodegroups.md) for autoscaling",
		}}
	}
	var found []Finding
	for _, n := range f.Nodes {
		if isControlPlane(n) || isVirtualNode(n) || f.findNodeGroup(n.Labels) != "" {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: newNodeObject(n),
			Message: "no NodeGroup selects it: it has no minimum size, no disruption budget and no idle rule, and its retirement counts for no group",
			Remedy:  "change the nodeSelector of a NodeGroup to match its labels, if Slipway must manage it",
		})
	}
	return found
}

// findNodeGroup returns the name of a NodeGroup that selects a node with these labels, or "".
func (f *Facts) findNodeGroup(labels map[string]string) string {
	for i := range f.NodeGroups {
		if retirement.SelectsNode(&f.NodeGroups[i], labels) {
			return f.NodeGroups[i].Name
		}
	}
	return ""
}

// checkManagerPlacement finds pods of managers on nodes of NodeGroups. The manager retires such a node like any other,
// because it does not know its own node. It never retires nodes of the control plane. A compatibility command is left
// out, because it retires no nodes of NodeGroups in the cluster.
func checkManagerPlacement(f *Facts) []Finding {
	managers := slices.DeleteFunc(f.partsOfKind(Manager), func(p Part) bool { return p.isCompatibilityCommand() })
	nodes := map[string]*corev1.Node{}
	for _, n := range f.Nodes {
		nodes[n.Name] = n
	}
	var found []Finding
	for _, p := range f.Pods {
		n := nodes[p.Spec.NodeName]
		if n == nil || isControlPlane(n) || isFinished(p) || !slices.ContainsFunc(managers, func(m Part) bool { return m.Object == workloadOfPod(p) }) {
			continue
		}
		if group := f.findNodeGroup(n.Labels); group != "" {
			found = append(found, Finding{
				Severity: Warning, Object: Object{"Pod", p.Namespace, p.Name},
				Message: "it runs on a node of the NodeGroup " + group + ": when the manager retires this node, it evicts itself, and retirements pause",
				Remedy:  "keep the manager off the nodes of NodeGroups: placement.managedNodes of the chart, or a node affinity (docs/install.md)",
			})
		}
	}
	return found
}
