package snapshot_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestRollbackRestoresSnapshot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, nodes, pods := newRandomSnapshot(rapid.Uint64Range(0, 1<<20).Draw(t, "cluster"))
		var forks []snapshot.Fork
		var states []string
		launched := 0
		open := func() {
			states = append(states, s.Dump(true))
			forks = append(forks, s.Fork())
		}
		open()
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0:
				open()
			case 1:
				if last := len(forks) - 1; last > 0 {
					forks[last].Rollback()
					if after := s.Dump(true); after != states[last] {
						t.Fatalf("inner rollback:\nbefore\n%s\nafter\n%s", states[last], after)
					}
					forks, states = forks[:last], states[:last]
				}
			case 2:
				_ = forks[0].RemoveNamedNodeAndPods(nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "node")].Name)
			case 3:
				launched++
				_ = forks[0].AddNewNode(placementtest.NewRandomNode(rand.New(rand.NewPCG(uint64(launched), 1)), 1000+launched))
			case 4:
				if len(pods) > 0 {
					if p := s.Pod(keyOf(pods[rapid.IntRange(0, len(pods)-1).Draw(t, "pod")])); p != nil && p.Node != filter.None {
						forks[0].RemovePod(p)
					}
				}
			case 5:
				if len(pods) > 0 {
					p := s.Pod(keyOf(pods[rapid.IntRange(0, len(pods)-1).Draw(t, "pod")]))
					n := s.Nodes.Lookup(nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "to")].Name)
					if p != nil && !n.RemovedByPlan {
						forks[0].AddPod(p.Class, n)
					}
				}
			default:
				if len(pods) > 0 {
					p := pods[rapid.IntRange(0, len(pods)-1).Draw(t, "pod")]
					_ = forks[0].MovePod(keyOf(p), nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "to")].Name)
				}
			}
		}
		forks[0].Rollback()
		if after := s.Dump(true); after != states[0] {
			t.Fatalf("before\n%s\nafter\n%s", states[0], after)
		}
		if changes, open := s.UndoLogSize(); changes != 0 || open != 0 {
			t.Fatalf("%d undo entries and %d open forks are left", changes, open)
		}
	})
}

// newRandomSnapshot returns the snapshot of a random cluster, with its nodes and pods.
func newRandomSnapshot(seed uint64) (*snapshot.Snapshot, []*corev1.Node, []*corev1.Pod) {
	c := placementtest.NewRandomCluster(seed)
	s, err := c.BuildSnapshot()
	if err != nil {
		panic(err)
	}
	return s, c.Nodes, c.Pods
}

func keyOf(p *corev1.Pod) placement.PodKey {
	return placement.PodKey{Namespace: p.Namespace, Name: p.Name}
}

// TestEventsGiveSameSnapshotAsFinalObjects feeds random events, and compares with a snapshot that gets only the final
// objects.
func TestEventsGiveSameSnapshotAsFinalObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64Range(0, 1<<20).Draw(t, "cluster")
		s, nodes, pods := newRandomSnapshot(seed)
		_, otherNodes, otherPods := newRandomSnapshot(seed + 1)
		finalNodes, finalPods := map[string]*corev1.Node{}, map[placement.PodKey]*corev1.Pod{}
		for _, n := range nodes {
			finalNodes[n.Name] = n
		}
		for _, p := range pods {
			finalPods[keyOf(p)] = p
		}
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			n := rapid.SampledFrom(slices.Concat(nodes, otherNodes)).Draw(t, "node")
			switch rapid.IntRange(0, 4).Draw(t, "event") {
			case 4:
				s.SweepUnused() // later nodes get the numbers of freed domains
			case 0:
				must.NoError(t, s.SetNode(n))
				finalNodes[n.Name] = n
			case 1:
				must.NoError(t, s.DeleteNode(n.Name))
				delete(finalNodes, n.Name)
			default:
				all := slices.Concat(pods, otherPods)
				if len(all) == 0 {
					continue
				}
				p := rapid.SampledFrom(all).Draw(t, "pod")
				if rapid.Bool().Draw(t, "delete") {
					must.NoError(t, s.DeletePod(keyOf(p)))
					delete(finalPods, keyOf(p))
				} else {
					must.NoError(t, s.SetPod(p))
					finalPods[keyOf(p)] = p
				}
			}
		}
		s.SweepUnused()
		fresh := snapshot.New()
		for _, n := range finalNodes {
			must.NoError(t, fresh.SetNode(n))
		}
		for _, p := range finalPods {
			must.NoError(t, fresh.SetPod(p))
		}
		for name, set := range s.KnownNamespaces() {
			must.NoError(t, fresh.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set}}))
		}
		if a, b := s.Dump(false), fresh.Dump(false); a != b {
			t.Fatalf("with events\n%s\nnew\n%s", a, b)
		}
	})
}

