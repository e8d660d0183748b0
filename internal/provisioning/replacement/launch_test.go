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
)

// useObjectGroup makes the group an object with the launches in its status.
func (s *sim) useObjectGroup(t *testing.T) {
	t.Helper()
	s.group.UID = "group"
	if err := s.records.Create(t.Context(), s.group.DeepCopy()); err != nil {
		t.Fatal(err)
	}
}

// TestI5InstanceIsTrackedDespiteAConcurrentRecordWrite fails a write of the record when the instance appears.
func TestI5InstanceIsTrackedDespiteAConcurrentRecordWrite(t *testing.T) {
	for name, failure := range map[string]error{
		"conflict":    apierrors.NewConflict(schema.GroupResource{Resource: "nodegroups"}, groupName, errors.New("written meanwhile")),
		"unreachable": errors.New("connection reset"),
	} {
		for of, object := range map[string]bool{"object": true, "file": false} {
			t.Run(name+" "+of, func(t *testing.T) {
				inBubble(t, func(t *testing.T, ctx context.Context) {
					s := newSim(t, 3)
					request := "update *v1.ConfigMap"
					if object {
						s.useObjectGroup(t)
						request = "update status of *v1alpha1.NodeGroup"
					}
					s.slow, s.done = 2*time.Minute, true
					c := s.newController(t)
					s.addNotice(t, "vm-0", "Preempt")
					s.evictInstance(t, "vm-0")
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
				})
			})
		}
	}
}

// TestAbandonedLaunchBlocksNoReplacement has a recorded launch without an owner.
func TestAbandonedLaunchBlocksNoReplacement(t *testing.T) {
	for _, kind := range []string{v1alpha1.LaunchForRetirement, "PoolUpdate"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := newSim(t, 3)
				s.slow, s.done = 10*time.Second, true
				c := s.newController(t)
				err := c.options.Launches.Update(ctx, &s.group, func(p *v1alpha1.ProvisioningStatus) error {
					p.Launches = append(p.Launches, v1alpha1.Launch{
						ID: "orphan", State: v1alpha1.LaunchRequested, Count: 1, RequestedAt: metav1.Now(), For: &v1alpha1.LaunchOwner{Kind: kind, Name: "gone", UID: "gone"},
					})
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				s.addNotice(t, "vm-0", "Preempt")
				s.evictInstance(t, "vm-0")
				s.run(ctx, c, 30*time.Second)
				s.expect(t, "vm-0", v1alpha1.ReplacementWaiting, LaunchPending, 0)
				s.run(ctx, c, 10*time.Minute)
				s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
			})
		})
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
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := newSim(t, 3)
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
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := newSim(t, 4)
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
