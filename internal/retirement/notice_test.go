package retirement

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// retireOnNotice retires a node because its agent reports a Preempt.
func retireOnNotice(t *testing.T, s *sim, node string) {
	t.Helper()
	s.changeNode(node, func(n *corev1.Node) {
		n.Annotations = map[string]string{"cordon.slipway.dev/azure-e1": `{"owner":"azure-e1","since":"2026-01-01T00:00:00Z","cordon":"own",` +
			`"state":{"notice":{"ID":"e1","Source":"azure","Type":"Preempt"}}}`}
		n.Spec.Unschedulable = true
	})
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{
		NodeName: node, Reason: v1alpha1.Notice, Notice: &v1alpha1.NoticeReference{Source: "azure", ID: "e1", Type: "Preempt"},
	})
}

// TestI5NoticedNodeCountsAsUnavailable retires another node after a notice for the first.
func TestI5NoticedNodeCountsAsUnavailable(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addNode("d", map[string]string{pool: "ci"})
		s.groups[0].Spec.MinSize = 2
		s.groups[0].Spec.DisruptionBudgets[0].Nodes.IntVal = 3
		retireOnNotice(t, s, "a")
		c := s.newController(t)
		s.createRetirement(t, "mine", v1alpha1.NodeRetirementSpec{NodeName: "b", Reason: v1alpha1.Requested})
		requirePhase(t, s.reconcileUntilDone(ctx, c, "mine", time.Minute), v1alpha1.Pending, "MinSize")
		s.checkNodeRestored(t, "b")
		s.changeNode("a", func(n *corev1.Node) { n.Annotations, n.Spec.Unschedulable = nil, false }) // the notice ends
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		requirePhase(t, s.reconcileUntilDone(ctx, c, "mine", time.Hour), v1alpha1.Succeeded)
	})
}

func (s *sim) makeNodeUnready(node string) { s.changeNode(node, setUnready) }

// removeInstance deletes an instance as the cloud does.
func (s *sim) removeInstance(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.instances, "sim://"+node)
}

// checkUntouched checks that the node is unchanged.
func (s *sim) checkUntouched(t *testing.T, node string) {
	t.Helper()
	n := s.getNode(node)
	must.Not(t, n == nil, "I7: Node %s is gone", node)
	if len(n.Annotations) > 1 || len(n.Spec.Taints) > 0 || s.deletionRequested["sim://"+node] {
		t.Errorf("I7: Node %s was deleted: %v, %v, its instance: %t", node, n.Annotations, n.Spec.Taints, s.deletionRequested["sim://"+node])
	}
	rt := s.getRetirement("r")
	check.Not(t, rt.Status.Phase != v1alpha1.Pending || IsInFlight(rt), "%s: %s", rt.Status.Phase, rt.Status.Message)
}

func TestI7NoticedNodeIsRetiredOnceInstanceIsGone(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web-1", func(p *simPod) { p.stopsAfter = -1 })
		retireOnNotice(t, s, "a")
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.checkUntouched(t, "a")
		s.makeNodeUnready("a") // the cloud still has the instance
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.checkUntouched(t, "a")
		s.removeInstance("a")
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		must.Not(t, rt.Status.Phase != v1alpha1.Succeeded || !rt.Status.InstanceGone, "%s: %s", rt.Status.Phase, rt.Status.Message)
		if s.nodes["a"] != nil || len(s.deletionRequested) > 0 || len(s.violations) > 0 {
			t.Errorf("%v, %v, %v", s.nodes["a"], s.deletionRequested, s.violations)
		}
	})
}

func TestI7NotFoundInstanceOfReadyNodeIsNotTrusted(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		retireOnNotice(t, s, "a")
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", 10*time.Second)
		s.removeInstance("a")
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.checkUntouched(t, "a")
	})
}

func TestEndedNoticeWithRunningInstanceIsNotRetired(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		retireOnNotice(t, s, "a")
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", 10*time.Second)
		s.changeNode("a", func(n *corev1.Node) { n.Annotations, n.Spec.Unschedulable = nil, false })
		rt := s.reconcileUntilDone(ctx, c, "r", time.Minute)
		requirePhase(t, rt, v1alpha1.Refused, NoticeOver)
		s.checkNodeRestored(t, "a")
	})
}

func TestInstanceOfDeletedNodeIsFollowedUntilGone(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		retireOnNotice(t, s, "a")
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", 10*time.Second)
		s.removeInstance("a")
		s.mu.Lock()
		delete(s.nodes, "a") // as the cloud's own controller does
		s.mu.Unlock()
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
	})
}

func TestUserRetirementDoesNotWaitForNotice(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		retireOnNotice(t, s, "a")
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", 10*time.Second)
		s.changeNode("a", func(n *corev1.Node) { n.Annotations, n.Spec.Unschedulable = nil, false })
		s.makeNodeUnready("a")
		s.instances["sim://a"].State = cloud.Stopped // the instance stays, so that the retirement would wait forever
		s.createRetirement(t, "mine", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		for range 5 {
			s.reconcileOnce(ctx, c, "mine")
			s.reconcileOnce(ctx, c, "r")
		}
		requirePhase(t, s.reconcileUntilDone(ctx, c, "mine", time.Hour), v1alpha1.Succeeded)
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); EarlyEndCode(rt) != AlreadyRetiring {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkRetired(t, "a")
	})
}

