package retirement

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/protection"
)

// TestPlacementTakesNoNodeWhosePodsARetirementRefuses: a node that placement gives up and a retirement does not would be
// cordoned and given back again and again. Placement may be the stricter one: it counts a hostPath as local storage.
func TestPlacementTakesNoNodeWhosePodsARetirementRefuses(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		pod := anyPod(t, now)
		unmanaged, local := rapid.Bool().Draw(t, "evict unmanaged"), rapid.Bool().Draw(t, "delete local storage")
		policy := drain.VoluntaryPolicy()
		if unmanaged {
			policy[drain.Unmanaged] = drain.Evict
		}
		if local {
			policy[drain.LocalStorage] = drain.Evict
		}
		verdict, action := policy.Judge(throughTheAPI(t, pod), now)
		world := placement.New()
		for _, name := range []string{"a", "b"} {
			if err := world.SetNode(readyNode(name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := world.SetPod(pod); err != nil {
			t.Fatal(err)
		}
		out, err := world.Evacuate("a", placement.LeastDisruption, placement.Options{Now: now, Unmanaged: unmanaged, LocalStorage: local})
		if err != nil {
			t.Fatal(err)
		}
		refused := action == drain.Refuse
		if refused && out.Feasible() {
			t.Fatalf("the retirement refuses it by %s (%s), and placement does not", verdict.Rule, verdict.Detail)
		}
		if !refused && !out.Feasible() && !hasHostPath(pod) {
			t.Fatalf("placement refuses it (%v), and the retirement does not (%s by %s)", out.Refusals, action, verdict.Rule)
		}
	})
}

func anyPod(t *rapid.T, now time.Time) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web", UID: "u", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
	}}
	pod.Spec.NodeName = "a"
	pod.Status.Phase = corev1.PodRunning
	pod.Annotations = rapid.MapOf(rapid.SampledFrom([]string{
		protection.SafeToEvict, protection.SafeLocalVolumes, protection.DoNotEvict, protection.DoNotDisrupt,
	}), rapid.SampledFrom([]string{"true", "True", "false", "False", "30m", "2h", "scratch", "scratch,tmp", ""})).Draw(t, "annotations")
	if kind := rapid.SampledFrom([]string{"", "ReplicaSet", "StatefulSet", "DaemonSet"}).Draw(t, "owner"); kind != "" {
		controller := rapid.Bool().Draw(t, "controller")
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

func hasHostPath(pod *corev1.Pod) bool {
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil {
			return true
		}
	}
	return false
}

// throughTheAPI is the pod as the drain engine reads it.
func throughTheAPI(t *rapid.T, pod *corev1.Pod) *kubeapi.Pod {
	raw, err := json.Marshal(pod)
	read := &kubeapi.Pod{}
	if err == nil {
		err = json.Unmarshal(raw, read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func readyNode(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
	return n
}
