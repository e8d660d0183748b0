package placement

// ruleDaemonSetPod passes over pods of DaemonSets: each belongs to its node and is not wanted elsewhere.
var ruleDaemonSetPod = podRule{
	name:   "daemonset-pod",
	decide: func(p *pod, _ *Options) (podFate, bool) { return fateStays, p.eviction.daemonSet },
	text:   func(*pod) string { return "belongs to a DaemonSet" },
}
