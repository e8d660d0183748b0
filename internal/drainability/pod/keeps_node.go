package pod

// keepsNode matches pods by which their group says that a node is not idle.
var keepsNode = rule{
	name: "keeps-node", match: has(KeepsNode), action: Refuse,
	text: says("keeps the node, which is not idle"), remedy: "wait until the pod has finished",
}
