package pod

// daemonSetRule matches pods of DaemonSets. Their controller ignores the cordon and recreates them on the same node.
var daemonSetRule = rule{
	name: "daemonset", matches: func(f *Facts) bool { return f.Owner == OwnedByDaemonSet }, action: Skip,
	describe: fixedText("belongs to a DaemonSet"), remedy: "let pods of DaemonSets stay",
}
