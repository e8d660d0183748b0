package pod

// protectedRule matches pods with an annotation that forbids their eviction now.
var protectedRule = rule{
	name:    "protected",
	matches: func(f *Facts) bool { return f.Protection.Key != "" }, action: RefuseDrain,
	describe: func(f *Facts) string { return "is protected by annotation " + f.Protection.String() },
	remedy:   "remove the annotation from the pod",
}
