package doctor

import (
	"slices"

	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// checkGroupAccepted reports the NodeGroups that the manager does not act on, with its message.
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

// checkNodeHasGroup finds nodes that no NodeGroup selects. It reports nothing if there is neither a manager nor a
// group. It reports nothing for compatibility commands, because their group exists only in their process.
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
		if isControlPlane(n) || isVirtualNode(n) || f.isSelectedByNodeGroup(n.Labels) {
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

func (f *Facts) isSelectedByNodeGroup(labels map[string]string) bool {
	for i := range f.NodeGroups {
		if retirement.SelectsNode(&f.NodeGroups[i], labels) {
			return true
		}
	}
	return false
}
