package main

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// noObject is what takes the place of what only the object of a group says.
const noObject = "-"

// unlisted are the groups without an object: of a manager's --node-groups, or of a stand-in. What is known of them is on their
// nodes and in their retirements.
func unlisted(cluster *nodegroup.Cluster, retiring map[string]bool) []groupStatus {
	found := map[string]*groupStatus{}
	of := func(name string) *groupStatus {
		if found[name] == nil {
			found[name] = &groupStatus{Name: name, Cloud: noObject, Unlisted: true, Away: map[string]string{}}
			found[name].Accepted = metav1.ConditionUnknown
		}
		return found[name]
	}
	listed := map[string]bool{"": true}
	for i := range cluster.Groups {
		listed[cluster.Groups[i].Name] = true
	}
	for i := range cluster.Nodes {
		n := &cluster.Nodes[i]
		if name := nodegroup.NameOn(n); !listed[name] && cluster.Claims.Owner[n.Name] == "" {
			of(name).add(budget.NodeOf(n, retiring[n.Name]))
		}
	}
	for i := range cluster.Retirements { // whose Nodes may have gone
		rt := &cluster.Retirements[i]
		if c := rt.Status.Captured; c != nil && !listed[c.Group] && !rt.Status.Phase.Finished() {
			of(c.Group)
		}
	}
	var all []groupStatus
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, *found[name])
	}
	return all
}

// add counts a node.
func (s *groupStatus) add(n budget.Node) {
	s.Nodes++
	if n.Leaving {
		s.Leaving++
	}
	if n.Unavailable != "" {
		s.Unavailable++
		s.Away[n.Name] = n.Unavailable
	}
}
