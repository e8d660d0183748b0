package snapshot_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestPlansInForkMatchForkedCluster adds and removes nodes in a fork and makes every plan. The plans must equal those
// of a snapshot with the same changes.
func TestPlansInForkMatchForkedCluster(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64Range(0, 1<<20).Draw(t, "cluster")
		s, nodes, pods := newRandomSnapshot(seed)
		for i, p := range placementtest.NewRandomCluster(seed).Candidates {
			p.Name, p.Spec.NodeName = "pending-"+string(rune('a'+i)), ""
			must.NoError(t, s.SetPod(p))
		}
		before := s.Dump(true)
		var come []*corev1.Node
		for i := range rapid.IntRange(0, 3).Draw(t, "come") {
			come = append(come, placementtest.NewRandomNode(rand.New(rand.NewPCG(seed, uint64(i))), 1000+i))
		}
		leaves := nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "go")].Name
		fork := s.Fork()
		for _, n := range come {
			must.NoError(t, fork.AddNewNode(n))
		}
		must.NoError(t, fork.RemoveNamedNodeAndPods(leaves))
		tried := formatPlans(t, s)
		fork.Rollback()
		if after := s.Dump(true); after != before {
			t.Fatalf("before\n%s\nafter\n%s", before, after)
		}
		for _, n := range come {
			must.NoError(t, s.SetNode(n))
		}
		for _, p := range pods {
			if p.Spec.NodeName == leaves {
				must.NoError(t, s.DeletePod(keyOf(p)))
			}
		}
		must.NoError(t, s.DeleteNode(leaves))
		if real := formatPlans(t, s); real != tried {
			t.Fatalf("in the fork\n%s\nin the cluster\n%s", tried, real)
		}
	})
}

// formatPlans makes every plan for the cluster as a whole.
func formatPlans(t *rapid.T, s *snapshot.Snapshot) string {
	node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
		"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("10"),
	}}}
	packing, err := planner.PackPods(s, nil, []planner.Template{{Name: "new", Node: node, Cost: 1}}, planner.LeastWaste)
	must.NoError(t, err)

	victims, err := planner.SelectVictims(s, 3, planner.LeastPods, easyGoing)
	must.NoError(t, err)
	raw, err := json.Marshal([]any{packing, victims, planner.RankNodes(s, planner.LeastPods, easyGoing)})
	must.NoError(t, err)
	return string(raw)
}

func TestTemplatesShareLaunchLimit(t *testing.T) {
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{
			"cpu": resource.MustParse(cpu), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110"),
		}
	}
	template := func(name, cpu string, within ...*planner.LaunchLimit) planner.Template {
		return planner.Template{Name: name, SharedLimits: within, Node: &corev1.Node{Status: corev1.NodeStatus{Allocatable: list(cpu)}}}
	}
	two, cores := 2, corev1.ResourceList{"cpu": resource.MustParse("10")}
	for name, c := range map[string]struct {
		within         *planner.LaunchLimit
		machines, left int
	}{
		"machines":  {&planner.LaunchLimit{Name: "maximum", Instances: &two}, 2, 1},
		"resources": {&planner.LaunchLimit{Name: "cores", Resources: cores}, 2, 1},
		"none":      {&planner.LaunchLimit{Name: "open"}, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot.New()
			for i, cpu := range []string{"4", "4", "3"} {
				p := &corev1.Pod{}
				p.Namespace, p.Name = "apps", string(rune('a'+i))
				p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)},
				}}}
				must.NoError(t, s.SetPod(p))
			}
			packing, err := planner.PackPods(s, nil, []planner.Template{template("big", "5", c.within), template("small", "4", c.within)}, planner.LeastWaste)
			must.NoError(t, err)
			if len(packing.Instances) != c.machines || len(packing.Unschedulable) != c.left {
				t.Fatalf("%d instances and %d unschedulable pods, want %d and %d: %+v", len(packing.Instances), len(packing.Unschedulable), c.machines,
					c.left, packing)
			}
			for _, h := range packing.Unschedulable {
				if h.ExhaustedLimits["small"] != c.within.Name {
					t.Errorf("%s: spent is %v, want %s of small", h.Pod, h.ExhaustedLimits, c.within.Name)
				}
			}
		})
	}
}
