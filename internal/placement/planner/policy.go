package planner

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// Policy says which nodes to remove first.
type Policy string

const (
	// LeastDisruption adds a weight for each pod that must restart. The weight is 1, plus 1 per power of ten of a
	// positive priority, plus 1 per volume claim. With a negative priority the base is 0.5.
	LeastDisruption Policy = "LeastDisruption"
	// LeastPods counts the pods that must restart.
	LeastPods Policy = "LeastPods"
	// LeastLoaded adds the used shares of cpu and memory, from 0 to 2.
	LeastLoaded Policy = "LeastLoaded"
	// Oldest removes the oldest node first. The cost is its creation time in seconds since 1970.
	Oldest Policy = "Oldest"
)

// Policies lists all policies, the default first.
func Policies() []Policy { return []Policy{LeastDisruption, LeastPods, LeastLoaded, Oldest} }

// ParsePolicy returns the policy with a name. An empty name means the default. The error lists the allowed names.
func ParsePolicy(name string) (Policy, error) {
	if name == "" {
		return LeastDisruption, nil
	}
	if i := slices.Index(Policies(), Policy(name)); i >= 0 {
		return Policies()[i], nil
	}
	return "", fmt.Errorf("policy %q is not known: use one of %v", name, Policies())
}

// PodGroup is a group of pods that lose their work together, with the pods of one node.
type PodGroup struct {
	// Name is the namespace and the group, such as ml/JobSet/train/workers/0.
	Name string `json:"name"`
	// Pods is the number of its pods that would be evicted from the node. The group restarts its pods on other nodes too.
	Pods int `json:"pods"`
}

// listPodGroups returns the groups with pods that the removal of a node evicts, by name.
func (p *planRun) listPodGroups(n *filter.Node) []PodGroup {
	var pods map[string]int
	for _, pod := range n.Pods {
		if pod.Facts.Group.IsZero() || pod.IsMovedByPlan() {
			continue
		}
		group := p.s.PodGroups.FindGroup(pod)
		if group.IsZero() {
			continue
		}
		if fate, _ := p.rules.judgePod(pod); fate <= podEnds {
			if pods == nil {
				pods = map[string]int{}
			}
			pods[pod.Key.Namespace+"/"+group.String()]++
		}
	}
	var groups []PodGroup
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		groups = append(groups, PodGroup{name, pods[name]})
	}
	return groups
}

// computeRemovalCost returns the cost of removing a node by the plan's policy.
func (p *planRun) computeRemovalCost(n *filter.Node) float64 {
	switch p.policy {
	case LeastLoaded:
		return n.SumUsedShares()
	case Oldest:
		return float64(n.Object.CreationTimestamp.Unix())
	}
	var cost float64
	for _, pod := range n.Pods {
		if fate, _ := p.rules.judgePod(pod); fate > podEnds {
			continue
		}
		if p.policy == LeastPods {
			cost++
		} else {
			cost += weighPodDisruption(pod)
		}
	}
	return cost
}

// weighPodDisruption returns the weight of restarting one pod.
func weighPodDisruption(p *filter.Pod) float64 {
	weight := 1.0
	switch {
	case p.Priority > 0:
		weight += math.Log10(1 + float64(p.Priority))
	case p.Priority < 0:
		weight = 0.5
	}
	return weight + float64(p.Class.ClaimCount())
}

// candidate is a node that the rules allow to remove, with its groups of pods and its cost.
type candidate struct {
	node   *filter.Node
	groups []PodGroup
	cost   float64
}

// sortCandidates sorts nodes with fewer groups of pods first, and then by cost.
func sortCandidates(candidates []candidate) {
	loads := make(map[*filter.Node]float64, len(candidates))
	for _, c := range candidates {
		loads[c.node] = c.node.SumUsedShares()
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(len(a.groups)-len(b.groups), cmp.Compare(a.cost, b.cost), cmp.Compare(loads[a.node], loads[b.node]),
			cmp.Compare(a.node.Name(), b.node.Name()))
	})
}
