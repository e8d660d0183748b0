// Package fromcorev1 reads the facts about pods and nodes from the types of k8s.io/api.
package fromcorev1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drainability/node"
	"github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// PodFacts returns the facts about a pod.
func PodFacts(p *corev1.Pod) pod.Facts {
	in := pod.Input{
		Labels: p.Labels, Annotations: p.Annotations, Created: p.CreationTimestamp.Time, Terminating: p.DeletionTimestamp != nil,
		Finished: IsFinished(p),
	}
	if c := metav1.GetControllerOfNoCopy(p); c != nil {
		in.Controller = c.Kind
	}
	if g := p.Spec.SchedulingGroup; g != nil {
		in.PodGroup = ptr.Deref(g.PodGroupName, "")
	}
	for i := range p.Spec.Volumes {
		switch v := &p.Spec.Volumes[i]; {
		case v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory:
			in.EmptyDirs = append(in.EmptyDirs, v.Name)
		case v.HostPath != nil:
			in.HostPaths = append(in.HostPaths, v.Name)
		}
	}
	return pod.NewFacts(in)
}

// IsFinished reports whether a pod has ended. A pod with an unknown phase may still run.
func IsFinished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// NodeFacts returns the facts about a node.
func NodeFacts(n *corev1.Node) node.Facts {
	return node.NewFacts(node.Input{
		Labels: n.Labels, Annotations: n.Annotations, Created: n.CreationTimestamp.Time, RemovedBy: findRemovingTools(n),
		HasTaint: func(key string) bool {
			return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
		},
		ReadyStatus: string(readyStatus(n)), Deleting: n.DeletionTimestamp != nil, Unschedulable: n.Spec.Unschedulable,
	})
}

func readyStatus(n *corev1.Node) corev1.ConditionStatus {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

// findRemovingTools returns the tools that are removing the node; see [cordon.RemovingTools].
func findRemovingTools(n *corev1.Node) []string {
	seen := kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: n.Annotations}}
	for _, t := range n.Spec.Taints {
		if cordon.RemovingToolOfTaint(t.Key) != "" {
			seen.Spec.Taints = append(seen.Spec.Taints, kubeapi.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
		}
	}
	if len(seen.Spec.Taints) == 0 {
		return nil
	}
	return cordon.RemovingTools(&seen)
}
