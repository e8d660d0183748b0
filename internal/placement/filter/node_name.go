package filter

import "github.com/slipway-dev/slipway/internal/placement"

var reasonNodeName = placement.Reason{Predicate: "NodeName", Message: "pod requests another node", Scheduler: "node(s) didn't match the requested node name"}

// matchesName implements the plugin NodeName: a pod with a node name fits only on that node.
func (f *NodeFilter) matchesName(n *Node) bool { return f.nodeName == "" || f.nodeName == n.Name() }
