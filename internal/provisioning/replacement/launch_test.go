package replacement

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// useObjectGroup makes the group an object with the launches in its status.
func (s *sim) useObjectGroup(t *testing.T) {
	t.Helper()
	s.group.UID = "group"
	must.NoError(t, s.records.Create(t.Context(), s.group.DeepCopy()))
}

// TestI5InstanceIsTrackedDespiteAConcurrentRecordWrite fails a write of the record when the instance appears.
func TestI5InstanceIsTrackedDespiteAConcurrentRecordWrite(t *testing.T) {
	for name, failure := range map[string]error{
		"conflict":    apierrors.NewConflict(schema.GroupResource{Resource: "nodegroups"}, groupName, errors.New("written meanwhile")),
		"unreachable": errors.New("connection reset"),
	} {
		for of, object := range map[string]bool{"object": true, "file": false} {
			t.Run(name+" "+of, simOf(3, func(t *testing.T, ctx context.Context, s *sim) {
				request := "update *v1.ConfigMap"
				if object {
					s.useObjectGroup(t)
					request = "update status of *v1alpha1.NodeGroup"
				}
				s.slow, s.done = 2*time.Minute, true
				c := s.newController(t)
				s.preemptInstance(t, "vm-0")
				s.run(ctx, c, 110*time.Second)
				s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1)
				failed := false
				s.at = func(moment, r string) error {
					if moment == "before" && r == request && !failed && len(s.machines) == 3 {
						failed = true
						return failure
					}
					return nil
				}
				s.run(ctx, c, 10*time.Minute)
				if !failed {
					t.Fatal("nothing has failed")
				}
				s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
			}))
		}
	}
}

// TestAbandonedLaunchBlocksNoReplacement has a recorded launch without an owner.
func TestAbandonedLaunchBlocksNoReplacement(t *testing.T) {
	for _, kind := range []string{v1alpha1.LaunchForRetirement, "PoolUpdate"} {
		t.Run(kind, simOf(3, func(t *testing.T, ctx context.Context, s *sim) {
			s.slow, s.done = 10*time.Second, true
			c := s.newController(t)
			err := c.options.Launches.Update(ctx, &s.group, func(p *v1alpha1.ProvisioningStatus) error {
				p.Launches = append(p.Launches, v1alpha1.Launch{
					ID: "orphan", State: v1alpha1.LaunchRequested, Count: 1, RequestedAt: metav1.Now(), For: &v1alpha1.LaunchOwner{Kind: kind, Name: "gone", UID: "gone"},
				})
				return nil
			})
			must.NoError(t, err)
			s.preemptInstance(t, "vm-0")
			s.run(ctx, c, 30*time.Second)
			s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, LaunchPending, 0)
			s.run(ctx, c, 10*time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
		}))
	}
}

// TestI5ReplacementThatLeavesAtOnceIsReplacedOnce has a notice for the new instance before its state was read.
func TestI5ReplacementThatLeavesAtOnceIsReplacedOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s, c := newLaunchingSim(ctx, t)
		s.addNotice(t, s.joinInstance(), "Preempt")
		s.run(ctx, c, 10*time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
	})
}

func (s *sim) addSecondNotice(t *testing.T, node string) {
	t.Helper()
	s.changeNode(t, node, func(n *corev1.Node) {
		n.Annotations["cordon.slipway.dev/azure-e-2"] = `{"owner":"azure-e-2","since":"2026-01-01T00:00:00Z","state":{"notice":{"ID":"e-2","Source":"azure","Type":"Terminate"}}}`
	})
}

// TestI5SecondNoticeDoesNotReplaceALateReplacement has two notices of one node. The Node of the new instance is not
// Ready.
func TestI5SecondNoticeDoesNotReplaceALateReplacement(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		s.slow, s.done = time.Hour, true
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.addSecondNotice(t, "vm-0")
		s.evictInstance(t, "vm-0")
		s.run(ctx, c, 10*time.Second)
		s.setNodeNotReady(t, s.joinInstance())
		s.run(ctx, c, time.Hour-time.Minute)
		states := map[v1alpha1.ReplacementState]int{}
		for _, rt := range s.listRetirements(t) {
			states[rt.Status.Replacement.State]++
		}
		if s.grown != 1 || states[v1alpha1.ReplacementFailed] != 1 || states[v1alpha1.ReplacementNotNeeded] != 1 {
			t.Errorf("%d launched, states %v; want 1 launched, 1 Failed and 1 NotNeeded", s.grown, states)
		}
	})
}

