package retirement

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// checkRefused checks that a retirement was refused for the reason, and that its node is unchanged.
func (s *sim) checkRefused(t *testing.T, rt *v1alpha1.NodeRetirement, code string) {
	t.Helper()
	if rt.Status.Phase != v1alpha1.Refused || EarlyEndCode(rt) != code {
		t.Errorf("%s %s: %s, want it refused for %s", rt.Status.Phase, EarlyEndCode(rt), rt.Status.Message, code)
	}
	s.checkNodeRestored(t, rt.Spec.NodeName)
	if len(s.listPodsOn(rt.Spec.NodeName)) != 1 {
		t.Error("its pod is gone")
	}
}

func TestNodeReadyBeforeAdmissionIsNotRetired(t *testing.T) {
	for name, tt := range map[string]struct {
		last  string // the request at which the Node becomes Ready; empty is while the disruption budget is used up
		since func(s *sim) bool
	}{
		"while it waits for the budget": {},
		"during its admission":          {"list pods", func(*sim) bool { return true }},
		"while its instance is read":    {"cloud instance", func(s *sim) bool { return s.getRetirement("r").Status.Captured == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.makeNodeUnready("a")
				if tt.last == "" {
					s.makeNodeUnready("b")
				}
				s.interceptRequests(func(moment, request string) error {
					if moment == "before" && request == tt.last && tt.since(s) {
						s.reviveNode("a")
						if request == "cloud instance" {
							return errors.New("no answer")
						}
					}
					return nil
				})
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.NeverReady})
				c := s.newController(t)
				if tt.last == "" {
					if rt := s.reconcileUntilDone(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.Pending {
						t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
					}
					s.reviveNode("a")
				}
				s.addPod("a", "web", nil)
				time.AfterFunc(time.Minute, func() { s.reviveNode("b") })
				s.checkRefused(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), NodeReady)
			})
		})
	}
}

func TestNodeStillNotReadyIsRetired(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.makeNodeUnready("a")
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.NeverReady})
		if rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkRetired(t, "a")
	})
}

func TestI7InstancePresentAtCaptureIsNotRetiredAsGone(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.addPod("a", "web", nil)
		s.makeNodeUnready("a")
		away := true
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cloud instance" && away {
				return errors.New("too many requests")
			}
			return nil
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.InstanceGone})
		c := s.newController(t)
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Minute); rt.Status.Captured != nil {
			t.Fatalf("captured %+v", rt.Status.Captured)
		}
		away = false
		s.checkRefused(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), InstanceRecovered)
	})
}

func TestNodeWithoutInstanceIsCleanedUp(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.makeNodeUnready("a")
		s.removeInstance("a")
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.InstanceGone})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Succeeded || !rt.Status.InstanceGone || s.getNode("a") != nil {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}
