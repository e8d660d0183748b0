package pod

// finished matches pods that do no work any more; no disruption budget counts them.
var finished = rule{
	name: "finished", match: has(Finished), text: says("has finished"),
}
