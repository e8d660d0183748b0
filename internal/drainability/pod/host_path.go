package pod

// hostPath matches pods that can store data in directories of the node, which is lost with the instance.
var hostPath = rule{
	name:  "host-path",
	match: func(f *Facts) bool { return f.HostPath != NoVolume }, action: Refuse,
	waived: func(f *Facts) bool { return f.HostPath == Waived },
	text:   func(f *Facts) string { return "keeps data on the node in hostPath " + f.HostPaths }, remedy: "annotate the pod " + safeAnnotation,
}
