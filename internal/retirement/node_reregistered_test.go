package retirement

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// deleteNodeAsUser deletes a Node as a user does before its kubelet registers it again.
func (s *sim) deleteNodeAsUser(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, node)
}

// newGroupAtMinSize returns a group at its minimum size and starts the retirement of a node.
func newGroupAtMinSize(t *testing.T) *sim {
	t.Helper()
	s := newGroupOfTwo(t)
	s.groups[0].Spec.MinSize = 2
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{
		NodeName: "a", NodeUID: s.getNode("a").UID, ProviderID: "sim://a", Group: "ci", Reason: v1alpha1.Surplus,
	})
	return s
}

// checkInstanceKept checks that the retirement was refused because another client deleted the Node.
func (s *sim) checkInstanceKept(t *testing.T, rt *v1alpha1.NodeRetirement) {
	t.Helper()
	if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != BeingRemoved {
		t.Errorf("%s: %s, want it refused as %s", rt.Status.Phase, rt.Status.Message, BeingRemoved)
	}
	if s.deletionRequested["sim://a"] {
		t.Error("I5: the instance was deleted, and its group is below its minimum")
	}
}

func TestI5InstanceStaysIfNodeIsDeletedWhileWaiting(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupAtMinSize(t)
		c := s.newController(t)
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.Pending {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.deleteNodeAsUser("a")
		s.checkInstanceKept(t, s.reconcileUntilDone(ctx, c, "r", time.Hour))
	})
}

func TestI4NodeReregisteredWhileWaitingStays(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.groups[0].Spec.MinSize = 2
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.addNode("a", map[string]string{pool: "ci"})
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != NodeReplaced {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.checkNodeRestored(t, "a")
	})
}

func TestI5InstanceStaysIfNodeIsDeletedBeforeCapture(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupAtMinSize(t)
		s.deleteNodeAsUser("a")
		s.checkInstanceKept(t, s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour))
	})
}

// TestI5NodeDeletedDuringAdmissionCounts deletes the Node after it was read.
func TestI5NodeDeletedDuringAdmissionCounts(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupAtMinSize(t)
		s.interceptRequests(func(moment, request string) error {
			if moment == "after" && request == "cached get node" {
				s.deleteNodeAsUser("a")
			}
			return nil
		})
		s.checkInstanceKept(t, s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour))
	})
}

func TestNodeAndInstanceDeletedWhileWaitingSucceeds(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupAtMinSize(t)
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.deleteNodeAsUser("a")
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cloud instance" {
				return errors.New("too many requests")
			}
			return nil
		})
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Pending {
			t.Fatalf("I7: %s: %s, want it to wait for its cloud", rt.Status.Phase, rt.Status.Message)
		}
		s.interceptRequests(func(string, string) error { return nil })
		s.removeInstance("a")
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

func TestInstanceWithoutNodeIsRetiredByProviderID(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.groups[0].Spec.MinSize = 1
		s.deleteNodeAsUser("a")
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a", Group: "ci"})
		if rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if (simCloud{s}).finishOperations(); s.instances["sim://a"] != nil && s.instances["sim://a"].State != cloud.Deleting {
			t.Error("the instance stays")
		}
	})
}
