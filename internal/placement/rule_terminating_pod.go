package placement

// ruleTerminatingPod passes over pods that are going already; what replaces them is pending or placed elsewhere.
var ruleTerminatingPod = podRule{
	name:   "terminating-pod",
	decide: func(p *pod, _ *Options) (podFate, bool) { return fateStays, p.terminating },
	text:   func(*pod) string { return "is terminating" },
}
