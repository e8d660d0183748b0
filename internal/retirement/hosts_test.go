package retirement

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func TestI4AMachineThatIsANodeOfAnotherNameStays(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", nil)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "vm-a", ProviderID: "sim://a"})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != NodeReplaced {
			t.Errorf("%s: %s, want it refused", rt.Status.Phase, rt.Status.Message)
		}
		s.isAsItWas(t, "a")
	})
}

// TestI4AMachineWhoseKubeletTakesAnotherNameMeanwhileStays has it do so at every request of a retirement, before and after.
func TestI4AMachineWhoseKubeletTakesAnotherNameMeanwhileStays(t *testing.T) {
	for _, moment := range []string{"before", "after"} {
		for at, more := 1, true; more; at++ {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.addPod("a", "web", nil)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				n := 0
				s.at = func(when, request string) error {
					s.mu.Lock()
					if when == moment {
						n++
					}
					now := when == moment && n == at
					s.mu.Unlock()
					switch when + " " + request {
					case "after list nodes", "before list pods", "after list pods", "before cloud delete": // it is looked no more
					default:
						if now {
							s.rename("a", "a.example.org")
						}
					}
					return nil
				}
				rt := s.settled(ctx, s.controller(t), "r", 3*time.Hour)
				more = n >= at
				s.mu.Lock()
				defer s.mu.Unlock()
				if len(s.violations) > 0 {
					t.Errorf("%d %s: %v", at, moment, s.violations)
				}
				if s.nodes["a.example.org"] != nil && (s.touched["sim://a"] || !rt.Status.Phase.Finished() || rt.Status.Phase == v1alpha1.Succeeded) {
					t.Errorf("%d %s: %s: %s, its machine's deletion asked for: %t", at, moment, rt.Status.Phase, rt.Status.Message,
						s.touched["sim://a"])
				}
			})
		}
	}
}

func TestI7AMachineOfWhichItIsNotKnownWhetherItIsANodeStays(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		fails := true
		s.at = func(moment, request string) error {
			if moment == "before" && request == "list nodes" && fails {
				return errors.New("etcdserver: request timed out")
			}
			return nil
		}
		c := s.controller(t)
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.NodeDeleted || s.touched["sim://a"] {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		fails = false
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.hasLeft(t, "a")
	})
}

// TestAMachineWhoseNameBeginsLikeAnotherNodesLeaves retires one of two hosts that have one name in different domains.
func TestAMachineWhoseNameBeginsLikeAnotherNodesLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		for _, name := range []string{"worker-1.east.example.org", "worker-1.west.example.org"} {
			s.addNode(name, map[string]string{pool: "ci"})
		}
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "worker-1.west.example.org"})
		if rt := s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.hasLeft(t, "worker-1.west.example.org")
	})
}

// TestANodeThatLeftAnotherOfItsMachineBehindIsNotDrainedForNothing retires a Node whose kubelet had another name before.
func TestANodeThatLeftAnotherOfItsMachineBehindIsNotDrainedForNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", nil)
		s.mu.Lock()
		s.register("a-before", "sim://a", nil)
		s.mu.Unlock()
		s.silence("a-before")
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != NotConfirmed {
			t.Errorf("%s: %s, want it refused", rt.Status.Phase, rt.Status.Message)
		}
		s.isAsItWas(t, "a")
		s.drop("a-before")
		s.retire(t, "again", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		if rt := s.settled(ctx, s.controller(t), "again", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}
