package placement

// ruleMirrorPod passes over static pods: the kubelet runs them from a file of the node, and they go with it.
var ruleMirrorPod = podRule{
	name:   "mirror-pod",
	decide: func(p *pod, _ *Options) (podFate, bool) { return fateStays, p.eviction.mirror },
	text:   func(*pod) string { return "is a static pod of the node" },
}
