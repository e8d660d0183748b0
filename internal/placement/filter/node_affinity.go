package filter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/placement"
)

var (
	reasonNodeAffinity = placement.Reason{
		Predicate: "NodeAffinity", Message: "node affinity or selector does not match",
		Scheduler: "node(s) didn't match Pod's node affinity/selector",
	}
	reasonNameConflict = placement.Reason{
		Predicate: "NodeAffinity", Message: "node affinity requests nodes that exclude each other",
		Scheduler: "pod affinity terms conflict",
	}
	reasonNameExcluded = placement.Reason{
		Predicate: "NodeAffinity", Message: "node affinity excludes the node that the pod requests",
		Scheduler: "node(s) didn't satisfy plugin(s) [NodeAffinity NodeName] simultaneously",
	}
)

// matchesAffinity implements the plugin NodeAffinity: the node selector and at least one required term must match. A
// term that cannot be parsed matches nothing.
func (f *NodeFilter) matchesAffinity(n *Node) bool {
	if !f.hasNodeSelector {
		return true
	}
	ok, _ := f.affinity.Match(n.Object)
	return ok
}

// findNodeNameConflict returns the reason why no node has a requested name, or nil. There is a conflict if every term
// names nodes, and these names exclude each other or the node name of the pod.
func findNodeNameConflict(nodeName string, selector *corev1.NodeSelector) *placement.Reason {
	if selector == nil || len(selector.NodeSelectorTerms) == 0 {
		return nil
	}
	var all []string
	for i := range selector.NodeSelectorTerms {
		names, constrained := intersectNodeNames(&selector.NodeSelectorTerms[i])
		if !constrained {
			return nil
		}
		all = append(all, names...)
	}
	switch {
	case len(all) == 0:
		return &reasonNameConflict
	case nodeName != "" && !slices.Contains(all, nodeName):
		return &reasonNameExcluded
	default:
		return nil
	}
}

// intersectNodeNames returns the names that satisfy all name fields of one term. constrained is false if the term
// requests no name.
func intersectNodeNames(term *corev1.NodeSelectorTerm) (names []string, constrained bool) {
	for i := range term.MatchFields {
		r := &term.MatchFields[i]
		if r.Key != metav1.ObjectNameField || r.Operator != corev1.NodeSelectorOpIn {
			continue
		}
		if !constrained {
			names, constrained = r.Values, true
			continue
		}
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(r.Values, name) })
	}
	return names, constrained
}

func requiredNodeSelector(a *corev1.Affinity) *corev1.NodeSelector {
	if a == nil || a.NodeAffinity == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}
