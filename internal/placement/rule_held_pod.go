package placement

// ruleHeldPod keeps the node of a pod whose annotations forbid moving it, for as long as they do.
var ruleHeldPod = podRule{
	name: "held-pod",
	decide: func(p *pod, o *Options) (podFate, bool) {
		held := p.eviction.heldFor != "" && (p.eviction.heldUntil.IsZero() || o.Now.Before(p.eviction.heldUntil))
		return fateBlocked, held
	},
	text:   func(p *pod) string { return "is held by annotation " + p.eviction.heldFor },
	remedy: "remove the annotation from the pod",
}
