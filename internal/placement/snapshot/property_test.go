package snapshot_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
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
			switch rapid.IntRange(0, 6).Draw(t, "step") {
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
			switch rapid.IntRange(0, 3).Draw(t, "event") {
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
		if after := s.Dump(true); after != before {
			t.Fatalf("the snapshot has changed:\n%s\n%s", before, after)
		}
		if len(selection.Victims) > k {
			t.Fatalf("%d victims, want at most %d", len(selection.Victims), k)
		}
		must.NoError(t, placementtest.CheckRemovalsExecutable(s, selection.Victims))
		removed += len(selection.Victims)
	})
	if removed == 0 {
		t.Fatal("no run removed a node: the test checks nothing")
	}
}

func TestPackingHoldsWithAllInstancesLaunched(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64Range(0, 1<<20).Draw(t, "cluster")
		s, _, _ := newRandomSnapshot(seed)
		for _, p := range placementtest.NewRandomCluster(seed).Candidates {
			must.NoError(t, s.SetPod(p))
		}
		before := s.Dump(true)
		g := rand.New(rand.NewPCG(seed, 9))
		templates := []planner.Template{
			{Name: "a", Node: placementtest.NewRandomNode(g, 2001), Cost: 1, Zones: []string{"z1", "z2"}},
			{Name: "b", Node: placementtest.NewRandomNode(g, 2002), Cost: 2},
		}
		packing, err := planner.PackPods(s, nil, templates, planner.LeastWaste)
		must.NoError(t, err)
		if after := s.Dump(true); after != before {
			t.Fatalf("the snapshot has changed:\n%s\n%s", before, after)
		}
		must.NoError(t, placementtest.CheckPackingExecutable(s, templates, packing))
		if len(packing.Moves)+len(packing.Unschedulable) != len(s.PendingPods()) {
			t.Fatalf("%d moves and %d unschedulable of %d pending pods", len(packing.Moves), len(packing.Unschedulable), len(s.PendingPods()))
		}
	})
}
