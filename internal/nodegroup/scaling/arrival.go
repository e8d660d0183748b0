package scaling

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// clusterAutoscalerStartup begins the keys of taints that cluster-autoscaler takes for those of a node that starts
// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#what-types-of-taints-are-there-in-cluster-autoscaler).
const clusterAutoscalerStartup = "startup-taint.cluster-autoscaler.kubernetes.io/"

// passing reports whether a taint says how far a node is with its start, or how it is just now, and not of what kind it is.
func passing(key string, startup []string) bool {
	return strings.HasPrefix(key, "node.kubernetes.io/") || strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/") ||
		strings.HasPrefix(key, clusterAutoscalerStartup) || slices.Contains(startup, key)
}

// IsArriving reports whether a Node has come and cannot take pods yet, and still may: it is not Ready or has a taint of
// its start, and is younger than the timeout. One that somebody has cordoned is not arriving.
func IsArriving(n *corev1.Node, startup []string, timeout time.Duration, now time.Time) bool {
	if n.Spec.Unschedulable || n.DeletionTimestamp != nil || len(budget.Others(n)) > 0 {
		return false
	}
	if !now.Before(n.CreationTimestamp.Add(timeout)) {
		return false
	}
	return !budget.Ready(n) || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return passing(t.Key, startup) })
}

// arrived is an arriving Node as it will be.
func arrived(n *corev1.Node, startup []string) *corev1.Node {
	out := n.DeepCopy()
	out.Spec.Taints = slices.DeleteFunc(out.Spec.Taints, func(t corev1.Taint) bool { return passing(t.Key, startup) })
	out.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return out
}
