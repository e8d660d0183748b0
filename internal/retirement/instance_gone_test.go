package retirement

import (
	"context"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func TestANodeWhoseMachineIsGoneWhileItWaitsForABoundIsCleanedUpAfter(t *testing.T) {
	for name, bound := range map[string]func(*sim){
		"minimum":                 func(s *sim) { s.groups[0].Spec.Minimum = 2 },
		"budget":                  func(s *sim) { s.silence("b") },
		"the cloud does not part": func(s *sim) { s.machines["sim://a"].Kept = true },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.addPod("a", "web", func(p *simPod) { p.stops = -1 })
				bound(s)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
				c := s.controller(t)
				s.settled(ctx, c, "r", time.Minute)
				s.silence("a") // the cloud still has the machine
				if rt := s.settled(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.Pending || rt.Status.MachineGone || InFlight(rt) {
					t.Fatalf("I7: %s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.lose("a")
				rt := s.settled(ctx, c, "r", time.Hour)
				if rt.Status.Phase != v1alpha1.Succeeded || !rt.Status.MachineGone {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.hasLeft(t, "a")
			})
		})
	}
}
