package replacement

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// TestI5VanishedReplacementIsLaunchedAgain has a cloud that drops the instance, seen or not.
func TestI5VanishedReplacementIsLaunchedAgain(t *testing.T) {
	for name, seen := range map[string]bool{"never seen": false, "seen once": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := newSim(t, 3)
				s.group.Spec.MinSize = 3
				s.slow, s.done = time.Hour, true
				c := s.newController(t)
				s.addNotice(t, "vm-0", "Preempt")
				s.evictInstance(t, "vm-0")
				s.run(ctx, c, 10*time.Second)
				if seen {
					s.mu.Lock()
					s.machines["new"] = cloud.Instance{Name: "new", ProviderID: "sim://new", State: cloud.Pending}
					s.mu.Unlock()
				}
				s.run(ctx, c, 2*time.Minute)
				s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1)
				s.mu.Lock()
				delete(s.machines, "new")
				s.size--
				s.slow = 10 * time.Second
				s.mu.Unlock()
				s.run(ctx, c, 20*time.Second)
				s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, launch.InstanceVanished, 1)
				s.run(ctx, c, 5*time.Minute)
				s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 2)
				if s.size != 3 {
					t.Errorf("the group is of %d instances, want its minimum of 3", s.size)
				}
			})
		})
	}
}

// TestI5RunningOperationIsNotLaunchedAgain has a size that does not count the launch yet.
func TestI5RunningOperationIsNotLaunchedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := newSim(t, 3)
		s.slow = time.Hour
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.evictInstance(t, "vm-0")
		s.run(ctx, c, 10*time.Second)
		s.mu.Lock()
		s.size--
		s.mu.Unlock()
		s.run(ctx, c, 5*time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1)
	})
}

// newLaunchingSim has three instances. One was evicted 10 s ago, and its replacement takes an hour to run.
func newLaunchingSim(ctx context.Context, t *testing.T) (*sim, *Controller) {
	t.Helper()
	s := newSim(t, 3)
	s.slow, s.done = time.Hour, true
	c := s.newController(t)
	s.addNotice(t, "vm-0", "Preempt")
	s.evictInstance(t, "vm-0")
	s.run(ctx, c, 10*time.Second)
	return s, c
}

// TestI5DeletedNodeIsNotReplacedAgain loses another instance of the group while the replacement is provisioning.
func TestI5DeletedNodeIsNotReplacedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s, c := newLaunchingSim(ctx, t)
		s.evictInstance(t, "vm-1")
		s.run(ctx, c, 5*time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1)
	})
}

// TestFutureTimesDelayNoReplacement sets the clock back after the times were written.
func TestFutureTimesDelayNoReplacement(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s, c := newLaunchingSim(ctx, t)
		future := metav1.NewTime(time.Now().Add(48 * time.Hour)).Rfc3339Copy()
		change := func(how func(*v1alpha1.ProvisioningStatus) error) {
			if err := c.options.Launches.Update(ctx, &s.group, how); err != nil {
				t.Fatal(err)
			}
		}
		change(func(p *v1alpha1.ProvisioningStatus) error {
			p.Launches[0].RequestedAt, p.Launches[0].AnsweredAt = future, &future
			return nil
		})
		s.mu.Lock()
		s.size--
		s.slow = 10 * time.Second
		s.mu.Unlock()
		s.run(ctx, c, 80*time.Second)
		s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, launch.InstanceVanished, 1)
		change(func(p *v1alpha1.ProvisioningStatus) error { p.BackOffs[0].Until = future; return nil })
		s.run(ctx, c, 5*time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 2)
	})
}

// TestI5ReplacementIsRepeatedAfterItsOperationIsForgotten has a cloud that drops the instance and forgets the
// operation.
func TestI5ReplacementIsRepeatedAfterItsOperationIsForgotten(t *testing.T) {
	for name, forgotten := range map[string]error{
		"not found": &cloud.NotFoundError{Kind: "operation", Name: "op"},
		"invalid":   &cloud.RefusedError{Reason: cloud.Invalid, Err: errors.New("operation op: want what Grow returned")},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s, c := newLaunchingSim(ctx, t)
				s.mu.Lock()
				s.at = func(moment, request string) error {
					if moment == "before" && request == "cloud status" {
						return forgotten
					}
					return nil
				}
				s.slow = 10 * time.Second
				s.mu.Unlock()
				s.run(ctx, c, 2*time.Minute)
				s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1) // the size of the group is as requested
				s.mu.Lock()
				s.size--
				s.mu.Unlock()
				s.run(ctx, c, 5*time.Minute)
				s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 2)
			})
		})
	}
}

// TestI5InstanceTheCloudNeverMadeIsLaunched has a cloud that lowers the size that it kept for the evicted instance.
func TestI5InstanceTheCloudNeverMadeIsLaunched(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := newSim(t, 3)
		s.group.Spec.MinSize, s.restores, s.slow = 3, true, 10*time.Second
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.evictInstance(t, "vm-0")
		s.run(ctx, c, time.Hour)
		s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, CloudReplaces, 0)
		s.mu.Lock()
		s.size--
		s.mu.Unlock()
		s.run(ctx, c, 5*time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
	})
}

// TestNeverUsableReplacementFails has a Node that is never Ready, an instance without a Node, or a cloud that shows no
// instance.
func TestNeverUsableReplacementFails(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		comes  func(t *testing.T, s *sim)
	}{
		"not Ready": {launch.NeverReady, func(t *testing.T, s *sim) { s.setNodeNotReady(t, s.joinInstance()) }},
		"no Node": {launch.NeverJoined, func(_ *testing.T, s *sim) {
			s.machines["new"] = cloud.Instance{Name: "new", ProviderID: "sim://new", State: cloud.Running}
		}},
		"not shown": {launch.NeverJoined, func(*testing.T, *sim) {}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s, c := newLaunchingSim(ctx, t)
				tt.comes(t, s)
				s.run(ctx, c, 14*time.Minute)
				s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1)
				s.run(ctx, c, 30*time.Minute)
				s.expect(t, "vm-0", v1alpha1.ReplacementFailed, tt.reason, 1)
			})
		})
	}
}

// TestI8InstanceOlderThanTheLaunchIsNotIts restarts the manager right after the launch.
func TestI8InstanceOlderThanTheLaunchIsNotIts(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := newSim(t, 3)
		s.slow, s.done = 20*time.Second, true
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.evictInstance(t, "vm-0")
		s.reconcileAll(ctx, c)
		s.reconcileAll(ctx, c)
		s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1)
		s.run(ctx, s.newController(t), time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
		if r := s.replacementOfNode(t, "vm-0"); r.Instance != "sim://vm-3" {
			t.Errorf("replaced by %s, want the instance that was launched", r.Instance)
		}
	})
}
