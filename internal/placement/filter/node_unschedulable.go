package filter

import "github.com/slipway-dev/slipway/internal/placement"

var reasonUnschedulable = placement.Reason{Predicate: "NodeUnschedulable", Message: "node is unschedulable", Scheduler: "node(s) were unschedulable"}

// passesUnschedulable implements the plugin NodeUnschedulable: a cordoned node accepts only pods that tolerate the
// unschedulable taint.
func (f *NodeFilter) passesUnschedulable(n *Node) bool {
	return !n.Object.Spec.Unschedulable || f.toleratesUnschedulable
}
