package pod

// mirrorRule matches static pods. The kubelet runs them from a file of the node, and they end with it.
var mirrorRule = rule{
	name: "mirror", matches: hasFlag(Mirror), action: Skip, describe: fixedText("is a static pod of the node"),
}
