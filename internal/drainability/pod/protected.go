package pod

// protected matches pods with an annotation that forbids their eviction, for as long as it does.
var protected = rule{
	name:  "protected",
	match: func(f *Facts) bool { return f.Protection.Key != "" }, action: Refuse,
	text:   func(f *Facts) string { return "is protected by annotation " + f.Protection.String() },
	remedy: "remove the annotation from the pod",
}
