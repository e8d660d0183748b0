package retirement

import (
	"context"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI5OfNodesOfNoGroupTheNextLeavesOnceTheOneBeforeIsGoneThoughItsMachineIsNot has a cloud that does not delete the first
// one's machine, which is asked for without end.
func TestI5OfNodesOfNoGroupTheNextLeavesOnceTheOneBeforeIsGoneThoughItsMachineIsNot(t *testing.T) {
	for name, restarts := range map[string]bool{"in one process": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ungrouped(t)
				s.addNode("b", nil)
				s.addPod("a", "web", func(p *simPod) { p.stops = 2 * time.Minute })
				s.machines["sim://a"].fails = 1 << 20
				s.retire(t, "first", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
				c := s.controller(t)
				s.settled(ctx, c, "first", time.Minute)
				if rt := s.record("first"); rt.Status.Phase != v1alpha1.Draining {
					t.Fatalf("first: %s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.retire(t, "second", v1alpha1.NodeRetirementSpec{NodeName: "b", Reason: v1alpha1.Requested})
				s.settled(ctx, c, "second", 10*time.Minute)
				if rt := s.record("second"); InFlight(rt) || s.node("b").Spec.Unschedulable {
					t.Fatalf("I5: second is %s while the first one is drained", rt.Status.Phase)
				}
				s.settled(ctx, c, "first", time.Hour)
				if rt := s.record("first"); rt.Status.Phase != v1alpha1.NodeDeleted || !s.touched["sim://a"] {
					t.Fatalf("first: %s: %s", rt.Status.Phase, rt.Status.Message)
				}
				if restarts {
					c = s.controller(t)
				}
				if rt := s.settled(ctx, c, "second", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Fatalf("second: %s: %s", rt.Status.Phase, rt.Status.Message)
				}
				if s.machines["sim://a"] == nil || s.machines["sim://b"] != nil {
					t.Errorf("the machines left are %v", s.machines)
				}
				for _, v := range s.violations {
					t.Error(v)
				}
			})
		})
	}
}
