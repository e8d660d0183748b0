package pod

// terminatingRule matches pods that are already deleted. Their replacements are pending or on another node.
var terminatingRule = rule{
	name: "terminating", matches: hasFlag(Terminating), action: AwaitTermination, describe: fixedText("is terminating"),
}
