package pod

// localStorage matches pods with an emptyDir on the disk of the node. Its data is lost with the pod.
var localStorage = rule{
	name:  "local-storage",
	match: func(f *Facts) bool { return f.EmptyDir != NoVolume }, action: Refuse,
	waived: func(f *Facts) bool { return f.EmptyDir == Waived },
	text:   func(f *Facts) string { return "keeps data in emptyDir " + f.EmptyDirs }, remedy: "annotate the pod " + safeAnnotation,
}
