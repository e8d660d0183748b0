package pod

// mirrorRule matches static pods. The kubelet runs a static pod from a file on the node, and the pod ends with the
// node.
var mirrorRule = rule{
	name: "mirror", matches: hasFlag(Mirror), action: Skip, describe: fixedText("is a static pod of the node"),
}
