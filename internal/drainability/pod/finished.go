package pod

// finishedRule matches pods that have ended. No PDB counts such a pod.
var finishedRule = rule{
	name: "finished", matches: hasFlag(Finished), describe: fixedText("has finished"),
}
