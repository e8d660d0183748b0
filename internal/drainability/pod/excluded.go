package pod

// excludedRule matches pods that the caller has excluded from the drain. It also matches placeholder pods, because they
// do no work.
var excludedRule = rule{
	name:    "excluded",
	matches: func(f *Facts) bool { return f.Flags&(Excluded|Placeholder) != 0 }, action: Skip,
	describe: func(f *Facts) string {
		if f.HasFlag(Placeholder) {
			return "is a placeholder pod"
		}
		return "is not selected"
	},
}
