package retirement

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI7AMachineThatCameBackBeforeTheNextProcessLooksIsNotTakenOutOfService ends the process when it has written down that
// the machine is gone, before its admission, and right after it; what the next one finds is a Ready Node.
func TestI7AMachineThatCameBackBeforeTheNextProcessLooksIsNotTakenOutOfService(t *testing.T) {
	for name, admitted := range map[string]bool{"before it is admitted": false, "once it is admitted": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.addPod("a", "web", func(p *simPod) { p.denied = true })
				s.silence("b") // which uses up the budget, so that it is captured and waits
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				s.settled(ctx, s.controller(t), "r", time.Minute)
				s.lose("a")
				s.change("a", silent)
				s.atEach(func(_, _ string) error {
					if rt := s.record("r"); rt.Status.MachineGone && (!admitted || InFlight(rt)) {
						return errKilled
					}
					return nil
				})
				life, die := context.WithCancel(ctx)
				s.turn(life, s.controller(t), "r")
				die()
				synctest.Wait()
				s.atEach(func(string, string) error { return nil })
				if rt := s.record("r"); !rt.Status.MachineGone || InFlight(rt) != admitted {
					t.Fatalf("killed with the machine gone: %t, admitted: %t", rt.Status.MachineGone, InFlight(rt))
				}
				s.bringBack("a")
				rt := s.settled(ctx, s.controller(t), "r", time.Hour)
				if rt.Status.Phase != v1alpha1.Aborted || EndedBy(rt) != MachineBack {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.isAsItWas(t, "a")
			})
		})
	}
}
