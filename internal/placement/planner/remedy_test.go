package planner_test

import (
	"testing"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

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
	if len(remedies) < 12 {
		t.Errorf("want at least 12 different remedies, got %v", remedies)
	}
}
