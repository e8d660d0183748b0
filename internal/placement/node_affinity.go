package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	reasonNodeAffinity = Reason{
		"NodeAffinity", "node affinity or selector does not match",
		"node(s) didn't match Pod's node affinity/selector",
	}
	reasonNameConflict = Reason{
		"NodeAffinity", "node affinity names nodes that exclude one another",
		"pod affinity terms conflict",
	}
)

// matchesAffinity is the plugin NodeAffinity: the node selector and at least one term of the required node affinity
// match. A term that cannot be parsed matches nothing.
func (f *nodeFilter) matchesAffinity(n *node) bool {
	if !f.selects {
		return true
	}
	ok, _ := f.affinity.Match(n.object)
	return ok
}

// namesConflict reports whether every term asks for nodes by name and no name satisfies any of them.
func namesConflict(selector *corev1.NodeSelector) bool {
	if selector == nil || len(selector.NodeSelectorTerms) == 0 {
		return false
	}
	for i := range selector.NodeSelectorTerms {
		if names, constrained := nodeNames(&selector.NodeSelectorTerms[i]); !constrained || len(names) > 0 {
			return false
		}
	}
	return true
}

// nodeNames intersects the names that one term asks for; constrained is false when it asks for none.
func nodeNames(term *corev1.NodeSelectorTerm) (names []string, constrained bool) {
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
