package placement

var reasonUnschedulable = Reason{"NodeUnschedulable", "node is unschedulable", "node(s) were unschedulable"}

// schedulable is the plugin NodeUnschedulable: a cordoned node takes only pods that tolerate the taint of cordoning.
func (f *nodeFilter) schedulable(n *node) bool {
	return !n.object.Spec.Unschedulable || f.toleratesUnschedulable
}
