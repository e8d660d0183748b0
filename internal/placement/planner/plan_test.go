package planner_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestTemplateHasSmallestRoomOfItsNodes(t *testing.T) {
	small, large := placementtest.NewNode("small", "zone-a", 4, 16, 10), placementtest.NewNode("large", "zone-b", 8, 8, 10)
	for _, n := range []*corev1.Node{small, large} {
		n.Labels["kubernetes.azure.com/agentpool"] = "spot"
		n.Spec.Taints = []corev1.Taint{{Key: "spot", Effect: corev1.TaintEffectNoSchedule}}
	}
	small.Labels["only"] = "small"
	small.Spec.Taints = append(small.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	small.Status.Allocatable["example.com/gpu"] = resource.MustParse("1")
	master := placementtest.NewNode("master", "zone-a", 4, 16, 10)
	master.Labels["node-role.kubernetes.io/control-plane"] = ""
	agent := placementtest.NewPod("agent", 0, "small", 500, 1024)
	agent.OwnerReferences[0].Kind = "DaemonSet"
	proxy, web := placementtest.NewPod("kube-proxy", 0, "small", 1000, 1024), placementtest.NewPod("web", 0, "small", 2000, 1024)
	proxy.OwnerReferences[0].Kind, proxy.Annotations = "Node", map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	o := &saved.Objects{Nodes: []*corev1.Node{small, large, master}, Pods: []*corev1.Pod{agent, proxy, web}}
	o.CSINodes = []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "csi.example.com"}}}}}
	s, err := o.BuildSnapshot()
	must.NoError(t, err)
	templates := planner.DeriveTemplates(s, o)
	must.Not(t, len(templates) != 1, "%d templates: %+v", len(templates), templates)
	f := templates[0]
	check.Is(t, "large", f.Sibling)
	check.Not(t, f.Name != "spot" || !slices.Equal(f.Zones, []string{"zone-a", "zone-b"}), "name %q, zones %v", f.Name, f.Zones)
	taints := f.Node.Spec.Taints
	check.Not(t, len(taints) != 1 || taints[0].Key != "spot", "taints %v", taints)
	if _, ok := f.Node.Labels["only"]; ok || f.Node.Labels["kubernetes.azure.com/agentpool"] != "spot" {
		t.Errorf("labels %v", f.Node.Labels)
	}
	a := f.Node.Status.Allocatable
	if _, ok := a["example.com/gpu"]; ok || a.Cpu().MilliValue() != 2500 || a.Memory().Value() != 8<<30 || a.Pods().Value() != 8 {
		t.Errorf("allocatable %v", a)
	}
	check.Is(t, 4000, small.Status.Allocatable.Cpu().MilliValue())
}

func TestPlanReservesRoomForPendingPods(t *testing.T) {
	o := &saved.Objects{
		Nodes: []*corev1.Node{placementtest.NewNode("a", "zone-a", 4, 16, 10), placementtest.NewNode("b", "zone-a", 4, 16, 10)},
		Pods:  []*corev1.Pod{placementtest.NewPod("web", 0, "a", 2000, 512)},
	}
	options := planner.PlanOptions{MaxRemovals: -1, Policy: planner.LeastDisruption}
	p, err := planner.PlanFromObjects(o, options)
	must.NoError(t, err)
	must.Not(t, len(p.Remove.Victims) != 1 || p.Remove.Victims[0].Node != "b" || p.Launch != nil, "without pending pods: %+v, %+v", p.Remove, p.Launch)
	o.Pods = append(o.Pods, placementtest.NewPod("wide", 0, "", 3000, 512))
	if p, err = planner.PlanFromObjects(o, options); err != nil {
		t.Fatal(err)
	}
	if len(p.Remove.Victims) != 0 || len(p.Launch.Instances) != 0 || len(p.Launch.Moves) != 1 || p.Launch.Moves[0].To != "b" {
		t.Errorf("with a pending pod that fits only on b: %+v, %+v", p.Remove, p.Launch)
	}
	for _, node := range []string{"a", "b"} {
		e, err := planner.PlanEvacuationFromObjects(o, node, options)
		must.NoError(t, err)
		check.Not(t, e.IsFeasible(), "node %s alone is feasible: %+v", node, e)
	}
}

