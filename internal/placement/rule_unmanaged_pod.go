package placement

import "github.com/slipway-dev/slipway/internal/protection"

// ruleUnmanagedPod keeps the node of a pod that nothing would create anew. An owner reference without the controller
// flag is no controller.
var ruleUnmanagedPod = podRule{
	name: "pod-without-controller",
	decide: func(p *pod, o *Options) (podFate, bool) {
		return fateBlocked, !p.eviction.controlled && !p.eviction.safe && !o.Unmanaged
	},
	text:   func(*pod) string { return "has no controller that would create it anew" },
	remedy: "delete the pod, or annotate it " + protection.SafeToEvict + `: "true"`,
}
