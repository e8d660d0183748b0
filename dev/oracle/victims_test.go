package oracle

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// TestSchedulerAgreesWithVictimMoves removes the chosen victims in order. The scheduler judges every move in
// the state after the moves before it.
func TestSchedulerAgreesWithVictimMoves(t *testing.T) {
	t.Parallel()
	judge := newScheduler(t)
	moves, victims := 0, 0
	for s := *seed; moves < *pairs/100; s++ {
		c := placementtest.NewRandomCluster(s)
		snapshot, err := c.BuildSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		selection, err := planner.SelectVictims(snapshot, 4, planner.LeastPods, planner.Options{PodRules: podrules.VoluntaryPolicy().WithAction(podrules.RuleUnmanaged, podrules.Evict).WithAction(podrules.RuleLocalStorage, podrules.Evict).WithAction(podrules.RuleHostPath, podrules.Evict)})
		if err != nil {
			t.Fatal(err)
		}
		victims += len(selection.Victims)
		for _, v := range selection.Victims {
			moves += removeNode(t, judge, c, v, s)
		}
	}
	t.Logf("%d moves of %d victims", moves, victims)
}

// removeNode removes a node from the cluster and recreates its pods one by one.
func removeNode(t *testing.T, judge *Scheduler, c *placementtest.Cluster, v planner.Evacuation, seed uint64) int {
	t.Helper()
	c.Nodes = slices.DeleteFunc(c.Nodes, func(n *corev1.Node) bool { return n.Name == v.Node })
	var leaving []*corev1.Pod
	c.Pods = slices.DeleteFunc(c.Pods, func(p *corev1.Pod) bool {
		if p.Spec.NodeName == v.Node {
			leaving = append(leaving, p)
		}
		return p.Spec.NodeName == v.Node
	})
	for _, m := range v.Moves {
		i := slices.IndexFunc(leaving, func(p *corev1.Pod) bool { return p.Namespace == m.Pod.Namespace && p.Name == m.Pod.Name })
		if i < 0 {
			t.Fatalf("seed %d: %s is not on %s", seed, m.Pod, v.Node)
		}
		p := leaving[i].DeepCopy()
		p.Spec.NodeName, p.Status = "", corev1.PodStatus{}
		if err := judge.LoadCluster(c); err != nil {
			t.Fatal(err)
		}
		rulings, err := judge.JudgePod(t.Context(), p, c.Nodes)
		if err != nil {
			t.Fatal(err)
		}
		if ruling, found := rulings[m.To]; !found || !ruling.Fits {
			t.Fatalf("seed %d: %s leaves %s for %s: there=%t %s %q", seed, m.Pod, v.Node, m.To, found, ruling.Plugin, ruling.Reasons)
		}
		p.Spec.NodeName = m.To
		c.Pods = append(c.Pods, p)
	}
	return len(v.Moves)
}
