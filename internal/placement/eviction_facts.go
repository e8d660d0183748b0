package placement

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/protection"
)

// evictionFactsOf reads what the rules on eviction ask of a pod.
func evictionFactsOf(o *corev1.Pod) evictionFacts {
	f := evictionFacts{pending: o.Status.Phase == corev1.PodPending, apiServer: isAPIServer(o)}
	if owner := controllerOf(o); owner != nil {
		f.controlled = true
		f.daemonSet = owner.Kind == "DaemonSet"
		f.mirror = owner.Kind == "Node"
	}
	if _, ok := o.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		f.mirror = true
	}
	for i := range o.Status.Conditions {
		if c := &o.Status.Conditions[i]; c.Type == corev1.PodReady {
			f.healthy = c.Status == corev1.ConditionTrue
		}
	}
	if hold, ok := protection.Longest(protection.OfPod(o.Annotations, o.CreationTimestamp.Time)); ok {
		f.heldFor, f.heldUntil = hold.Key, hold.Until
	}
	f.safe = protection.MayGo(o.Annotations)
	f.localVolume = localVolume(o)
	return f
}

// isAPIServer recognises a static API server: its node is part of the control plane, whatever its labels say.
func isAPIServer(o *corev1.Pod) bool {
	return o.Namespace == "kube-system" && o.Spec.NodeName != "" &&
		(o.Labels["component"] == "kube-apiserver" || o.Name == "kube-apiserver-"+o.Spec.NodeName)
}

// localVolume names the first volume whose content is lost with the node. A memory-backed emptyDir is lost with any
// restart and does not count; nor do volumes that an annotation lists as expendable.
func localVolume(o *corev1.Pod) string {
	for i := range o.Spec.Volumes {
		v := &o.Spec.Volumes[i]
		local := v.HostPath != nil || v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory
		if local && !protection.MayLose(o.Annotations, v.Name) {
			return v.Name
		}
	}
	return ""
}
