package placement

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

func TestRollbackRestoresTheSnapshotExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, nodes, pods := builders.Snapshot(rapid.Uint64Range(0, 1<<20).Draw(t, "cluster"))
		var forks []Fork
		var states []string
		launched := 0
		open := func() {
			states = append(states, s.dump(true))
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
					if after := s.dump(true); after != states[last] {
						t.Fatalf("inner rollback:\nbefore\n%s\nafter\n%s", states[last], after)
					}
					forks, states = forks[:last], states[:last]
				}
			case 2:
				_ = s.Withdraw(nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "node")].Name)
			case 3:
				launched++
				_ = s.Launch(builders.Node(rand.New(rand.NewPCG(uint64(launched), 1)), 1000+launched))
			case 4:
				if len(pods) > 0 {
					_ = s.Lift(keyOf(pods[rapid.IntRange(0, len(pods)-1).Draw(t, "pod")]))
				}
			default:
				if len(pods) > 0 {
					p := pods[rapid.IntRange(0, len(pods)-1).Draw(t, "pod")]
					_ = s.Move(keyOf(p), nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "to")].Name)
				}
			}
		}
		forks[0].Rollback()
		if after := s.dump(true); after != states[0] {
			t.Fatalf("before\n%s\nafter\n%s", states[0], after)
		}
		if len(s.log) != 0 || s.forks != 0 {
			t.Fatalf("%d entries and %d forks are left", len(s.log), s.forks)
		}
	})
}

func keyOf(p *corev1.Pod) PodKey { return PodKey{Namespace: p.Namespace, Name: p.Name} }

// TestEventsLeadToTheSnapshotOfTheirOutcome feeds events in any order and compares with a snapshot that is told of the
// outcome only.
func TestEventsLeadToTheSnapshotOfTheirOutcome(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64Range(0, 1<<20).Draw(t, "cluster")
		s, nodes, pods := builders.Snapshot(seed)
		_, otherNodes, otherPods := builders.Snapshot(seed + 1)
		finalNodes, finalPods := map[string]*corev1.Node{}, map[PodKey]*corev1.Pod{}
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
				must(t, s.SetNode(n))
				finalNodes[n.Name] = n
			case 1:
				must(t, s.DeleteNode(n.Name))
				delete(finalNodes, n.Name)
			default:
				all := slices.Concat(pods, otherPods)
				if len(all) == 0 {
					continue
				}
				p := rapid.SampledFrom(all).Draw(t, "pod")
				if rapid.Bool().Draw(t, "delete") {
					must(t, s.DeletePod(keyOf(p)))
					delete(finalPods, keyOf(p))
				} else {
					must(t, s.SetPod(p))
					finalPods[keyOf(p)] = p
				}
			}
		}
		s.sweep()
		fresh := New()
		for _, n := range finalNodes {
			must(t, fresh.SetNode(n))
		}
		for _, p := range finalPods {
			must(t, fresh.SetPod(p))
		}
		fresh.relabelLike(t, s)
		if a, b := s.dump(false), fresh.dump(false); a != b {
			t.Fatalf("fed\n%s\nfresh\n%s", a, b)
		}
	})
}

// relabelLike gives a snapshot the namespaces of another.
func (s *Snapshot) relabelLike(t *rapid.T, other *Snapshot) {
	for name, ns := range other.namespaces {
		if ns.known {
			must(t, s.SetNamespace(&corev1.Namespace{ObjectMeta: metaNamed(name, ns.labels)}))
		}
	}
}

