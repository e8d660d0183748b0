package placement

import "github.com/slipway-dev/slipway/internal/cordon"

// ruleBeingRemoved leaves alone what another tool is removing (invariant I6).
var ruleBeingRemoved = nodeRule{
	name: "being-removed",
	object: func(_ *Snapshot, n *node, _ *Options) string {
		if by := removedBy(n); by != "" {
			return "is being removed already: " + by
		}
		return ""
	},
}

// removedBy names the sign that the node is going; empty when it is not.
func removedBy(n *node) string {
	if n.object.DeletionTimestamp != nil {
		return "the node is being deleted"
	}
	for i := range n.object.Spec.Taints {
		key := n.object.Spec.Taints[i].Key
		if tool := cordon.RemovingTool(key); tool != "" {
			return tool + " (taint " + key + ")"
		}
	}
	return ""
}
