package pod

// daemonSet matches pods whose controller ignores the cordon and would recreate them on the same node.
var daemonSet = rule{
	name: "daemonset", match: func(f *Facts) bool { return f.Owner == DaemonSet }, action: Leave,
	text: says("belongs to a DaemonSet"), remedy: "let pods of DaemonSets stay",
}
