package pod

// terminatingRule matches pods that are already being deleted. Their replacements are pending or run on another node.
var terminatingRule = rule{
	name: "terminating", matches: hasFlag(Terminating), action: AwaitTermination, describe: fixedText("is terminating"),
}
