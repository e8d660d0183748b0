package retirement

import (
	"context"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI3AStoppedDrainSendsNothing makes the API server slow to answer an eviction.
func TestI3AStoppedDrainSendsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", nil)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		began, ended := make(chan struct{}), false
		s.atEach(func(moment, request string) error {
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
		c := s.controller(t)
		go s.settled(ctx, c, "r", time.Second)
		<-began
		if c.drains.stop("r"); !ended {
			t.Error("stop returned before the eviction did")
		}
		time.Sleep(20 * time.Second)
	})
}
