package retirement

import (
	"context"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI5NextUngroupedNodeIsRetiredAfterNodeDeletion uses a cloud that never completes the deletion of the first
// instance.
func TestI5NextUngroupedNodeIsRetiredAfterNodeDeletion(t *testing.T) {
	for name, restarts := range map[string]bool{"in one process": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newUngroupedSim(t)
				s.addNode("b", nil)
				s.addPod("a", "web", func(p *simPod) { p.stopsAfter = 2 * time.Minute })
				s.instances["sim://a"].failingDeletions = 1 << 20
				s.createRetirement(t, "first", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
				c := s.newController(t)
				s.reconcileUntilDone(ctx, c, "first", time.Minute)
				if rt := s.getRetirement("first"); rt.Status.Phase != v1alpha1.Draining {
					t.Fatalf("first: %s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.createRetirement(t, "second", v1alpha1.NodeRetirementSpec{NodeName: "b", Reason: v1alpha1.Requested})
				s.reconcileUntilDone(ctx, c, "second", 10*time.Minute)
				if rt := s.getRetirement("second"); IsInFlight(rt) || s.getNode("b").Spec.Unschedulable {
					t.Fatalf("I5: second is %s while the first one is drained", rt.Status.Phase)
				}
				s.reconcileUntilDone(ctx, c, "first", time.Hour)
				if rt := s.getRetirement("first"); rt.Status.Phase != v1alpha1.NodeDeleted || !s.deletionRequested["sim://a"] {
					t.Fatalf("first: %s: %s", rt.Status.Phase, rt.Status.Message)
				}
				if restarts {
					c = s.newController(t)
				}
				if rt := s.reconcileUntilDone(ctx, c, "second", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Fatalf("second: %s: %s", rt.Status.Phase, rt.Status.Message)
				}
				if s.instances["sim://a"] == nil || s.instances["sim://b"] != nil {
					t.Errorf("the instances left are %v", s.instances)
				}
				for _, v := range s.violations {
					t.Error(v)
				}
			})
		})
	}
}
