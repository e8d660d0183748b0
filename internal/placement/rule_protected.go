package placement

// ruleProtected keeps the nodes that the caller protects, such as machines whose membership in a cloud pool says that
// they must not be evicted, and those whose room a pending pod counts on.
var ruleProtected = nodeRule{
	name: "protected",
	object: func(_ *Snapshot, n *node, o *Options) string {
		if text := o.Protected[n.name()]; text != "" {
			return text
		}
		if pod, ok := o.Reserved[n.name()]; ok {
			return "has the room for pending pod " + pod.String()
		}
		return ""
	},
	remedy: func(n *node, o *Options) string {
		if o.Protected[n.name()] != "" {
			return "have the protection lifted where it was set"
		}
		return "add a node that the pending pod fits on, or delete the pod"
	},
}