func TestAnyClusterGetsAPlan(t *testing.T) {
	for seed := range uint64(200) {
		c := placementtest.NewRandomCluster(seed)
		if _, err := planner.PlanFromObjects(&c.Objects, planner.PlanOptions{MaxRemovals: -1, Policy: planner.LeastDisruption}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, n := range c.Nodes {
			if _, err := planner.PlanEvacuationFromObjects(&c.Objects, n.Name, planner.PlanOptions{}); err != nil {
				t.Fatalf("seed %d, node %s: %v", seed, n.Name, err)
			}
		}
	}
	if p, err := planner.PlanFromObjects(&saved.Objects{}, planner.PlanOptions{MaxRemovals: -1}); err != nil || len(p.Remove.Victims) != 0 {
		t.Errorf("empty cluster: %+v, %v", p, err)
	}
}

func TestPlansAreDeterministic(t *testing.T) {
	for seed := range uint64(20) {
		c := placementtest.NewRandomCluster(seed)
		for _, p := range c.Candidates {
			if p.Spec.NodeName == "" {
				c.Pods = append(c.Pods, p)
			}
		}
		warm, err := planner.NewCluster(&c.Objects)
		must.NoError(t, err)
		options := planner.PlanOptions{MaxRemovals: -1, Policy: planner.LeastDisruption, Rules: planner.Options{PodRules: podrules.VoluntaryPolicy().WithAction(podrules.RuleUnmanaged, podrules.Evict).WithAction(podrules.RuleLocalStorage, podrules.Evict).WithAction(podrules.RuleHostPath, podrules.Evict)}}
		for range 2 {
			got, err := warm.PlanLaunchesAndRemovals(options)
			must.NoError(t, err)
			want, err := planner.PlanFromObjects(&c.Objects, options)
			must.NoError(t, err)
			checkEqual(t, seed, got, want)
			for _, n := range c.Nodes {
				got, err := warm.PlanEvacuation(n.Name, options)
				must.NoError(t, err)
				want, err := planner.PlanEvacuationFromObjects(&c.Objects, n.Name, options)
				must.NoError(t, err)
				checkEqual(t, seed, got, want)
			}
		}
	}
}

func checkEqual(t *testing.T, seed uint64, got, want any) {
	t.Helper()
	a, err := json.Marshal(got)
	must.NoError(t, err)
	b, err := json.Marshal(want)
	must.NoError(t, err)
	must.Not(t, !bytes.Equal(a, b), "seed %d: repeated\n%s\nfirst\n%s", seed, a, b)
}

func TestBlockedNodeHasRemedy(t *testing.T) {
	remedies := map[string]int{}
	for seed := range uint64(300) {
		c := placementtest.NewRandomCluster(seed)
		s, err := c.BuildSnapshot()
		must.NoError(t, err)
		o := planner.Options{
			PodRules: podrules.VoluntaryPolicy().WithAction(podrules.RuleUnmanaged, podrules.Evict).WithAction(podrules.RuleLocalStorage, podrules.Evict).WithAction(podrules.RuleHostPath, podrules.Evict), ExcludedNodes: map[string]string{c.Nodes[0].Name: "is not evictable"},
			ReservedNodes: map[string]placement.PodKey{c.Nodes[1].Name: {Namespace: "red", Name: "waiting"}},
		}
		for _, n := range c.Nodes {
			e, err := planner.PlanEvacuation(s, n.Name, planner.LeastPods, o)
			must.NoError(t, err)
			for _, r := range e.Refusals {
				if r.Rule != "no-room" && r.Rule != "excluded" && r.Rule != "reserved" {
					continue
				}
				decided := len(r.Nodes) == 0
				for _, tally := range r.Nodes {
					decided = decided || tally.Reason.Scheduler != ""
				}
				if decided != (r.Remedy != "") {
					t.Errorf("seed %d, %s: %s: remedy %q", seed, n.Name, r, r.Remedy)
				}
				remedies[r.Remedy]++
			}
		}
	}
	check.Not(t, len(remedies) < 12, "want at least 12 different remedies, got %v", remedies)
}

func TestVictimsAreNeverWorseThanGreedyChoice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := placementtest.NewRandomCluster(rapid.Uint64Range(0, 1<<20).Draw(t, "cluster"))
		s, err := c.BuildSnapshot()
		must.NoError(t, err)
		k := rapid.IntRange(1, 9).Draw(t, "k")
		policy := rapid.SampledFrom([]planner.Policy{planner.LeastDisruption, planner.LeastPods, planner.LeastLoaded}).Draw(t, "policy")
		count, cost := planner.SelectGreedily(s, k, policy, easyGoing)
		selection, err := planner.SelectVictims(s, k, policy, easyGoing)
		must.NoError(t, err)
		if got := len(selection.Victims); got < count || got == count && selection.Cost > cost+1e-9 {
			text, _ := json.Marshal(selection.Skipped)
			t.Fatalf("%d victims at %v, one by one %d at %v; rejected %s", got, selection.Cost, count, cost, text)
		}
	})
}

// TestRanksAgreeWithEvacuation compares the ranks of a random cluster with the evacuation of each node, and executes it.
func TestRanksAgreeWithEvacuation(t *testing.T) {
	checkCluster := func(t must.T, seed uint64) {
		s, err := placementtest.NewRandomCluster(seed).BuildSnapshot()
		must.NoError(t, err)
		must.NoError(t, placementtest.CheckRanks(s, planner.RankNodes(s, planner.LeastDisruption, planner.Options{}), 1))
	}
	checkCluster(t, 0x76d) // the first node that fits depends on the node at which the search starts
	rapid.Check(t, func(t *rapid.T) { checkCluster(t, rapid.Uint64Range(0, 1<<20).Draw(t, "cluster")) })
}

var easyGoing = planner.Options{PodRules: podrules.VoluntaryPolicy().WithAction(podrules.RuleUnmanaged, podrules.Evict).WithAction(podrules.RuleLocalStorage, podrules.Evict).WithAction(podrules.RuleHostPath, podrules.Evict)}
