package retirement

import (
	"context"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func TestInstanceGoneWhileWaitingIsCleanedUp(t *testing.T) {
	for name, bound := range map[string]func(*sim){
		"minimum":                             func(s *sim) { s.groups[0].Spec.MinSize = 2 },
		"budget":                              func(s *sim) { s.makeNodeUnready("b") },
		"the cloud protects it from deletion": func(s *sim) { s.instances["sim://a"].DeletionProtected = true },
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.addPod("a", "web", func(p *simPod) { p.stopsAfter = -1 })
				bound(s)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
				c := s.newController(t)
				s.reconcileUntilDone(ctx, c, "r", time.Minute)
				s.makeNodeUnready("a") // the cloud still has the instance
				if rt := s.reconcileUntilDone(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.Pending || rt.Status.InstanceGone || IsInFlight(rt) {
					t.Fatalf("I7: %s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.removeInstance("a")
				rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
				if rt.Status.Phase != v1alpha1.Succeeded || !rt.Status.InstanceGone {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.checkRetired(t, "a")
			})
		})
	}
}
