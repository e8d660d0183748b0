package nodegroup

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

func newSizedNode(name, of, cpu string) corev1.Node {
	n := newNode(name, of)
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	return n
}

func newPod(name, cpu string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: name, UID: "uid"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
}

func TestPendingPodKeepsTheOnlyGroupThatFits(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(p *corev1.Pod, own, other *corev1.Node)
		full   bool // the other node is full
		want   string
	}{
		"another node has room":       {nil, false, ""},
		"the other node is full":      {nil, true, "no other node takes it now"},
		"the other node is too small": {func(p *corev1.Pod, _, _ *corev1.Node) { *p = newPod("x", "6") }, false, "no other node takes it now"},
		"no node is large enough":     {func(p *corev1.Pod, _, _ *corev1.Node) { *p = newPod("x", "16") }, false, ""},
		"the other node is tainted": {func(_ *corev1.Pod, _, n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
		}, false, "no other node takes it now"},
		"the other node is cordoned":   {func(_ *corev1.Pod, _, n *corev1.Node) { n.Spec.Unschedulable = true }, false, "no other node takes it now"},
		"the group's node is cordoned": {func(_ *corev1.Pod, n, _ *corev1.Node) { n.Spec.Unschedulable = true }, true, "no other node takes it now"},
		"the group's node is tainted": {func(_ *corev1.Pod, n, _ *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
		}, true, ""},
		"it asks for the pool":     {func(p *corev1.Pod, _, _ *corev1.Node) { p.Spec.NodeSelector = map[string]string{pool: "ci"} }, false, "no other node takes it now"},
		"it asks for another pool": {func(p *corev1.Pod, _, _ *corev1.Node) { p.Spec.NodeSelector = map[string]string{pool: "web"} }, true, ""},
		"it has a scheduling gate": {func(p *corev1.Pod, _, _ *corev1.Node) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "quota"}}
		}, true, ""},
		"it has a claim on a volume": {func(p *corev1.Pod, _, _ *corev1.Node) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		}, false, "it claims a volume"},
		"it has affinity to another pod": {func(p *corev1.Pod, _, _ *corev1.Node) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{}}}}}
		}, false, "its placement depends on other pods"},
	} {
		t.Run(name, func(t *testing.T) {
			p, own, other := newPod("x", "2"), newSizedNode("a", "ci", "8"), newSizedNode("b", "web", "4")
			if tt.change != nil {
				tt.change(&p, &own, &other)
			}
			s := pendingPodSearch{own: []corev1.Node{own}, others: []corev1.Node{other}, podsOn: func(string) ([]*corev1.Pod, error) {
				if !tt.full {
					return nil, nil
				}
				big := newPod("big", "4")
				big.Spec.NodeName = "b"
				return []*corev1.Pod{&big}, nil
			}}
			found, err := s.findFirstGroupOnlyPod([]*corev1.Pod{&p})
			must.NoError(t, err)
			if (len(found) > 0) != (tt.want != "") || len(found) > 0 && !strings.Contains(found[0].Reason, tt.want) {
				t.Errorf("%+v, want %q", found, tt.want)
			}
		})
	}
}

func TestEqualPodsAreEvaluatedOnce(t *testing.T) {
	asked := 0
	s := pendingPodSearch{own: []corev1.Node{newSizedNode("a", "ci", "8")}, others: []corev1.Node{newSizedNode("b", "web", "4")}, podsOn: func(string) ([]*corev1.Pod, error) {
		asked++
		return nil, nil
	}}
	x, y, z := newPod("x", "2"), newPod("y", "2"), newPod("z", "2")
	if found, err := s.findFirstGroupOnlyPod([]*corev1.Pod{&x, &y, &z}); err != nil || len(found) > 0 || asked != 1 || len(s.results) != 1 {
		t.Errorf("%v, %v, asked %d times, judged %d", found, err, asked, len(s.results))
	}
}
