package nodegroup

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// RetirementLabels returns the labels for a new NodeRetirement of the node. With them, the manager of the node's group
// selects the NodeRetirement. They are the labels of the group. If this process does not know the group, they are
// derived from the selector that the group's manager has written on the Node. A node without a group gets none.
func RetirementLabels(groups []v1alpha1.NodeGroup, n *corev1.Node) map[string]string {
	name := AssignNodes(groups, []corev1.Node{*n}).OwnerByNode[n.Name]
	if i := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name }); i >= 0 {
		return maps.Clone(groups[i].Labels)
	}
	return labelsForSelector(n.Annotations[annotationScope])
}

// FindGroupOnNode returns the name of the group that has annotations on the Node, or "". A group without an object
// writes its name on each of its nodes.
func FindGroupOnNode(n *corev1.Node) string { return n.Annotations[annotationGroup] }

// ManagesNode reports whether the manager with this selector handles the annotations on a Node. It handles nodes of the
// groups that it selects. It also handles nodes without any group, so that no annotation stays forever.
//
// A node without a known group may belong to a group that only another manager knows, from a file or a compatibility
// mode. Such a group writes its name and its manager's selector on the Node. Its manager removes the name when the
// group no longer owns the node. So a Node with a group's name is handled only by the manager with the selector on it.
// A Node without a name may be handled by any manager: if two do it at once, the second one changes nothing.
func (c *Cluster) ManagesNode(n *corev1.Node, selector labels.Selector) bool {
	name := c.Assignment.OwnerByNode[n.Name]
	if i := slices.IndexFunc(c.Groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name }); i >= 0 {
		return selector.Matches(labels.Set(c.Groups[i].Labels))
	}
	marks := readMarkOwner(n)
	return marks.group == "" || marks.scope == selector.String()
}

// labelsForSelector returns labels that satisfy the selector. It considers only requirements that name a value or the
// existence of a label.
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
