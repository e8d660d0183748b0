package retirement

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
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
				s.atEach(func(when, request string) error {
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
				})
				rt := s.settled(ctx, s.controller(t), "r", 3*time.Hour)
				s.mu.Lock()
				defer s.mu.Unlock()
				more = n >= at
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
		s.atEach(func(moment, request string) error {
			if moment == "before" && request == "list nodes" && fails {
				return errors.New("etcdserver: request timed out")
			}
			return nil
		})
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

// TestAHostOfOneNameInAnotherDomainIsNotTheMachine has it say nothing of its machine, or something that is another cloud's.
func TestAHostOfOneNameInAnotherDomainIsNotTheMachine(t *testing.T) {
	for name, id := range map[string]string{"it says nothing": "", "it is another cloud's": "aws:///x"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.addNode("w1.rack-a", map[string]string{pool: "ci"})
				s.mu.Lock()
				s.machines["sim://w1.rack-a"].Name = "w1.rack-a"
				s.register("w1.rack-b", id, nil)
				s.mu.Unlock()
				if id == "" {
					s.change("w1.rack-a", func(n *corev1.Node) { n.Spec.ProviderID = "" })
				}
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "w1.rack-a", ProviderID: "sim://w1.rack-a"})
				if rt := s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.hasLeft(t, "w1.rack-a")
			})
		})
	}
}

// TestI4AHostThatMayBeTheMachineIsTakenForIt gives Nodes that say nothing of their machines.
func TestI4AHostThatMayBeTheMachineIsTakenForIt(t *testing.T) {
	m := cloud.Instance{ProviderID: "sim://3f", Name: "vm-1", ComputerName: "w1.rack-a"}
	for _, tt := range []struct {
		host cloud.Host
		is   bool
	}{
		{cloud.Host{Name: "w1"}, true}, // of any domain
		{cloud.Host{Name: "W1.Rack-A"}, true},
		{cloud.Host{Name: "w1.rack-a", ProviderID: "aws:///x"}, true},
		{cloud.Host{Name: "w1.rack-b", SystemUUID: "3F"}, true},
		{cloud.Host{Name: "w1.rack-b"}, false},
		{cloud.Host{Name: "w1.rack-b", ProviderID: "aws:///x"}, false},
		{cloud.Host{Name: "w1", ProviderID: "k3s://w1"}, true}, // which the kubelet says of itself
	} {
		if is := !isElsewhere(tt.host, m, simCloud{}.Normalize); is != tt.is {
			t.Errorf("%+v: taken for the machine: %t", tt.host, is)
		}
	}
	m.ComputerName = "w1"
	for _, id := range []string{"", "k3s://w1.rack-b"} {
		if isElsewhere(cloud.Host{Name: "w1.rack-b", ProviderID: id}, m, simCloud{}.Normalize) {
			t.Errorf("the machine does not say its domain, and the Node of ID %q is taken for another's", id)
		}
	}
}

// TestI4AMachineOfANodeWhoseIDIsNoCloudsStays has the kubelet register under the name of its host, with an ID that its distribution
// makes of that name.
func TestI4AMachineOfANodeWhoseIDIsNoCloudsStays(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.mu.Lock()
		delete(s.nodes, "a")
		s.register("a.example.org", "k3s://a.example.org", map[string]string{pool: "ci"})
		s.mu.Unlock()
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != NodeReplaced || s.touched["sim://a"] {
			t.Errorf("%s: %s, want it refused; its machine's deletion asked for: %t", rt.Status.Phase, rt.Status.Message, s.touched["sim://a"])
		}
	})
}

// TestI4ANodeWhoseMachineTurnsOutToBeAnotherAsWellIsGivenBack has the other come while the node is drained.
func TestI4ANodeWhoseMachineTurnsOutToBeAnotherAsWellIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", func(p *simPod) { p.stops = time.Minute })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		s.settled(ctx, c, "r", 30*time.Second)
		s.mu.Lock()
		s.register("a.example.org", "sim://a", nil)
		s.mu.Unlock()
		rt := s.settled(ctx, c, "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || rt.Status.Reasons[0].Code != NotConfirmed {
			t.Errorf("%s: %s, want it aborted", rt.Status.Phase, rt.Status.Message)
		}
		s.isAsItWas(t, "a")
	})
}
