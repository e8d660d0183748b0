package planner_test

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
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

// TestRanksAgreeWithEvacuation compares the ranks of a random cluster with the evacuation of each node, and executes it.
func TestRanksAgreeWithEvacuation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := placementtest.NewRandomCluster(rapid.Uint64Range(0, 1<<20).Draw(t, "cluster")).BuildSnapshot()
		must.NoError(t, err)
		must.NoError(t, placementtest.CheckRanks(s, planner.RankNodes(s, planner.LeastDisruption, planner.Options{}), 1))
	})
}

var easyGoing = planner.Options{PodRules: podrules.VoluntaryPolicy().WithAction(podrules.RuleUnmanaged, podrules.Evict).WithAction(podrules.RuleLocalStorage, podrules.Evict).WithAction(podrules.RuleHostPath, podrules.Evict)}