func must(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var easyGoing = Options{LocalStorage: true, Unmanaged: true}

func TestVictimsCanBeRemovedInTheProposedOrder(t *testing.T) {
	removed := 0
	rapid.Check(t, func(t *rapid.T) {
		s, _, _ := builders.Snapshot(rapid.Uint64Range(0, 1<<20).Draw(t, "cluster"))
		before := s.dump(true)
		k := rapid.IntRange(0, 9).Draw(t, "k")
		policy := rapid.SampledFrom(Policies()).Draw(t, "policy")
		selection, err := s.Victims(k, policy, easyGoing)
		must(t, err)
		if after := s.dump(true); after != before {
			t.Fatalf("the snapshot has changed:\n%s\n%s", before, after)
		}
		if len(selection.Victims) > k {
			t.Fatalf("%d victims, %d asked for", len(selection.Victims), k)
		}
		must(t, builders.CarryOut(s, selection.Victims))
		removed += len(selection.Victims)
	})
	if removed == 0 {
		t.Fatal("no node was ever removed: the clusters do not exercise the choice")
	}
}

// oneByOne is the plain greedy choice: the cheapest node that can go goes, its pods first-fit in the order of names, and
// so on with what that leaves. A pod may be moved again when its new node goes.
func oneByOne(s *Snapshot, k int, policy Policy, o Options) (count int, cost float64) {
	p := s.newPlanner(policy, &o)
	defer p.close()
	candidates := p.candidates(&Selection{})
	p.s.arrangeByName()
	for _, c := range candidates {
		if count == k {
			break
		}
		mark := len(s.log)
		_, all, _ := p.split(c.node)
		p.clear(c.node)
		if len(p.place(all)) > 0 {
			s.undo(mark)
			continue
		}
		count++
		cost += c.cost
	}
	return count, cost
}

func TestVictimsAreNeverWorseThanGreedyOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, _, _ := builders.Snapshot(rapid.Uint64Range(0, 1<<20).Draw(t, "cluster"))
		k := rapid.IntRange(1, 9).Draw(t, "k")
		policy := rapid.SampledFrom([]Policy{LeastDisruption, LeastPods, LeastLoaded}).Draw(t, "policy")
		count, cost := oneByOne(s, k, policy, easyGoing)
		selection, err := s.Victims(k, policy, easyGoing)
		must(t, err)
		if got := len(selection.Victims); got < count || got == count && selection.Cost > cost+1e-9 {
			text, _ := json.Marshal(selection.Passed)
			t.Fatalf("%d victims at %v, one by one %d at %v; passed %s", got, selection.Cost, count, cost, text)
		}
	})
}

func TestPackingHoldsWithAllMachinesLaunchedTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64Range(0, 1<<20).Draw(t, "cluster")
		s, _, _ := builders.Snapshot(seed)
		for _, p := range builders.Pending(seed) {
			must(t, s.SetPod(p))
		}
		before := s.dump(true)
		g := rand.New(rand.NewPCG(seed, 9))
		flavours := []Flavour{
			{Name: "a", Template: builders.Node(g, 2001), Cost: 1, Zones: []string{"z1", "z2"}},
			{Name: "b", Template: builders.Node(g, 2002), Cost: 2},
		}
		packing, err := s.Pack(nil, flavours, LeastWaste)
		must(t, err)
		if after := s.dump(true); after != before {
			t.Fatalf("the snapshot has changed:\n%s\n%s", before, after)
		}
		must(t, builders.LaunchAll(s, flavours, packing))
		if len(packing.Moves)+len(packing.Helpless) != len(s.pending) {
			t.Fatalf("%d moves and %d helpless of %d pending pods", len(packing.Moves), len(packing.Helpless), len(s.pending))
		}
	})
}

// TestRankingFollowsEvents holds the ranking that follows events against the plans it remembers and one made anew.
func TestRankingFollowsEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64Range(0, 1<<20).Draw(t, "cluster")
		s, _, pods := builders.Snapshot(seed)
		ranking, err := NewRanking(s, LeastPods, easyGoing)
		must(t, err)
		if len(pods) == 0 {
			return
		}
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			p := rapid.SampledFrom(pods).Draw(t, "pod")
			if rapid.Bool().Draw(t, "delete") {
				must(t, ranking.DeletePod(keyOf(p)))
			} else {
				must(t, ranking.SetPod(p))
			}
		}
		fresh, err := NewRanking(s, LeastPods, easyGoing)
		must(t, err)
		for name, e := range fresh.entries {
			kept := ranking.entries[name]
			if kept == nil || kept.Cost != e.Cost {
				t.Fatalf("%s: kept %+v, anew %+v", name, kept, e)
			}
			if e.Removable && !kept.Removable {
				t.Fatalf("%s can go, the ranking holds it by %s %s", name, kept.Rule, kept.Pod)
			}
			if kept.Removable && !ranking.holdsNow(kept) {
				t.Fatalf("%s: the plan that the ranking remembers does not hold", name)
			}
		}
	})
}

func (r *Ranking) holdsNow(e *ranked) bool {
	r.s.arrangePlain()
	p := r.s.newPlanner(r.policy, &r.o)
	defer p.close()
	n := r.s.nodeByName[e.Node]
	movers := p.sortPods(n, nil)
	return len(movers) == len(e.targets) && r.holds(p, n, e)
}
