package nodegroup

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// RetirementLabels are those that a NodeRetirement of a node needs for the manager to see it that acts on the node's group: the
// group's own, or, where it has no object, those that the selector asks for which that manager has left on the Node. None are
// known of a node without a group.
func RetirementLabels(groups []v1alpha1.NodeGroup, n *corev1.Node) map[string]string {
	name := Claim(groups, []corev1.Node{*n}).Owner[n.Name]
	if i := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name }); i >= 0 {
		return maps.Clone(groups[i].Labels)
	}
	return labelsForSelector(n.Annotations[annotationScope])
}

// NameOn is the group whose marks a Node has, or empty. A group without an object leaves its name on each of its nodes.
func NameOn(n *corev1.Node) string { return n.Annotations[annotationGroup] }

// Answers reports whether a manager with a selector answers for what is written on a Node: for the nodes of the groups that it
// selects, and for those of no group, so that nothing is left on them for good.
//
// Of a node in no group that it knows, another manager may know one: a group of a file or of a stand-in has no object. Such a
// group leaves its name on the Node with its manager's selector, and that manager takes the name off once the group does not
// own the node any more. So a Node with a name is for the manager with the selector beside it. One without a name is nobody's,
// and any manager may clean it: when two do so at once, the second finds it done.
func (c *Cluster) Answers(n *corev1.Node, selector labels.Selector) bool {
	name := c.Claims.Owner[n.Name]
	if i := slices.IndexFunc(c.Groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name }); i >= 0 {
		return selector.Matches(labels.Set(c.Groups[i].Labels))
	}
	marks := readMarkOwner(n)
	return marks.group == "" || marks.scope == selector.String()
}

// labelsForSelector are labels that a selector selects, as far as it says which: what it passes over needs none.
func labelsForSelector(selector string) map[string]string {
	requirements, err := labels.ParseToRequirements(selector)
	if err != nil {
		return nil
	}
	var set map[string]string
	for _, r := range requirements {
		value := ""
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			value = slices.Min(r.ValuesUnsorted())
		case selection.Exists:
		default:
			continue
		}
		if set == nil {
			set = map[string]string{}
		}
		set[r.Key()] = value
	}
	return set
}
