package main

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// unknownValue is printed in place of a value that only a NodeGroup object has.
const unknownValue = "-"

// findUnlistedGroups returns the groups without a NodeGroup object. These groups come from a manager's
// --node-groups or from a compatibility mode. Their names come from their nodes and their NodeRetirements.
func findUnlistedGroups(cluster *nodegroup.Cluster, retiring map[string]bool) []groupStatus {
	found := map[string]*groupStatus{}
	getOrAdd := func(name string) *groupStatus {
		if found[name] == nil {
			found[name] = &groupStatus{Name: name, Cloud: unknownValue, Unlisted: true, UnavailableNodes: map[string]string{}}
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
		if name := nodegroup.FindGroupOnNode(n); !listed[name] && cluster.Assignment.OwnerByNode[n.Name] == "" {
			getOrAdd(name).addNode(disruptionbudget.NewNode(n, retiring[n.Name]))
		}
	}
	for i := range cluster.Retirements { // their Nodes may be gone
		rt := &cluster.Retirements[i]
		if c := rt.Status.Captured; c != nil && !listed[c.Group] && !rt.Status.Phase.IsFinal() {
			getOrAdd(c.Group)
		}
	}
	var all []groupStatus
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, *found[name])
	}
	return all
}

func (s *groupStatus) addNode(n disruptionbudget.Node) {
	s.Nodes++
	if n.BeingRemoved {
		s.Retiring++
	}
	if n.UnavailableReason != "" {
		s.Unavailable++
		s.UnavailableNodes[n.Name] = n.UnavailableReason
	}
}
