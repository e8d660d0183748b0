package pod

// hostPathRule matches pods that can store data in directories of the node. The data is lost with the instance.
var hostPathRule = rule{
	name:    "host-path",
	matches: func(f *Facts) bool { return f.HostPath != NoLocalStorage }, action: RefuseDrain,
	isWaived: func(f *Facts) bool { return f.HostPath == LocalStorageWaived },
	describe: func(f *Facts) string { return "keeps data on the node in hostPath " + f.HostPaths }, remedy: "annotate the pod " + safeAnnotation,
}
