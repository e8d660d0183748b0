package snapshot_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestResizedPodOfUnknownNodeIsRecreated has a pod that uses 3 CPUs in place and requests half a CPU.
func TestResizedPodOfUnknownNodeIsRecreated(t *testing.T) {
	c := placementtest.NewTwoNodeCluster()
	p := placementtest.NewPod("resized", 0, "third", 500, 128)
	more := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", Resources: &corev1.ResourceRequirements{Requests: more}, AllocatedResources: more,
	}}
	c.Pods = append(c.Pods, p)
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	judge := func(when, node string, want placement.Outcome) {
		t.Helper()
		v, err := s.JudgeNewPod(placementtest.NewPod("new", 0, "", 3000, 128), node)
		if err != nil || v.Outcome != want {
			t.Errorf("%s: %s, %v; want %s", when, v, err, want)
		}
	}
	fork := s.Fork()
	must.NoError(t, fork.MovePod(placement.PodKey{Namespace: "default", Name: "resized-0"}, "second"))
	judge("where a plan has moved it", "second", placement.Fits)
	fork.Rollback()
	must.NoError(t, s.SetNode(placementtest.NewNode("third", "zone-a", 4, 16, 10)))
	judge("where it is", "third", placement.Blocked)
}
