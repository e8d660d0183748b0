package pod

// mirror matches static pods: the kubelet runs them from a file of the node, and they go with it.
var mirror = rule{
	name: "mirror", match: has(Mirror), action: Leave, text: says("is a static pod of the node"),
}
