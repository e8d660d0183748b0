package placement

// removalTaints are put on a node by a tool that is taking it away.
var removalTaints = [...]string{
	"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted",
	"remediator.kubernetes.azure.com/unschedulable", "remediator.aks.microsoft.com/unschedulable", // its older name
}

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
	for _, key := range removalTaints {
		if taintOf(n, key) != nil {
			return "taint " + key
		}
	}
	return ""
}
