package planner_test

import (
	"encoding/json"
	"slices"
	"testing"

	"pgregory.net/rapid"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

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

// TestRankingFollowsEvents compares a ranking that follows events with its stored plans and with a new ranking.
func TestRankingFollowsEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64Range(0, 1<<20).Draw(t, "cluster")
		c := placementtest.NewRandomCluster(seed)
		s, err := c.BuildSnapshot()
		must.NoError(t, err)
		ranking := planner.NewRanking(s, planner.LeastPods, easyGoing)
		if len(c.Pods) == 0 {
			return
		}
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			p := rapid.SampledFrom(c.Pods).Draw(t, "pod")
			if rapid.Bool().Draw(t, "delete") {
				must.NoError(t, ranking.DeletePod(placement.PodKey{Namespace: p.Namespace, Name: p.Name}))
			} else {
				must.NoError(t, ranking.SetPod(p))
			}
		}
		fresh := planner.NewRanking(s, planner.LeastPods, easyGoing)
		ranks := ranking.List()
		for _, e := range fresh.List() {
			i := slices.IndexFunc(ranks, func(r planner.Rank) bool { return r.Node == e.Node })
			if i < 0 || ranks[i].Cost != e.Cost {
				t.Fatalf("updated %+v, new %+v", ranks, e)
			}
			if kept := ranks[i]; e.Removable && !kept.Removable {
				t.Fatalf("%s is removable, but the ranking blocks it by %s %s", e.Node, kept.Rule, kept.Pod)
			}
			if ranks[i].Removable && !ranking.IsStoredPlanValid(e.Node) {
				t.Fatalf("%s: the stored plan is not valid", e.Node)
			}
		}
	})
}

var easyGoing = planner.Options{PodRules: podrules.VoluntaryPolicy().WithAction(podrules.RuleUnmanaged, podrules.Evict).WithAction(podrules.RuleLocalStorage, podrules.Evict).WithAction(podrules.RuleHostPath, podrules.Evict)}
