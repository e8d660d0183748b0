package pod

// terminating matches pods that were deleted already. What replaces them is pending or on another node.
var terminating = rule{
	name: "terminating", match: has(Terminating), action: Await, text: says("is terminating"),
}
