package pod

// localStorageRule matches pods with an emptyDir on the disk of the node. Its data is lost with the pod.
var localStorageRule = rule{
	name:    "local-storage",
	matches: func(f *Facts) bool { return f.EmptyDir != NoLocalStorage }, action: RefuseDrain,
	isWaived: func(f *Facts) bool { return f.EmptyDir == LocalStorageWaived },
	describe: func(f *Facts) string { return "keeps data in emptyDir " + f.EmptyDirs }, remedy: "annotate the pod " + safeAnnotation,
}
