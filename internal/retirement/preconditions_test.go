package retirement

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// isCalledOff checks that a retirement ended before anything was done to its node, and why.
func (s *sim) isCalledOff(t *testing.T, rt *v1alpha1.NodeRetirement, code string) {
	t.Helper()
	if rt.Status.Phase != v1alpha1.Refused || EndedBy(rt) != code {
		t.Errorf("%s %s: %s, want it refused for %s", rt.Status.Phase, EndedBy(rt), rt.Status.Message, code)
	}
	s.isAsItWas(t, rt.Spec.NodeName)
	if len(s.podsOn(rt.Spec.NodeName)) != 1 {
		t.Error("its pod is gone")
	}
}

func TestANodeThatBecomesReadyBeforeItsRetirementIsAdmittedStays(t *testing.T) {
	for name, tt := range map[string]struct {
		last  string // the request at which the Node becomes Ready; empty is while the budget is used up
		since func(s *sim) bool
	}{
		"while it waits for the budget":   {},
		"in the walk that would admit it": {"list pods", func(*sim) bool { return true }},
		"while its machine is looked for": {"cloud instance", func(s *sim) bool { return s.record("r").Status.Captured == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.silence("a")
				if tt.last == "" {
					s.silence("b")
				}
				s.atEach(func(moment, request string) error {
					if moment == "before" && request == tt.last && tt.since(s) {
						s.bringBack("a")
						if request == "cloud instance" {
							return errors.New("no answer")
						}
					}
					return nil
				})
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.NeverReady})
				c := s.controller(t)
				if tt.last == "" {
					if rt := s.settled(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.Pending {
						t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
					}
					s.bringBack("a")
				}
				s.addPod("a", "web", nil)
				time.AfterFunc(time.Minute, func() { s.bringBack("b") })
				s.isCalledOff(t, s.settled(ctx, c, "r", time.Hour), NodeReady)
			})
		})
	}
}

func TestANodeThatIsStillNotReadyLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.silence("a")
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.NeverReady})
		if rt := s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.hasLeft(t, "a")
	})
}

func TestI7AMachineThatIsThereAgainWhenItIsCapturedIsNotTakenForAGhost(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", nil)
		s.silence("a")
		away := true
		s.atEach(func(moment, request string) error {
			if moment == "before" && request == "cloud instance" && away {
				return errors.New("too many requests")
			}
			return nil
		})
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.MachineGone})
		c := s.controller(t)
		if rt := s.settled(ctx, c, "r", time.Minute); rt.Status.Captured != nil {
			t.Fatalf("captured %+v", rt.Status.Captured)
		}
		away = false
		s.isCalledOff(t, s.settled(ctx, c, "r", time.Hour), MachineBack)
	})
}

func TestAGhostIsCleanedUp(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.silence("a")
		s.lose("a")
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.MachineGone})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Succeeded || !rt.Status.MachineGone || s.node("a") != nil {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}
