package nodegroup

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// RetirementLabels returns the labels that a node's NodeRetirement needs, so that the manager of its group sees it.
// They are the group's labels. A group without an object has the labels in the selector that its manager has left on
// the Node. A node without a group has none.
func RetirementLabels(groups []v1alpha1.NodeGroup, n *corev1.Node) map[string]string {
	name := AssignNodes(groups, []corev1.Node{*n}).OwnerByNode[n.Name]
	if i := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name }); i >= 0 {
		return maps.Clone(groups[i].Labels)
	}
	return labelsForSelector(n.Annotations[annotationScope])
}

// FindGroupOnNode returns the group with marks on a Node, or "". A group without an object writes its name on each of its nodes.
func FindGroupOnNode(n *corev1.Node) string { return n.Annotations[annotationGroup] }

// ManagesNode reports whether a manager with this selector manages the marks on a Node. It manages the nodes of the groups
// that it selects, and nodes without a group, so that no mark stays forever.
//
// A node without a known group may belong to a group that only another manager knows, from a file or a compatibility
// mode. Such a group writes its name and its manager's selector on the Node. That manager removes the name when the
// group no longer owns the node. So a Node with a name belongs to the manager with that selector. Any manager may clean
// a Node without a name: if two do so at once, the second has nothing to do.
func (c *Cluster) ManagesNode(n *corev1.Node, selector labels.Selector) bool {
	name := c.Assignment.OwnerByNode[n.Name]
	if i := slices.IndexFunc(c.Groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name }); i >= 0 {
		return selector.Matches(labels.Set(c.Groups[i].Labels))
	}
	marks := readMarkOwner(n)
	return marks.group == "" || marks.scope == selector.String()
}

// labelsForSelector returns labels that the selector selects, as far as it names them.
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
