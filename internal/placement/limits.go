package placement

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// limits keeps the sizes of groups while a plan takes nodes away (invariant I5).
type limits struct {
	groups map[int32][]*groupState // by node
}

type groupState struct {
	*Group
	remaining   int            // members that nobody is removing and the plan leaves
	unavailable int            // members that do not serve, for whatever reason
	zones       map[string]int // remaining per zone
}

func (s *Snapshot) newLimits(o *Options) *limits {
	l := &limits{groups: map[int32][]*groupState{}}
	for i := range o.Groups {
		g := &groupState{Group: &o.Groups[i], zones: map[string]int{}}
		for _, name := range g.Nodes {
			n, ok := s.nodeByName[name]
			if !ok {
				continue
			}
			l.groups[n.id] = append(l.groups[n.id], g)
			if !available(n) {
				g.unavailable++
			}
			if removedBy(n) == "" {
				g.remaining++
				g.zones[zoneOf(n)]++
			}
		}
	}
	return l
}

func zoneOf(n *node) string { return n.object.Labels[corev1.LabelTopologyZone] }

// refusals says which limits stand against taking a node away next.
func (l *limits) refusals(n *node) []Refusal {
	var list []Refusal
	for _, g := range l.groups[n.id] {
		if g.remaining-1 < g.MinSize {
			list = append(list, Refusal{
				Rule:   "group-minimum",
				Text:   fmt.Sprintf("group %s has %s left and a minimum of %d", g.Name, plural(g.remaining, "node"), g.MinSize),
				Remedy: "lower the group's minimum",
			})
		}
		if zone := zoneOf(n); g.zones[zone]-1 < g.MinPerZone {
			list = append(list, Refusal{
				Rule: "zone-minimum",
				Text: fmt.Sprintf("group %s has %s left in zone %q and a minimum of %d", g.Name, plural(g.zones[zone], "node"),
					zone, g.MinPerZone),
				Remedy: "lower the minimum per zone",
			})
		}
		if g.MaxUnavailable != nil && available(n) && g.unavailable+1 > *g.MaxUnavailable {
			list = append(list, Refusal{
				Rule: "group-budget",
				Text: fmt.Sprintf("group %s has %s unavailable and allows %d", g.Name, plural(g.unavailable, "node"),
					*g.MaxUnavailable),
				Remedy: "wait until the others are back or gone",
			})
		}
	}
	return list
}

// allow reports whether a node may go, without putting it in words.
func (l *limits) allow(n *node) bool {
	for _, g := range l.groups[n.id] {
		if g.remaining-1 < g.MinSize || g.zones[zoneOf(n)]-1 < g.MinPerZone ||
			g.MaxUnavailable != nil && available(n) && g.unavailable+1 > *g.MaxUnavailable {
			return false
		}
	}
	return true
}

// take counts a node as gone (1) or back (-1).
func (l *limits) take(n *node, sign int) {
	for _, g := range l.groups[n.id] {
		g.remaining -= sign
		g.zones[zoneOf(n)] -= sign
		if available(n) {
			g.unavailable += sign
		}
	}
}
