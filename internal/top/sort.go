package top

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// SortKey is what the nodes of a group are sorted by.
type SortKey int

const (
	SortDefault SortKey = iota // nodes by name, then instances without a Node
	SortByName
	SortByType
	SortByZone
	SortByAge
	SortByPrice
	SortByPods
	SortByCPU
	SortByMemory
	SortByActivity
)

// Sort is an order of nodes.
type Sort struct {
	Key        SortKey
	Descending bool
}

// sortKeys maps keys to what they sort by, and to the first direction. Capital letters select a column, as in k9s.
var sortKeys = map[string]Sort{
	"N": {SortByName, false}, "T": {SortByType, false}, "Z": {SortByZone, false}, "A": {SortByAge, false}, "R": {SortByPrice, true},
	"P": {SortByPods, true}, "C": {SortByCPU, true}, "M": {SortByMemory, true}, "D": {SortByActivity, true},
}

// toggle returns the order after the key of an order is pressed: its first direction, then the other one.
func (s Sort) toggle(pressed Sort) Sort {
	if s.Key == pressed.Key {
		return Sort{s.Key, !s.Descending}
	}
	return pressed
}

// sortNodes sorts nodes in place. Nodes without a value come last in both directions.
func (s Sort) sortNodes(nodes []Node) {
	if s.Key == SortDefault {
		return
	}
	slices.SortStableFunc(nodes, func(a, b Node) int {
		byValue := s.compare(&a, &b)
		if s.Descending {
			byValue = -byValue
		}
		return cmp.Or(compareBool(s.isUnknown(&a), s.isUnknown(&b)), byValue, strings.Compare(a.Name, b.Name))
	})
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func (s Sort) isUnknown(n *Node) bool {
	switch s.Key {
	case SortByType:
		return n.InstanceType == ""
	case SortByZone:
		return n.Zone == ""
	case SortByAge:
		return n.CreatedAt.IsZero()
	case SortByPrice:
		return n.Price == 0
	case SortByPods, SortByCPU, SortByMemory:
		return n.Load == nil
	}
	return false
}

func (s Sort) compare(a, b *Node) int {
	known := a.Load != nil && b.Load != nil
	switch {
	case s.Key == SortByName:
		return strings.Compare(a.Name, b.Name)
	case s.Key == SortByType:
		return strings.Compare(a.InstanceType, b.InstanceType)
	case s.Key == SortByZone:
		return strings.Compare(a.Zone, b.Zone)
	case s.Key == SortByAge:
		return b.CreatedAt.Compare(a.CreatedAt) // the youngest is the smallest
	case s.Key == SortByPrice:
		return cmp.Compare(a.Price, b.Price)
	case s.Key == SortByPods && known:
		return cmp.Compare(a.Load.Pods, b.Load.Pods)
	case s.Key == SortByCPU && known:
		return cmp.Compare(a.Load.CPUPercent(), b.Load.CPUPercent())
	case s.Key == SortByMemory && known:
		return cmp.Compare(a.Load.MemoryPercent(), b.Load.MemoryPercent())
	case s.Key == SortByActivity:
		return cmp.Compare(a.Activity.Severity, b.Activity.Severity)
	}
	return 0
}

// filterAndSort returns a State with the nodes that match a filter, in an order. A filter is a text that the name, the type, the
// zone, the group or the activity of a node contains, in any case. A filter after ! is what they do not contain.
func (s State) filterAndSort(filter string, order Sort, now time.Time) State {
	if filter == "" && order.Key == SortDefault {
		return s
	}
	text, negated := strings.CutPrefix(strings.ToLower(filter), "!")
	groups := make([]Group, 0, len(s.Groups))
	for _, g := range s.Groups {
		nodes := make([]Node, 0, len(g.Nodes))
		for _, n := range g.Nodes {
			all := strings.ToLower(strings.Join([]string{n.Name, n.InstanceType, n.Zone, g.Name, n.Activity.Describe(now)}, "\n"))
			if text == "" || strings.Contains(all, text) != negated {
				nodes = append(nodes, n)
			}
		}
		order.sortNodes(nodes)
		g.Nodes, g.unfiltered = nodes, g.Nodes
		groups = append(groups, g)
	}
	s.Groups = groups
	return s
}

// formatAge returns the time since the creation of the Node as kubectl does, such as 4d6h. It returns "" if it is unknown.
func (n *Node) formatAge(now time.Time) string {
	if n.CreatedAt.IsZero() {
		return ""
	}
	return duration.HumanDuration(max(now.Sub(n.CreatedAt), 0))
}
