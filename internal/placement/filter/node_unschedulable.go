package filter

import "github.com/slipway-dev/slipway/internal/placement"

var reasonUnschedulable = placement.Reason{Predicate: "NodeUnschedulable", Text: "node is unschedulable", Scheduler: "node(s) were unschedulable"}

// passesUnschedulable is the plugin NodeUnschedulable: a cordoned node takes only pods that tolerate the taint of cordoning.
func (f *NodeFilter) passesUnschedulable(n *Node) bool {
	return !n.Object.Spec.Unschedulable || f.toleratesUnschedulable
}
