package pod

// keepsNodeRule matches pods that, by the group's idle rule, keep their node from being idle.
var keepsNodeRule = rule{
	name: "keeps-node", matches: hasFlag(KeepsNode), action: RefuseDrain,
	describe: fixedText("keeps the node, which is not idle"), remedy: "wait until the pod has finished",
}
