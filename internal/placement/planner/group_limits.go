package planner

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// removalLimits tracks the sizes of groups while a plan removes nodes (invariant I5).
type removalLimits struct {
	groups map[int32][]*groupState // by node
}

type groupState struct {
	*Group
	remaining   int            // members that are not being removed and that the plan keeps
	unavailable int            // members that do not serve, for any reason
	zones       map[string]int // remaining members by zone
}

func newRemovalLimits(s *snapshot.Snapshot, o *Options) *removalLimits {
	l := &removalLimits{groups: map[int32][]*groupState{}}
	for i := range o.Groups {
		g := &groupState{Group: &o.Groups[i], zones: map[string]int{}}
		for _, name := range g.Nodes {
			n := s.Nodes.Lookup(name)
			if n == nil {
				continue
			}
			l.groups[n.ID] = append(l.groups[n.ID], g)
			serves, leaving := n.Availability()
			if !serves {
				g.unavailable++
			}
			if !leaving {
				g.remaining++
				g.zones[zoneOf(n)]++
			}
		}
	}
	return l
}

func zoneOf(n *filter.Node) string { return n.Object.Labels[corev1.LabelTopologyZone] }

// listRefusals returns the limits that forbid the removal of this node next.
func (l *removalLimits) listRefusals(n *filter.Node) []Refusal {
	var list []Refusal
	for _, g := range l.groups[n.ID] {
		if g.remaining-1 < g.MinSize {
			list = append(list, Refusal{
				Rule:    "group-minimum",
				Message: fmt.Sprintf("group %s has %s left and a minimum of %d", g.Name, observe.FormatCount(g.remaining, "node"), g.MinSize),
				Remedy:  "lower the group's minimum",
			})
		}
		if zone := zoneOf(n); g.zones[zone]-1 < g.MinPerZone {
			list = append(list, Refusal{
				Rule: "zone-minimum",
				Message: fmt.Sprintf("group %s has %s left in zone %q and a minimum of %d", g.Name, observe.FormatCount(g.zones[zone], "node"),
					zone, g.MinPerZone),
				Remedy: "lower the minimum per zone",
			})
		}
		if serves, _ := n.Availability(); g.MaxUnavailable != nil && serves && g.unavailable+1 > *g.MaxUnavailable {
			list = append(list, Refusal{
				Rule: "group-budget",
				Message: fmt.Sprintf("group %s has %s unavailable and allows %d", g.Name, observe.FormatCount(g.unavailable, "node"),
					*g.MaxUnavailable),
				Remedy: "wait until the unavailable nodes are ready or deleted",
			})
		}
	}
	return list
}

// adjustForRemoval counts a node as removed (sign 1) or restored (sign -1).
func (l *removalLimits) adjustForRemoval(n *filter.Node, sign int) {
	for _, g := range l.groups[n.ID] {
		g.remaining -= sign
		g.zones[zoneOf(n)] -= sign
		if serves, _ := n.Availability(); serves {
			g.unavailable += sign
		}
	}
}
