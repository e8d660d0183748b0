package provisioning

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

const gpu = "nvidia.com/gpu"

func withGPUs(g *v1alpha1.NodeGroup) {
	allocatable := func() corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), gpu: resource.MustParse("1"),
		}
	}
	g.Spec.ScaleUp.Policy = v1alpha1.FirstTemplate
	g.Spec.ScaleUp.Templates = []v1alpha1.InstanceTemplate{{Name: "g4", Allocatable: allocatable()}, {Name: "g5", Allocatable: allocatable()}}
}

// TestNodeWithoutItsDevicesYetCountsAsStarting has a Node that is Ready before its GPU is registered.
func TestNodeWithoutItsDevicesYetCountsAsStarting(t *testing.T) {
	f := newFixture(t, withGPUs)
	f.pool.change(func() { f.pool.templates = []string{"g4", "g5"} })
	p := newUnschedulablePod("apps", "a")
	p.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("1")
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("1")}
	f.addUnschedulablePod(p)
	f.reconcileTimes(2)
	join := func(change func(*corev1.Node)) {
		f.joinAll(func(n *corev1.Node) {
			n.Labels[corev1.LabelInstanceTypeStable] = "g4"
			change(n)
		})
		f.waitUntil("the watch tells of the Node", func() bool {
			n, err := f.sources.nodes.Get("machine-0")
			return err == nil && n.CreationTimestamp.After(time.Now().Add(-30*time.Minute))
		})
	}
	join(func(*corev1.Node) {})
	f.reconcileTimes(3)
	if got := f.pool.launches(); len(got) != 1 {
		t.Fatalf("launches are %v while the device plugin starts, want one", got)
	}
	if l, learned := f.states["web"].learned["g4"]; learned {
		t.Errorf("%+v was learned from a Node that is still arriving", l)
	}
	join(func(n *corev1.Node) { n.Status.Allocatable[gpu] = resource.MustParse("1") })
	f.waitUntil("the watch tells of the GPU", func() bool {
		n, err := f.sources.nodes.Get("machine-0")
		return err == nil && len(n.Status.Allocatable) == 4
	})
	f.reconcileTimes(2)
	l := f.states["web"].learned["g4"]
	if has := l.Allocatable[gpu]; has.Value() != 1 || len(f.pool.launches()) != 1 {
		t.Errorf("learned %v, launches %v; want the GPU, and one", l.Allocatable, f.pool.launches())
	}
}

// TestNodeWithoutDevicesStopsStartingAfterJoinTimeout has a device plugin that never registers.
func TestNodeWithoutDevicesStopsStartingAfterJoinTimeout(t *testing.T) {
	f := newFixture(t, withGPUs)
	f.pool.change(func() { f.pool.templates = []string{"g4", "g5"} })
	p := newUnschedulablePod("apps", "a")
	p.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("1")
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("1")}
	f.addUnschedulablePod(p)
	f.reconcileTimes(2)
	f.joinAll(func(n *corev1.Node) {
		n.Labels[corev1.LabelInstanceTypeStable] = "g4"
		n.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	})
	f.reconcileTimes(2)
	if got := f.pool.launches(); len(got) != 2 || got[1].Template != "g5" {
		t.Errorf("launches are %v after the join timeout, want one of the next template", got)
	}
}
