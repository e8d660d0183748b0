package retirement

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI5PendingAdmissionCountsAgainstBudget starts a second retirement while the pods of the first node are listed. The
// first is then refused for one of them.
func TestI5PendingAdmissionCountsAgainstBudget(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.addPod("a", "precious", protectedPod)
		s.createRetirement(t, "first", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
		s.createRetirement(t, "second", v1alpha1.NodeRetirementSpec{NodeName: "b", Reason: v1alpha1.Idle})
		c := s.newController(t)
		var once sync.Once
		var lists atomic.Int32 // the drains list pods too
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "list pods" {
				lists.Add(1)
				once.Do(func() {
					s.reconcileOnce(ctx, c, "second")
					if rt := s.getRetirement("second"); rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != "DisruptionBudget" || lists.Load() != 1 {
						t.Errorf("the second is %s: %+v, after %d lists of pods; want it to wait for the budget", rt.Status.Phase, rt.Status.Reasons, lists.Load())
					}
				})
			}
			return nil
		})
		if rt := s.reconcileUntilDone(ctx, c, "first", time.Hour); rt.Status.Phase != v1alpha1.Refused {
			t.Errorf("the first is %s: %s", rt.Status.Phase, rt.Status.Message)
		}
		if rt := s.reconcileUntilDone(ctx, c, "second", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("the second is %s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}
