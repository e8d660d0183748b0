package snapshot_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newNominatedPod returns a pending pod that the scheduler has nominated to a node.
func newNominatedPod(node string, priority int32, cpu int64) *corev1.Pod {
	p := placementtest.NewPod("urgent", 0, "", cpu, 128)
	p.Spec.Priority, p.Status.NominatedNodeName = &priority, node
	return p
}

func TestNominatedPodsReserveRoom(t *testing.T) {
	priority := int32(5)
	cases := map[string]struct {
		nominated *corev1.Pod
		want      string
	}{
		"higher priority":             {newNominatedPod("second", 6, 3500), "blocked: insufficient cpu beside nominated pods"},
		"same priority":               {newNominatedPod("second", 5, 3500), "blocked: insufficient cpu beside nominated pods"},
		"lower priority":              {newNominatedPod("second", 4, 3500), "fits"},
		"leaves enough room":          {newNominatedPod("second", 6, 3000), "fits"},
		"nominated to another node":   {newNominatedPod("first", 6, 3500), "fits"},
		"nominated to a deleted node": {newNominatedPod("third", 6, 3500), "fits"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cluster := placementtest.NewTwoNodeCluster()
			cluster.Pods = append(cluster.Pods, c.nominated)
			s, err := cluster.BuildSnapshot()
			must.NoError(t, err)
			p := placementtest.NewPod("new", 0, "", 1000, 128)
			p.Spec.Priority = &priority
			if v, err := s.JudgeNewPod(p, "second"); err != nil || v.String() != c.want {
				t.Errorf("%s, %v; want %s", v, err, c.want)
			}
			if v, err := s.JudgeRecreatedPod(placement.PodKey{Namespace: "default", Name: "urgent-0"}, "second"); err != nil || v.Outcome != placement.Fits {
				t.Errorf("the nominated pod is counted against itself: %s, %v", v, err)
			}
			bound := c.nominated.DeepCopy()
			bound.Spec.NodeName = "first"
			must.NoError(t, s.SetPod(bound))
			if v, err := s.JudgeNewPod(p, "second"); err != nil || v.Outcome != placement.Fits {
				t.Errorf("a pod bound to another node still counts: %s, %v", v, err)
			}
		})
	}
}

func TestPlansReserveRoomForNominatedPods(t *testing.T) {
	s, err := placementtest.NewTwoNodeCluster().BuildSnapshot() // its only pod can move from first to second
	must.NoError(t, err)
	for _, want := range []bool{true, false} {
		e, err := planner.PlanEvacuation(s, "first", planner.LeastDisruption, planner.Options{})
		if err != nil || e.IsFeasible() != want {
			t.Fatalf("moves %v, refusals %v, %v; want feasible %t", e.Moves, e.Refusals, err, want)
		}
		if !want && !strings.Contains(e.Refusals[0].Nodes.String(), "beside nominated pods") {
			t.Errorf("refusals %v", e.Refusals)
		}
		must.NoError(t, s.SetPod(newNominatedPod("second", 1, 3800)))
	}
}

func TestNominatedPodsArePlacedOnNominatedNode(t *testing.T) {
	cluster := placementtest.NewTwoNodeCluster()
	cluster.Pods = append(cluster.Pods, newNominatedPod("second", 1, 1000))
	s, err := cluster.BuildSnapshot()
	must.NoError(t, err)
	packing, err := planner.PackPods(s, nil, nil, planner.LeastWaste)
	if err != nil || len(packing.Moves) != 1 || packing.Moves[0].To != "second" {
		t.Errorf("%+v, %v", packing, err)
	}
}

func TestRemovedPodsHaveNoNomination(t *testing.T) {
	cluster := placementtest.NewTwoNodeCluster()
	cluster.Pods = append(cluster.Pods, newNominatedPod("second", 1, 3500))
	s, err := cluster.BuildSnapshot()
	must.NoError(t, err)
	fork := s.Fork()
	defer fork.Rollback()
	urgent := placement.PodKey{Namespace: "default", Name: "urgent-0"}
	must.NoError(t, fork.MovePod(urgent, "first"))
	fork.RemovePod(s.Pod(urgent))
	if v, err := s.JudgeNewPod(placementtest.NewPod("new", 0, "", 1000, 128), "second"); err != nil || v.Outcome != placement.Fits {
		t.Errorf("%s, %v; want fits", v, err)
	}
}