// TestI5SecondNoticeUsesNoOtherNodesReplacement has two notices of one replaced node. The launch for another node is
// refused.
func TestI5SecondNoticeUsesNoOtherNodesReplacement(t *testing.T) {
	withSim(t, 4, func(t *testing.T, ctx context.Context, s *sim) {
		four := int32(4)
		s.group.Spec.MinSize, s.group.Spec.MaxSize, s.done = four, &four, true
		c := s.newController(t)
		s.addNotice(t, "vm-0", "Preempt")
		s.addSecondNotice(t, "vm-0")
		s.addNotice(t, "vm-1", "Preempt")
		s.evictInstance(t, "vm-0")
		s.evictInstance(t, "vm-1")
		s.at = func(moment, request string) error {
			if moment == "after" && request == "cloud grow" {
				s.refuse = &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("quota")}
			}
			return nil
		}
		s.run(ctx, c, 2*time.Minute)
		s.expect(t, "vm-1", v1alpha1.ReplacementWaiting, string(cloud.NoQuota), 1)
		s.at, s.refuse = func(string, string) error { return nil }, nil
		s.run(ctx, c, 20*time.Minute)
		s.expect(t, "vm-1", v1alpha1.ReplacementReady, "", 2)
	})
}

// TestI5VanishedReplacementIsLaunchedAgain has a cloud that drops the instance, seen or not.
func TestI5VanishedReplacementIsLaunchedAgain(t *testing.T) {
	for name, seen := range map[string]bool{"never seen": false, "seen once": true} {
		t.Run(name, simOf(3, func(t *testing.T, ctx context.Context, s *sim) {
			s.group.Spec.MinSize = 3
			s.slow, s.done = time.Hour, true
			c := s.newController(t)
			s.preemptInstance(t, "vm-0")
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
			check.Is(t, 3, s.size)
		}))
	}
}

// TestI5RunningOperationIsNotLaunchedAgain has a size that does not count the launch yet.
func TestI5RunningOperationIsNotLaunchedAgain(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		s.slow = time.Hour
		c := s.newController(t)
		s.preemptInstance(t, "vm-0")
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
	s.preemptInstance(t, "vm-0")
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
			must.NoError(t, c.options.Launches.Update(ctx, &s.group, how))
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
		t.Run(name, inBubbleRun(func(t *testing.T, ctx context.Context) {
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
		}))
	}
}

// TestI5InstanceTheCloudNeverMadeIsLaunched has a cloud that lowers the size that it kept for the evicted instance.
func TestI5InstanceTheCloudNeverMadeIsLaunched(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		s.group.Spec.MinSize, s.restores, s.slow = 3, true, 10*time.Second
		c := s.newController(t)
		s.preemptInstance(t, "vm-0")
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
		t.Run(name, inBubbleRun(func(t *testing.T, ctx context.Context) {
			s, c := newLaunchingSim(ctx, t)
			tt.comes(t, s)
			s.run(ctx, c, 14*time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1)
			s.run(ctx, c, 30*time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementFailed, tt.reason, 1)
		}))
	}
}

// TestI8InstanceOlderThanTheLaunchIsNotIts restarts the manager right after the launch.
func TestI8InstanceOlderThanTheLaunchIsNotIts(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		s.slow, s.done = 20*time.Second, true
		c := s.newController(t)
		s.preemptInstance(t, "vm-0")
		s.reconcileAll(ctx, c)
		s.reconcileAll(ctx, c)
		s.expect(t, "vm-0", v1alpha1.ReplacementLaunched, "", 1)
		s.run(ctx, s.newController(t), time.Minute)
		s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
		r := s.replacementOfNode(t, "vm-0")
		check.Not(t, r.Instance != "sim://vm-3", "replaced by %s, want the instance that was launched", r.Instance)
	})
}
