package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// Policy says which nodes go first.
type Policy string

const (
	// LeastDisruption counts the pods that have to be restarted, weighing each by its priority and by what it costs to
	// move: 1, plus 1 per power of ten of a positive priority, half for a negative one, plus 1 per volume to re-attach.
	LeastDisruption Policy = "LeastDisruption"
	// LeastPods counts the pods that have to be restarted.
	LeastPods Policy = "LeastPods"
	// LeastLoaded sums the shares of cpu and memory in use, from 0 to 2.
	LeastLoaded Policy = "LeastLoaded"
	// Oldest takes the node that was created first; its cost is the time of creation in seconds since 1970.
	Oldest Policy = "Oldest"
)

// Policies lists the known policies, the default first.
func Policies() []Policy { return []Policy{LeastDisruption, LeastPods, LeastLoaded, Oldest} }

// ParsePolicy reads the name of a policy; the empty name is the default. The error names what is allowed.
func ParsePolicy(name string) (Policy, error) {
	if name == "" {
		return LeastDisruption, nil
	}
	if i := slices.Index(Policies(), Policy(name)); i >= 0 {
		return Policies()[i], nil
	}
	return "", fmt.Errorf("policy %q is not known: use one of %v", name, Policies())
}

// computeCost weighs the removal of a node by the plan's policy.
func (p *planRun) computeCost(n *filter.Node) float64 {
	switch p.policy {
	case LeastLoaded:
		return n.Load()
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
			cost += weighDisruption(pod)
		}
	}
	return cost
}

// weighDisruption weighs the restart of one pod.
func weighDisruption(p *filter.Pod) float64 {
	weight := 1.0
	switch {
	case p.Priority > 0:
		weight += math.Log10(1 + float64(p.Priority))
	case p.Priority < 0:
		weight = 0.5
	}
	return weight + float64(p.Class.Claims())
}

// candidate is a node that the rules let go, with its cost.
type candidate struct {
	node *filter.Node
	cost float64
}

// sortCandidates sorts candidates by cost, then by load, then by name.
func sortCandidates(candidates []candidate) {
	loads := make(map[*filter.Node]float64, len(candidates))
	for _, c := range candidates {
		loads[c.node] = c.node.Load()
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(loads[a.node], loads[b.node]),
			cmp.Compare(a.node.Name(), b.node.Name()))
	})
}