// TestNumbersOfDomainsAreReused adds and deletes many nodes, and pods with an own anti-affinity term for each of them.
func TestNumbersOfDomainsAreReused(t *testing.T) {
	s := snapshot.New()
	for i := range 50 {
		name := fmt.Sprintf("node-%d", i)
		p := placementtest.NewPod(name, 0, name, 100, 128)
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}, TopologyKey: corev1.LabelHostname,
		}}}}
		must.NoError(t, s.SetNode(placementtest.NewNode(name, "zone-a", 4, 16, 10)))
		must.NoError(t, s.SetPod(p))
		if i%10 > 0 {
			must.NoError(t, s.DeletePod(keyOf(p)))
			must.NoError(t, s.DeleteNode(name))
		}
		s.SweepUnused()
	}
	check.Is(t, 6, s.DomainNumbers(corev1.LabelHostname))
	check.Is(t, 5, s.TermCount())
}

var easyGoing = planner.Options{PodRules: podrules.VoluntaryPolicy().WithAction(podrules.RuleUnmanaged, podrules.Evict).WithAction(podrules.RuleLocalStorage, podrules.Evict).WithAction(podrules.RuleHostPath, podrules.Evict)}

func TestVictimsCanBeRemovedInTheProposedOrder(t *testing.T) {
	removed := 0
	rapid.Check(t, func(t *rapid.T) {
		s, _, _ := newRandomSnapshot(rapid.Uint64Range(0, 1<<20).Draw(t, "cluster"))
		before := s.Dump(true)
		k := rapid.IntRange(0, 9).Draw(t, "k")
		policy := rapid.SampledFrom(planner.Policies()).Draw(t, "policy")
		selection, err := planner.SelectVictims(s, k, policy, easyGoing)
		must.NoError(t, err)
		after := s.Dump(true)
		must.Not(t, after != before, "the snapshot has changed:\n%s\n%s", before, after)
		must.Not(t, len(selection.Victims) > k, "%d victims, want at most %d", len(selection.Victims), k)
		must.NoError(t, placementtest.CheckRemovalsExecutable(s, selection.Victims))
		removed += len(selection.Victims)
	})
	if removed == 0 {
		t.Fatal("no run removed a node: the test checks nothing")
	}
}

// TestI9PodsMovedBeforeAPlanDoNotVanish removes a node and moves its pods in a fork, and then chooses victims.
func TestI9PodsMovedBeforeAPlanDoNotVanish(t *testing.T) {
	movedAgain := 0
	for seed := range uint64(200) {
		s, nodes, _ := newRandomSnapshot(seed)
		retiring := nodes[seed%uint64(len(nodes))].Name
		e, err := planner.PlanEvacuation(s, retiring, planner.LeastPods, easyGoing)
		must.NoError(t, err)
		fork := s.Fork()
		remove := func(e *planner.Evacuation) {
			must.NoError(t, fork.RemoveNamedNodeAndPods(e.Node))
			for _, m := range e.Moves {
				must.NoError(t, fork.MovePod(m.Pod, m.To))
			}
		}
		remove(e)
		selection, err := planner.SelectVictims(s, 1+int(seed%9), planner.LeastDisruption, easyGoing)
		must.NoError(t, err)
		must.NoError(t, placementtest.CheckRemovalsExecutable(s, selection.Victims))
		for i := range selection.Victims {
			remove(&selection.Victims[i])
			for _, m := range selection.Victims[i].Moves {
				if slices.ContainsFunc(e.Moves, func(before planner.Move) bool { return before.Pod == m.Pod }) {
					movedAgain++
				}
			}
		}
		for _, m := range e.Moves {
			must.Not(t, s.Pod(m.Pod).Node == filter.None, "seed %d: pod %s of %s has no node any more: %+v", seed, m.Pod, retiring, selection.Victims)
		}
		fork.Rollback()
	}
	must.Not(t, movedAgain == 0, "no pod was moved again: the test checks nothing")
}

