package retirement

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI5ARetirementThatIsBeingAdmittedTakesItsRoom has a second retirement come while the pods of the first one's node are listed,
// and the first be refused for one of them.
func TestI5ARetirementThatIsBeingAdmittedTakesItsRoom(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "precious", protectedPod)
		s.retire(t, "first", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
		s.retire(t, "second", v1alpha1.NodeRetirementSpec{NodeName: "b", Reason: v1alpha1.Idle})
		c := s.controller(t)
		var once sync.Once
		var lists atomic.Int32 // the drains list pods too
		s.atEach(func(moment, request string) error {
			if moment == "before" && request == "list pods" {
				lists.Add(1)
				once.Do(func() {
					s.turn(ctx, c, "second")
					if rt := s.record("second"); rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != "DisruptionBudget" || lists.Load() != 1 {
						t.Errorf("the second is %s: %+v, after %d lists of pods; want it to wait for the budget", rt.Status.Phase, rt.Status.Reasons, lists.Load())
					}
				})
			}
			return nil
		})
		if rt := s.settled(ctx, c, "first", time.Hour); rt.Status.Phase != v1alpha1.Refused {
			t.Errorf("the first is %s: %s", rt.Status.Phase, rt.Status.Message)
		}
		if rt := s.settled(ctx, c, "second", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("the second is %s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}
