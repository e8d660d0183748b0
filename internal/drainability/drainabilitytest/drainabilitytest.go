// Package drainabilitytest draws random pods for tests that compare decisions.
package drainabilitytest

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// DrawPod draws a pod on node a that was created an hour ago, with everything that a rule reads.
func DrawPod(t *rapid.T, now time.Time) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: rapid.SampledFrom([]string{"shop", metav1.NamespaceSystem}).Draw(t, "namespace"),
		Name:      "web", UID: "u", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
		Labels: map[string]string{"app": rapid.SampledFrom([]string{"web", "placeholder", "job"}).Draw(t, "app")},
	}}
	for _, key := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{
		"leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/group-key",
		"jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/job-index",
	}), rapid.ID).Draw(t, "groupLabels") {
		pod.Labels[key] = rapid.SampledFrom([]string{"", "0", "1"}).Draw(t, key)
	}
	pod.Spec.NodeName = "a"
	pod.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{
		corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodUnknown, corev1.PodSucceeded, corev1.PodFailed,
	}).Draw(t, "phase")
	pod.Annotations = rapid.MapOf(rapid.SampledFrom([]string{
		drainability.SafeToEvict, drainability.SafeLocalVolumes, drainability.DoNotEvict, drainability.DoNotDisrupt, corev1.MirrorPodAnnotationKey,
	}), rapid.SampledFrom([]string{"true", "True", "false", "False", "30m", "2h", "scratch", "scratch,tmp", "host", ""})).Draw(t, "annotations")
	if rapid.IntRange(0, 5).Draw(t, "deleted") == 0 {
		pod.DeletionTimestamp = &pod.CreationTimestamp
	}
	if kind := rapid.SampledFrom([]string{"", "ReplicaSet", "StatefulSet", "DaemonSet", "Node"}).Draw(t, "owner"); kind != "" {
		controller := rapid.IntRange(0, 3).Draw(t, "controller") > 0
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "web", UID: "o", Controller: &controller}}
	}
	for _, volume := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"scratch", "tmp", "memory", "host"}), rapid.ID).Draw(t, "volumes") {
		v := corev1.Volume{Name: volume}
		switch volume {
		case "memory":
			v.EmptyDir = &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
		case "host":
			v.HostPath = &corev1.HostPathVolumeSource{Path: "/var"}
		default:
			v.EmptyDir = &corev1.EmptyDirVolumeSource{}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
	}
	return pod
}

// ConvertViaJSON converts an object to another type through JSON, as the API server would send it.
func ConvertViaJSON[T any](t interface{ Fatal(...any) }, object any) *T {
	raw, err := json.Marshal(object)
	read := new(T)
	if err == nil {
		err = json.Unmarshal(raw, read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return read
}
