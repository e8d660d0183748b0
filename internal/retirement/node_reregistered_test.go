package retirement

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// drop deletes a Node as somebody else would, who will have its kubelet register it anew.
func (s *sim) drop(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, node)
}

// atMinimum is a group that cannot do without a node, whose retirement is asked for.
func atMinimum(t *testing.T) *sim {
	t.Helper()
	s := ci(t)
	s.groups[0].Spec.Minimum = 2
	s.retire(t, "r", v1alpha1.NodeRetirementSpec{
		NodeName: "a", NodeUID: s.node("a").UID, ProviderID: "sim://a", Group: "ci", Reason: v1alpha1.Surplus,
	})
	return s
}

// keptTheMachine checks that a retirement was refused for the sake of who has deleted the Node.
func (s *sim) keptTheMachine(t *testing.T, rt *v1alpha1.NodeRetirement) {
	t.Helper()
	if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != BeingRemoved {
		t.Errorf("%s: %s, want it refused as %s", rt.Status.Phase, rt.Status.Message, BeingRemoved)
	}
	if s.touched["sim://a"] {
		t.Error("I5: the machine was deleted, and its group is below its minimum")
	}
}

func TestI5AMachineWhoseNodeIsDeletedWhileItWaitsStays(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := atMinimum(t)
		c := s.controller(t)
		if rt := s.settled(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.Pending {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.drop("a")
		s.keptTheMachine(t, s.settled(ctx, c, "r", time.Hour))
	})
}

func TestI4ANodeRegisteredAnewWhileItWaitsStays(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.groups[0].Spec.Minimum = 2
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		s.settled(ctx, c, "r", time.Minute)
		s.addNode("a", map[string]string{pool: "ci"})
		rt := s.settled(ctx, c, "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != NodeReplaced {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.isAsItWas(t, "a")
	})
}

func TestI5AMachineWhoseNodeIsDeletedBeforeTheFirstLookStays(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := atMinimum(t)
		s.drop("a")
		s.keptTheMachine(t, s.settled(ctx, s.controller(t), "r", time.Hour))
	})
}

// TestI5ANodeThatIsDeletedInTheWalkThatWouldAdmitItCounts has the Node go after it was looked at.
func TestI5ANodeThatIsDeletedInTheWalkThatWouldAdmitItCounts(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := atMinimum(t)
		s.atEach(func(moment, request string) error {
			if moment == "after" && request == "cached get node" {
				s.drop("a")
			}
			return nil
		})
		s.keptTheMachine(t, s.settled(ctx, s.controller(t), "r", time.Hour))
	})
}

func TestANodeThatIsDeletedWithItsMachineWhileItWaitsIsDone(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := atMinimum(t)
		c := s.controller(t)
		s.settled(ctx, c, "r", time.Minute)
		s.drop("a")
		s.atEach(func(moment, request string) error {
			if moment == "before" && request == "cloud instance" {
				return errors.New("too many requests")
			}
			return nil
		})
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Pending {
			t.Fatalf("I7: %s: %s, want it to wait for its cloud", rt.Status.Phase, rt.Status.Message)
		}
		s.atEach(func(string, string) error { return nil })
		s.lose("a")
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

func TestAMachineWithoutANodeIsRetiredByItsID(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.groups[0].Spec.Minimum = 1
		s.drop("a")
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a", Group: "ci"})
		if rt := s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if (simCloud{s}).settle(); s.machines["sim://a"] != nil && s.machines["sim://a"].State != cloud.Deleting {
			t.Error("the machine stays")
		}
	})
}
