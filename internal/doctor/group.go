package doctor

import (
	"slices"

	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// groupNotAccepted repeats what the manager says of a group that it does not act on.
func groupNotAccepted(f *Facts) []Finding {
	var found []Finding
	for i := range f.NodeGroups {
		g := &f.NodeGroups[i]
		object := Object{Kind: "NodeGroup", Name: g.Name}
		switch a := acceptance.Of(g); a.State {
		case acceptance.Accepted:
		case acceptance.NotObserved:
			found = append(found, Finding{
				Severity: Warning, Object: object, Message: a.Message,
				Remedy: "see that a manager runs and leads",
			})
		default:
			found = append(found, Finding{
				Severity: Problem, Object: object, Message: "it is not acted on: " + a.Message,
				Remedy: "correct what the message names; the manager looks again by itself",
			})
		}
	}
	return found
}

// nodeWithoutGroup finds nodes that the manager takes nothing upon itself for. Where there is neither a manager nor a
// group nobody expects any. Which nodes the group of a stand-in has, which is within its process, cannot be seen.
func nodeWithoutGroup(f *Facts) []Finding {
	switch managers := f.installed(Manager); {
	case len(managers) == 0 && len(f.NodeGroups) == 0,
		slices.ContainsFunc(managers, func(p Part) bool { return p.standsIn() }):
		return nil
	case len(f.NodeGroups) == 0:
		return []Finding{{
			Severity: Note, Message: "there is no NodeGroup: no node leaves for being idle, and none comes for pending pods",
			Remedy: "write NodeGroups (docs/nodegroups.md) if that is what the manager was installed for",
		}}
	}
	var found []Finding
	for _, n := range f.Nodes {
		if controlPlane(n) || machineless(n) || f.grouped(n.Labels) {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: nodeObject(n),
			Message: "no NodeGroup selects it: it has no minimum, no disruption budget and no idle rule, and a retirement of it has no group to be counted in",
			Remedy:  "let the nodeSelector of a NodeGroup match its labels, if it is to be Slipway's",
		})
	}
	return found
}

func (f *Facts) grouped(labels map[string]string) bool {
	for i := range f.NodeGroups {
		if retirement.Selects(&f.NodeGroups[i], labels) {
			return true
		}
	}
	return false
}
