package plan

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// clusterAutoscalerStartupPrefix begins the keys of taints that cluster-autoscaler takes for those of a node that starts
// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#what-types-of-taints-are-there-in-cluster-autoscaler).
const clusterAutoscalerStartupPrefix = "startup-taint.cluster-autoscaler.kubernetes.io/"

// isTemporaryTaint reports whether a taint says how far a node is with its start, or how it is just now, and not of what kind it is.
func isTemporaryTaint(key string, startup []string) bool {
	return strings.HasPrefix(key, "node.kubernetes.io/") || strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/") ||
		strings.HasPrefix(key, clusterAutoscalerStartupPrefix) || slices.Contains(startup, key)
}

// IsArriving reports whether a Node has come and cannot take all of its pods yet, and still may: it is not Ready, has a taint of
// its start, or does not show one of the devices that its template has, and is younger than the timeout. One that is cordoned is not
// arriving. Observed is when this process first saw the Node, if it is known: its age counts from then where the clock was set back since
// the Node came.
func IsArriving(n *corev1.Node, startup []string, devices corev1.ResourceList, timeout time.Duration, observed, now time.Time) bool {
	if n.Spec.Unschedulable || n.DeletionTimestamp != nil || len(budget.Others(n)) > 0 {
		return false
	}
	began := n.CreationTimestamp.Time
	if elapsed.Future(began, now) && !observed.IsZero() {
		began = observed
	}
	if !now.Before(began.Add(timeout)) {
		return false
	}
	return !budget.Ready(n) || len(missingDevices(n, devices)) > 0 || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return isTemporaryTaint(t.Key, startup) })
}

// DevicesOf gives the devices of a Node's allocatable resources: what device plugins register after the Node is Ready.
func DevicesOf(n *corev1.Node) corev1.ResourceList {
	if n == nil {
		return nil
	}
	devices := corev1.ResourceList{}
	for name, amount := range n.Status.Allocatable {
		if strings.Contains(string(name), "/") && !strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix) && !amount.IsZero() {
			devices[name] = amount
		}
	}
	return devices
}

// missingDevices gives the devices that a Node does not show yet.
func missingDevices(n *corev1.Node, devices corev1.ResourceList) corev1.ResourceList {
	left := corev1.ResourceList{}
	for name, amount := range devices {
		if has := n.Status.Allocatable[name]; has.IsZero() {
			left[name] = amount
		}
	}
	return left
}

// toStartedNode is an arriving Node as it will be, with its devices.
func toStartedNode(n *corev1.Node, startup []string, devices corev1.ResourceList) *corev1.Node {
	out := n.DeepCopy()
	for name, amount := range missingDevices(n, devices) {
		for _, list := range []*corev1.ResourceList{&out.Status.Allocatable, &out.Status.Capacity} {
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[name] = amount.DeepCopy()
		}
	}
	out.Spec.Taints = slices.DeleteFunc(out.Spec.Taints, func(t corev1.Taint) bool { return isTemporaryTaint(t.Key, startup) })
	out.Spec.Unschedulable = false
	out.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return out
}