// TestNewNodeOfSameNameIsRetiredDespiteOldRetirement has an old instance with a deletion that does not end.
func TestNewNodeOfSameNameIsRetiredDespiteOldRetirement(t *testing.T) {
	for name, retire := range map[string]func(*testing.T, *sim){
		"on request": func(t *testing.T, s *sim) { s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"}) },
		"on a notice": func(t *testing.T, s *sim) {
			retireOnNotice(t, s, "a")
			time.AfterFunc(time.Minute, func() { s.removeInstance("a-new"); s.makeNodeUnready("a") })
		},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.instances["sim://a"].deletionTakes = 100 * time.Hour
			s.createRetirement(t, "old", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			c := s.newController(t)
			requirePhase(t, s.reconcileUntilDone(ctx, c, "old", 5*time.Minute), v1alpha1.NodeDeleted)
			m := newSimInstance("a")
			m.ProviderID, m.UniqueID, m.Group = "sim://a-new", "second-a", "ci"
			s.mu.Lock()
			s.instances[m.ProviderID] = m
			s.addReadyNode("a", m.ProviderID, map[string]string{pool: "ci"})
			s.mu.Unlock()
			retire(t, s)
			requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
			check.Not(t, s.getNode("a") != nil, "the new Node is still there")
		}))
	}
}

// TestI5NoticedNodeCountsWhileItsRetirementWaits announces a notice for a node with a waiting retirement, and retires
// another node meanwhile.
func TestI5NoticedNodeCountsWhileItsRetirementWaits(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addNode("c", map[string]string{pool: "ci"})
		s.groups[0].Spec.MinSize = 2
		s.groups[0].Spec.DisruptionBudgets[0].Reasons = []v1alpha1.Reason{v1alpha1.Surplus}
		s.groups[0].Spec.DisruptionBudgets[0].Nodes.IntVal = 0
		s.createRetirement(t, "mine", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Surplus})
		c := s.newController(t)
		requirePhase(t, s.reconcileUntilDone(ctx, c, "mine", time.Minute), v1alpha1.Pending)
		retireOnNotice(t, s, "a")
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.checkUntouched(t, "a")
		s.createRetirement(t, "other", v1alpha1.NodeRetirementSpec{NodeName: "b", Reason: v1alpha1.Requested})
		requirePhase(t, s.reconcileUntilDone(ctx, c, "other", time.Minute), v1alpha1.Pending, "MinSize")
		if rt := s.reconcileUntilDone(ctx, c, "mine", time.Minute); EarlyEndCode(rt) != AlreadyRetiring {
			t.Errorf("%s: %s, want it to end", rt.Status.Phase, rt.Status.Message)
		}
		s.makeNodeUnready("a")
		s.removeInstance("a")
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
	})
}

// TestNoticeForDeletedNodeEndsIfInstanceRuns covers a running instance and an instance in deletion.
func TestNoticeForDeletedNodeEndsIfInstanceRuns(t *testing.T) {
	for state, want := range map[cloud.State]string{cloud.Running: BeingRemoved, cloud.Deleting: ""} {
		t.Run(string(state), groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			retireOnNotice(t, s, "a")
			c := s.newController(t)
			s.reconcileUntilDone(ctx, c, "r", 10*time.Second)
			s.mu.Lock()
			s.instances["sim://a"].State = state
			delete(s.nodes, "a")
			s.mu.Unlock()
			if rt := s.reconcileUntilDone(ctx, c, "r", time.Minute); EarlyEndCode(rt) != want || s.deletionRequested["sim://a"] {
				t.Errorf("%s: %s, want %q; the instance was deleted: %t", rt.Status.Phase, rt.Status.Message, want, s.deletionRequested["sim://a"])
			}
		}))
	}
}

// TestCancelledNoticeRetirementStaysWhileNoticeRemains deletes the record before and after the instance is gone. Then
// the notice ends, or the Node is deleted.
func TestCancelledNoticeRetirementStaysWhileNoticeRemains(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(*sim)
		phase  v1alpha1.Phase
		ends   func(*sim)
	}{
		"the notice ends": {
			func(*sim) {}, v1alpha1.Refused,
			func(s *sim) {
				s.changeNode("a", func(n *corev1.Node) { n.Annotations, n.Spec.Unschedulable = nil, false })
			},
		},
		"the notice ends, and another owner's record is invalid": {
			func(*sim) {}, v1alpha1.Refused,
			func(s *sim) {
				s.changeNode("a", func(n *corev1.Node) {
					n.Annotations, n.Spec.Unschedulable = map[string]string{cordon.AnnotationKey("other"): "{"}, false
				})
			},
		},
		"the Node is deleted": {
			func(s *sim) {
				s.addPod("a", "web-1", func(p *simPod) { p.stopsAfter = -1 })
				s.makeNodeUnready("a")
				s.removeInstance("a")
			}, v1alpha1.Aborted,
			func(s *sim) {
				s.mu.Lock()
				delete(s.nodes, "a")
				s.mu.Unlock()
			},
		},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			retireOnNotice(t, s, "a")
			c := s.newController(t)
			tt.before(s)
			s.reconcileUntilDone(ctx, c, "r", 20*time.Second)
			must.NoError(t, s.retirements.Delete(ctx, s.getRetirement("r")))
			s.reconcileUntilDone(ctx, c, "r", time.Minute)
			s.reconcileUntilDone(ctx, s.newController(t), "r", time.Minute) // another process
			if rt := s.getRetirement("r"); rt == nil || EarlyEndCode(rt) != Cancelled || rt.Status.Phase != tt.phase {
				t.Fatalf("%+v, want it to be kept as %s", rt, tt.phase)
			}
			if n := s.getNode("a"); n == nil || len(n.Annotations) != 1 || len(n.Spec.Taints) > 0 || s.deletionRequested["sim://a"] {
				t.Errorf("the node was changed: %+v", n)
			}
			tt.ends(s)
			if rt := s.reconcileUntilDone(ctx, c, "r", time.Minute); rt != nil {
				t.Errorf("%s: %s, want the record deleted", rt.Status.Phase, rt.Status.Message)
			}
		}))
	}
}
