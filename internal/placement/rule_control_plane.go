package placement

import "slices"

var controlPlaneMarks = [...]string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}

// ruleControlPlane keeps nodes of the control plane. They are known by their labels and taints, and by an API server
// that runs there, since some distributions set neither and others run the API server inside another process.
var ruleControlPlane = nodeRule{
	name: "control-plane",
	object: func(s *Snapshot, n *node, _ *Options) string {
		if s.controlPlane(n) {
			return "is part of the control plane"
		}
		return ""
	},
}

func (s *Snapshot) controlPlane(n *node) bool {
	for _, mark := range controlPlaneMarks {
		if _, ok := n.object.Labels[mark]; ok || taintOf(n, mark) != nil {
			return true
		}
	}
	return slices.ContainsFunc(n.pods, func(p *pod) bool { return p.eviction.apiServer })
}
