package retirement

import (
	"context"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI3StoppedDrainSendsNoRequests delays the API server's answer to an eviction.
func TestI3StoppedDrainSendsNoRequests(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.addPod("a", "web", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		began, ended := make(chan struct{}), false
		s.interceptRequests(func(moment, request string) error {
			switch {
			case request != "evict":
			case moment == "before":
				close(began)
				time.Sleep(5 * time.Second)
			default:
				ended = true
			}
			return nil
		})
		c := s.newController(t)
		go s.reconcileUntilDone(ctx, c, "r", time.Second)
		<-began
		if c.drains.stopAndWait("r"); !ended {
			t.Error("stop returned before the eviction did")
		}
		time.Sleep(20 * time.Second)
	})
}
