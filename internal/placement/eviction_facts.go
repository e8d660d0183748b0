package placement

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Annotations by which people and other tools hold a pod or a node where it is.
const (
	annotationSafeToEvict       = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	annotationSafeLocalVolumes  = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
	annotationScaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	annotationHoldsOff          = "nodegroup.slipway.dev/holds-off-cluster-autoscaler" // the one before is set by Slipway itself
	annotationDoNotDisrupt      = "karpenter.sh/do-not-disrupt"
	annotationDoNotEvict        = "slipway.dev/do-not-evict"
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
	f.heldFor, f.heldUntil = heldBy(o.Annotations, o.CreationTimestamp.Time)
	f.safe = isTrue(o.Annotations[annotationSafeToEvict])
	f.localVolume = localVolume(o)
	return f
}

// isTrue takes every spelling of true; the old tools knew only one and passed over "True".
func isTrue(value string) bool {
	b, err := strconv.ParseBool(strings.ToLower(strings.TrimSpace(value)))
	return err == nil && b
}

func isFalse(value string) bool {
	b, err := strconv.ParseBool(strings.ToLower(strings.TrimSpace(value)))
	return err == nil && !b
}

// heldBy returns the annotation that forbids moving what carries it, and until when: zero for as long as it is there.
// Karpenter's annotation takes a duration, too, counted from the creation.
func heldBy(annotations map[string]string, created time.Time) (annotation string, until time.Time) {
	if len(annotations) == 0 {
		return "", time.Time{}
	}
	if value, ok := annotations[annotationSafeToEvict]; ok && isFalse(value) {
		return annotationSafeToEvict, time.Time{}
	}
	if value, ok := annotations[annotationDoNotEvict]; ok && isTrue(value) {
		return annotationDoNotEvict, time.Time{}
	}
	if value, ok := annotations[annotationDoNotDisrupt]; ok {
		if isTrue(value) {
			return annotationDoNotDisrupt, time.Time{}
		}
		if d, err := time.ParseDuration(value); err == nil && d > 0 {
			return annotationDoNotDisrupt, created.Add(d)
		}
	}
	return "", time.Time{}
}

// isAPIServer recognises a static API server: its node is part of the control plane, whatever its labels say.
func isAPIServer(o *corev1.Pod) bool {
	return o.Namespace == "kube-system" && o.Spec.NodeName != "" &&
		(o.Labels["component"] == "kube-apiserver" || o.Name == "kube-apiserver-"+o.Spec.NodeName)
}

// localVolume names the first volume whose content is lost with the node. A memory-backed emptyDir is lost with any
// restart and does not count; nor do volumes that an annotation lists as expendable.
func localVolume(o *corev1.Pod) string {
	expendable := strings.Split(o.Annotations[annotationSafeLocalVolumes], ",")
	for i := range o.Spec.Volumes {
		v := &o.Spec.Volumes[i]
		local := v.HostPath != nil || v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory
		if local && !slices.Contains(expendable, v.Name) {
			return v.Name
		}
	}
	return ""
}
