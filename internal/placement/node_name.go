package placement

var reasonNodeName = Reason{"NodeName", "pod names another node", "node(s) didn't match the requested node name"}

// matchesName is the plugin NodeName: a pod that names its node goes nowhere else.
func (f *nodeFilter) matchesName(n *node) bool { return f.nodeName == "" || f.nodeName == n.name() }
