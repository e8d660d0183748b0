package placement

import "github.com/slipway-dev/slipway/internal/protection"

// ruleHeldNode keeps nodes whose annotations forbid their removal, for as long as they do.
var ruleHeldNode = nodeRule{
	name: "held-node",
	object: func(_ *Snapshot, n *node, o *Options) string {
		for _, hold := range protection.OfNode(n.object.Annotations, n.object.CreationTimestamp.Time) {
			if hold.At(o.Now) && hold.Key != o.Lifted[n.name()] {
				return "is held by annotation " + hold.Key
			}
		}
		return ""
	},
	remedy: func(*node, *Options) string { return "remove the annotation" },
}
