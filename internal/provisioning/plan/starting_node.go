package plan

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// clusterAutoscalerStartupPrefix is the prefix of taints that cluster-autoscaler treats as startup taints
// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#what-types-of-taints-are-there-in-cluster-autoscaler).
const clusterAutoscalerStartupPrefix = "startup-taint.cluster-autoscaler.kubernetes.io/"

// isTemporaryTaint reports whether a taint describes the start or the current state of a node, and not its type.
func isTemporaryTaint(key string, startup []string) bool {
	return strings.HasPrefix(key, "node.kubernetes.io/") || strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/") ||
		strings.HasPrefix(key, clusterAutoscalerStartupPrefix) || slices.Contains(startup, key)
}

// IsStarting reports whether a Node has joined, cannot take all of its pods yet, and is younger than the timeout. Such a
// Node is not Ready, has a startup taint, or lacks a device of its template. A cordoned Node is not starting.
//
// observedSince is when this process first saw the Node, or zero. If the creation time of the Node is in the future, because
// the clock was set back, its age counts from observedSince.
func IsStarting(n *corev1.Node, startup []string, devices corev1.ResourceList, timeout time.Duration, observedSince, now time.Time) bool {
	if n.Spec.Unschedulable || n.DeletionTimestamp != nil || len(disruptionbudget.FindRemovingTools(n)) > 0 {
		return false
	}
	began := n.CreationTimestamp.Time
	if elapsed.IsFuture(began, now) && !observedSince.IsZero() {
		began = observedSince
	}
	if !now.Before(began.Add(timeout)) {
		return false
	}
	return !disruptionbudget.IsReady(n) || len(missingDevices(n, devices)) > 0 || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return isTemporaryTaint(t.Key, startup) })
}

// ListDevices returns the devices in a Node's allocatable resources. Device plugins register them after the Node is
// Ready.
func ListDevices(n *corev1.Node) corev1.ResourceList {
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

func missingDevices(n *corev1.Node, devices corev1.ResourceList) corev1.ResourceList {
	left := corev1.ResourceList{}
	for name, amount := range devices {
		if has := n.Status.Allocatable[name]; has.IsZero() {
			left[name] = amount
		}
	}
	return left
}

// toStartedNode returns a starting Node as it will be once it has started, with its devices.
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
