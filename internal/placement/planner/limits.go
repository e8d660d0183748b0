package planner

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// groupLimits keeps the sizes of groups while a plan takes nodes away (invariant I5).
type groupLimits struct {
	groups map[int32][]*groupState // by node
}

type groupState struct {
	*Group
	remaining   int            // members that nobody is removing and the plan leaves
	unavailable int            // members that do not serve, for whatever reason
	zones       map[string]int // remaining per zone
}

func newGroupLimits(s *snapshot.Snapshot, o *Options) *groupLimits {
	l := &groupLimits{groups: map[int32][]*groupState{}}
	for i := range o.Groups {
		g := &groupState{Group: &o.Groups[i], zones: map[string]int{}}
		for _, name := range g.Nodes {
			n := s.Nodes.Named(name)
			if n == nil {
				continue
			}
			l.groups[n.ID] = append(l.groups[n.ID], g)
			serves, leaving := n.Available()
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

// listRefusals says which limits stand against taking a node away next.
func (l *groupLimits) listRefusals(n *filter.Node) []Refusal {
	var list []Refusal
	for _, g := range l.groups[n.ID] {
		if g.remaining-1 < g.MinSize {
			list = append(list, Refusal{
				Rule:   "group-minimum",
				Text:   fmt.Sprintf("group %s has %s left and a minimum of %d", g.Name, formatCount(g.remaining, "node"), g.MinSize),
				Remedy: "lower the group's minimum",
			})
		}
		if zone := zoneOf(n); g.zones[zone]-1 < g.MinPerZone {
			list = append(list, Refusal{
				Rule: "zone-minimum",
				Text: fmt.Sprintf("group %s has %s left in zone %q and a minimum of %d", g.Name, formatCount(g.zones[zone], "node"),
					zone, g.MinPerZone),
				Remedy: "lower the minimum per zone",
			})
		}
		if serves, _ := n.Available(); g.MaxUnavailable != nil && serves && g.unavailable+1 > *g.MaxUnavailable {
			list = append(list, Refusal{
				Rule: "group-budget",
				Text: fmt.Sprintf("group %s has %s unavailable and allows %d", g.Name, formatCount(g.unavailable, "node"),
					*g.MaxUnavailable),
				Remedy: "wait until the others are back or gone",
			})
		}
	}
	return list
}

// countRemoval counts a node as gone (1) or back (-1).
func (l *groupLimits) countRemoval(n *filter.Node, sign int) {
	for _, g := range l.groups[n.ID] {
		g.remaining -= sign
		g.zones[zoneOf(n)] -= sign
		if serves, _ := n.Available(); serves {
			g.unavailable += sign
		}
	}
}
