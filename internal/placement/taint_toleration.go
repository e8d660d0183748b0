package placement

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

func reasonTaint(t *corev1.Taint) Reason {
	text := "untolerated taint " + t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return Reason{"TaintToleration", text, "node(s) had untolerated taint(s)"}
}

// untolerated is the plugin TaintToleration: the first NoSchedule or NoExecute taint that the pod does not tolerate.
func (f *nodeFilter) untolerated(n *node) *corev1.Taint {
	for i := range n.object.Spec.Taints {
		t := &n.object.Spec.Taints[i]
		if (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) && !f.tolerates(t) {
			return t
		}
	}
	return nil
}

// tolerates ignores the operators Lt and Gt, whose feature gate TaintTolerationComparisonOperators is off by default.
func (f *nodeFilter) tolerates(t *corev1.Taint) bool {
	for i := range f.tolerations {
		if f.tolerations[i].ToleratesTaint(klog.Logger{}, t, false) {
			return true
		}
	}
	return false
}
