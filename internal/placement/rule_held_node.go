package placement

// ruleHeldNode keeps nodes whose annotations forbid their removal: cluster-autoscaler's, in any spelling of true, and
// Karpenter's, which may hold for a time.
var ruleHeldNode = nodeRule{
	name: "held-node",
	object: func(_ *Snapshot, n *node, o *Options) string {
		ours := isTrue(n.object.Annotations[annotationHoldsOff]) // it is set for cluster-autoscaler alone
		if !ours && isTrue(n.object.Annotations[annotationScaleDownDisabled]) {
			return "is held by annotation " + annotationScaleDownDisabled
		}
		annotation, until := heldBy(n.object.Annotations, n.object.CreationTimestamp.Time)
		if annotation != annotationDoNotDisrupt || !until.IsZero() && !o.Now.Before(until) {
			return ""
		}
		return "is held by annotation " + annotation
	},
	remedy: func(*node, *Options) string { return "remove the annotation" },
}
