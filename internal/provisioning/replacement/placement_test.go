package replacement

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/internal/placement/live"
)

// newRoom returns a Room of nodes with four CPUs each, in one pool.
func newRoom(t *testing.T, objects ...client.Object) ClusterPlacement {
	t.Helper()
	scheme, err := kinds()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		objects = append(objects, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				corev1.LabelHostname: name, "kubernetes.azure.com/agentpool": "ci",
			}},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110"),
				},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, live.NodeNameField, func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).Build()
	return ClusterPlacement{Cached: c, Live: c, Pods: live.NewListingPodReader(c)}
}

// newPod returns a controlled pod, on a node or pending.
func newPod(name, node, cpu string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID(name),
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "web", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if node == "" {
		p.Status.Phase = corev1.PodPending
	}
	for _, change := range change {
		change(p)
	}
	return p
}

func TestPodsThatFitNoOtherNodeAreUnschedulable(t *testing.T) {
	bare := func(p *corev1.Pod) { p.OwnerReferences = nil }
	over := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	held := func(p *corev1.Pod) { p.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"} }
	daemon := func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }
	for what, tt := range map[string]struct {
		pods []client.Object
		want string
	}{
		"there is room":                 {[]client.Object{newPod("web", "a", "2"), newPod("other", "b", "2")}, ""},
		"there is none":                 {[]client.Object{newPod("web", "a", "3"), newPod("other", "b", "2")}, "shop/web"},
		"there is room for one of two":  {[]client.Object{newPod("one", "a", "2"), newPod("two", "a", "2"), newPod("other", "b", "2")}, "shop/two"},
		"it has no controller":          {[]client.Object{newPod("web", "a", "3", bare), newPod("other", "b", "2")}, ""},
		"it is finished":                {[]client.Object{newPod("web", "a", "3", over), newPod("other", "b", "2")}, ""},
		"it belongs to a DaemonSet":     {[]client.Object{newPod("web", "a", "3", daemon), newPod("other", "b", "2")}, ""},
		"it is protected":               {[]client.Object{newPod("web", "a", "3", held), newPod("other", "b", "2")}, "shop/web"},
		"the drain has made it pending": {[]client.Object{newPod("web", "", "3"), newPod("mine", "a", "2"), newPod("other", "b", "2")}, "shop/web"},
		"a pending pod fits elsewhere":  {[]client.Object{newPod("web", "", "1"), newPod("other", "b", "2")}, ""},
		"a pending pod is too large":    {[]client.Object{newPod("web", "", "5"), newPod("other", "b", "2")}, ""},
	} {
		unschedulable, err := newRoom(t, tt.pods...).ListUnschedulablePods(t.Context(), "a")
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var names []string
		for _, h := range unschedulable {
			names = append(names, h.Pod)
		}
		if got := strings.Join(names, " "); got != tt.want {
			t.Errorf("%s: %q are unschedulable, want %q (%+v)", what, got, tt.want, unschedulable)
		}
	}
}

func TestUndecidablePodIsUnschedulable(t *testing.T) {
	ephemeral := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			}},
		}}}}
	}
	unschedulable, err := newRoom(t, newPod("web", "a", "1", ephemeral)).ListUnschedulablePods(t.Context(), "a")
	if err != nil || len(unschedulable) != 1 {
		t.Errorf("%+v, %v", unschedulable, err)
	}
}
