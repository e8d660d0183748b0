package filter

import "github.com/slipway-dev/slipway/internal/placement"

var reasonNodeName = placement.Reason{Predicate: "NodeName", Text: "pod names another node", Scheduler: "node(s) didn't match the requested node name"}

// matchesName is the plugin NodeName: a pod that names its node goes nowhere else.
func (f *NodeFilter) matchesName(n *Node) bool { return f.nodeName == "" || f.nodeName == n.Name() }
