package retirement

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI7InstanceBackAfterRestartIsNotRetired kills the process after it saved that the instance is gone: before the
// admission, or right after it. The next process finds a Ready Node.
func TestI7InstanceBackAfterRestartIsNotRetired(t *testing.T) {
	for name, admitted := range map[string]bool{"before it is admitted": false, "once it is admitted": true} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
				s.makeNodeUnready("b") // it uses up the disruption budget, so that a is captured and waits
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				s.reconcileUntilDone(ctx, s.newController(t), "r", time.Minute)
				s.removeInstance("a")
				s.changeNode("a", setUnready)
				s.interceptRequests(func(_, _ string) error {
					if rt := s.getRetirement("r"); rt.Status.InstanceGone && (!admitted || IsInFlight(rt)) {
						return errKilled
					}
					return nil
				})
				processCtx, killProcess := context.WithCancel(ctx)
				s.reconcileOnce(processCtx, s.newController(t), "r")
				killProcess()
				synctest.Wait()
				s.interceptRequests(func(string, string) error { return nil })
				if rt := s.getRetirement("r"); !rt.Status.InstanceGone || IsInFlight(rt) != admitted {
					t.Fatalf("killed with the instance gone: %t, admitted: %t", rt.Status.InstanceGone, IsInFlight(rt))
				}
				s.reviveNode("a")
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
				if rt.Status.Phase != v1alpha1.Aborted || EarlyEndCode(rt) != InstanceRecovered {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.checkNodeRestored(t, "a")
			})
		})
	}
}
