package planner

import (
	"cmp"
	"fmt"
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

// candidate is a node that the rules allow to remove, with its cost.
type candidate struct {
	node *filter.Node
	cost float64
}

func sortCandidatesByCost(candidates []candidate) {
	loads := make(map[*filter.Node]float64, len(candidates))
	for _, c := range candidates {
		loads[c.node] = c.node.SumUsedShares()
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(loads[a.node], loads[b.node]),
			cmp.Compare(a.node.Name(), b.node.Name()))
	})
}
