package planner_test

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// FuzzObjects makes every plan with a pod and a node from arbitrary JSON.
func FuzzObjects(f *testing.F) {
	for seed := range uint64(20) {
		c := placementtest.NewRandomCluster(seed)
		for i, p := range c.Candidates {
			pod, err := json.Marshal(p)
			must.NoError(f, err)
			node, err := json.Marshal(c.Nodes[i%len(c.Nodes)])
			must.NoError(f, err)
			f.Add(pod, node, i%2 == 0)
		}
	}
	f.Add([]byte(`{"metadata":{"name":"p","ownerReferences":[{}]},"spec":{"containers":[{"ports":[{"hostPort":-1}]}]}}`),
		[]byte(`{"metadata":{"name":"n"},"status":{"allocatable":{"cpu":"-9223372036854775808","pods":"-1"}}}`), true)
	f.Fuzz(func(t *testing.T, podText, nodeText []byte, placed bool) {
		var p corev1.Pod
		var n corev1.Node
		if json.Unmarshal(podText, &p) != nil || json.Unmarshal(nodeText, &n) != nil || p.Name == "" || n.Name == "" {
			return
		}
		s, err := placementtest.NewRandomCluster(7).BuildSnapshot()
		must.NoError(t, err)
		if placed {
			p.Spec.NodeName = n.Name
		}
		for _, err := range []error{s.SetPod(&p), s.SetNode(&n), s.SetPod(&p)} {
			must.NoError(t, err)
		}
		if _, err := s.JudgeNewPod(&p, n.Name); err != nil {
			t.Fatal(err)
		}
		if _, err := planner.PlanEvacuation(s, n.Name, planner.LeastDisruption, planner.Options{}); err != nil {
			t.Fatal(err)
		}
		if _, err := planner.SelectVictims(s, 3, planner.LeastLoaded, planner.Options{PodRules: podrules.VoluntaryPolicy().WithAction(podrules.RuleUnmanaged, podrules.Evict)}); err != nil {
			t.Fatal(err)
		}
		if _, err := planner.PackPods(s, nil, []planner.Template{{Name: "f", Node: &n, Cost: 1}}, planner.LeastCost); err != nil {
			t.Fatal(err)
		}
		must.NoError(t, s.DeleteNode(n.Name))
		must.NoError(t, s.DeletePod(placement.PodKey{Namespace: p.Namespace, Name: p.Name}))
	})
}