func TestPackingHoldsWithAllInstancesLaunched(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64Range(0, 1<<20).Draw(t, "cluster")
		s, _, pods := newRandomSnapshot(seed)
		for _, p := range placementtest.NewRandomCluster(seed).Candidates {
			must.NoError(t, s.SetPod(p))
		}
		before := s.Dump(true)
		g := rand.New(rand.NewPCG(seed, 9))
		templates := []planner.Template{
			{Name: "a", Node: placementtest.NewRandomNode(g, 2001), Cost: 1, Zones: []string{"z1", "z2"}},
			{Name: "b", Node: placementtest.NewRandomNode(g, 2002), Cost: 2},
		}
		for i, p := range pods[:rapid.IntRange(0, min(4, len(pods))).Draw(t, "pods of instances")] {
			if placed := s.Pod(keyOf(p)); placed != nil {
				templates[i%2].Pods = append(templates[i%2].Pods, placed.Class)
			}
		}
		packing, err := planner.PackPods(s, nil, templates, planner.LeastWaste)
		must.NoError(t, err)
		after := s.Dump(true)
		must.Not(t, after != before, "the snapshot has changed:\n%s\n%s", before, after)
		must.NoError(t, placementtest.CheckPackingExecutable(s, templates, packing))
		if len(packing.Moves)+len(packing.Unschedulable) != len(s.PendingPods()) {
			t.Fatalf("%d moves and %d unschedulable of %d pending pods", len(packing.Moves), len(packing.Unschedulable), len(s.PendingPods()))
		}
	})
}

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
		after := s.Dump(true)
		must.Not(t, after != before, "before\n%s\nafter\n%s", before, after)
		for _, n := range come {
			must.NoError(t, s.SetNode(n))
		}
		for _, p := range pods {
			if p.Spec.NodeName == leaves {
				must.NoError(t, s.DeletePod(keyOf(p)))
			}
		}
		must.NoError(t, s.DeleteNode(leaves))
		real := formatPlans(t, s)
		must.Not(t, real != tried, "in the fork\n%s\nin the cluster\n%s", tried, real)
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
				check.Not(t, h.ExhaustedLimits["small"] != c.within.Name, "%s: spent is %v, want %s of small", h.Pod, h.ExhaustedLimits, c.within.Name)
			}
		})
	}
}

// TestSelfAffinityFollowsNamespaceLabels places the first pod of a group with affinity to itself in all namespaces of
// its team.
func TestSelfAffinityFollowsNamespaceLabels(t *testing.T) {
	s, err := placementtest.NewTwoNodeCluster().BuildSnapshot()
	must.NoError(t, err)
	p := placementtest.NewPod("new", 0, "", 100, 128)
	p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}},
		}},
	}}
	must.NoError(t, s.SetPod(p))
	steps := []struct {
		event func() error
		want  placement.Outcome
	}{
		{func() error { return nil }, placement.Blocked}, // the namespace is not known yet
		{func() error { return s.SetNamespace(newTeamNamespace("x")) }, placement.Fits},
		{func() error { return s.SetNamespace(newTeamNamespace("y")) }, placement.Blocked},
		{func() error { return s.SetNamespace(newTeamNamespace("x")) }, placement.Fits},
		{func() error { return s.DeleteNamespace("default") }, placement.Blocked},
	}
	for i, step := range steps {
		must.NoError(t, step.event())
		v, err := s.JudgeRecreatedPod(placement.PodKey{Namespace: "default", Name: "new-0"}, "second")
		check.Not(t, err != nil || v.Outcome != step.want, "step %d: %s, %v; want %s", i, v, err, step.want)
	}
}

func newTeamNamespace(team string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": team}}}
}
