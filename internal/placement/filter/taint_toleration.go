package filter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/slipway-dev/slipway/internal/placement"
)

func newTaintReason(t *corev1.Taint) placement.Reason {
	text := "untolerated taint " + t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return placement.Reason{Predicate: "TaintToleration", Message: text, Scheduler: "node(s) had untolerated taint(s)"}
}

// findUntoleratedTaint implements the plugin TaintToleration. It returns the first NoSchedule or NoExecute taint that
// the pod does not tolerate, or nil.
func (f *NodeFilter) findUntoleratedTaint(n *Node) *corev1.Taint {
	for i := range n.Object.Spec.Taints {
		t := &n.Object.Spec.Taints[i]
		if (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) && !f.tolerates(t) {
			return t
		}
	}
	return nil
}

// tolerates ignores the operators Lt and Gt, because their feature gate TaintTolerationComparisonOperators is off by
// default.
func (f *NodeFilter) tolerates(t *corev1.Taint) bool {
	for i := range f.tolerations {
		if f.tolerations[i].ToleratesTaint(klog.Logger{}, t, false) {
			return true
		}
	}
	return false
}
