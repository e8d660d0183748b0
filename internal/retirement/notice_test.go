package retirement

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cordon"
)

// onNotice retires a node because its agent reports a Preempt.
func onNotice(t *testing.T, s *sim, node string) {
	t.Helper()
	s.change(node, func(n *corev1.Node) {
		n.Annotations = map[string]string{"cordon.slipway.dev/azure-e1": `{"owner":"azure-e1","since":"2026-01-01T00:00:00Z","cordon":"own",` +
			`"state":{"notice":{"ID":"e1","Source":"azure","Type":"Preempt"}}}`}
		n.Spec.Unschedulable = true
	})
	s.retire(t, "r", v1alpha1.NodeRetirementSpec{
		NodeName: node, Reason: v1alpha1.Notice, Notice: &v1alpha1.NoticeReference{Source: "azure", ID: "e1", Type: "Preempt"},
	})
}

// TestI5ANodeThatItsCloudTakesAwayDoesNotStay retires another node while one is about to go.
func TestI5ANodeThatItsCloudTakesAwayDoesNotStay(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addNode("d", map[string]string{pool: "ci"})
		s.groups[0].Spec.Minimum = 2
		s.groups[0].Spec.DisruptionBudgets[0].Nodes.IntVal = 3
		onNotice(t, s, "a")
		c := s.controller(t)
		s.retire(t, "mine", v1alpha1.NodeRetirementSpec{NodeName: "b", Reason: v1alpha1.Requested})
		if rt := s.settled(ctx, c, "mine", time.Minute); rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != "MinSize" {
			t.Fatalf("%s: %s, want it to wait for the minimum", rt.Status.Phase, rt.Status.Message)
		}
		s.isAsItWas(t, "b")
		s.change("a", func(n *corev1.Node) { n.Annotations, n.Spec.Unschedulable = nil, false }) // the notice is over
		s.settled(ctx, c, "r", time.Minute)
		if rt := s.settled(ctx, c, "mine", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

func (s *sim) silence(node string) { s.change(node, silent) }

// lose takes a machine away.
func (s *sim) lose(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.machines, "sim://"+node)
}

// isLeftToItsAgent checks that nothing was done to a node.
func (s *sim) isLeftToItsAgent(t *testing.T, node string) {
	t.Helper()
	n := s.node(node)
	if n == nil {
		t.Fatalf("I7: Node %s is gone", node)
	}
	if len(n.Annotations) > 1 || len(n.Spec.Taints) > 0 || s.touched["sim://"+node] {
		t.Errorf("I7: Node %s was touched: %v, %v, its machine: %t", node, n.Annotations, n.Spec.Taints, s.touched["sim://"+node])
	}
	if rt := s.record("r"); rt.Status.Phase != v1alpha1.Pending || InFlight(rt) {
		t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
	}
}

func TestI7ANodeThatItsCloudTakesAwayIsRetiredOnceItsMachineIsReallyGone(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web-1", func(p *simPod) { p.stops = -1 })
		onNotice(t, s, "a")
		c := s.controller(t)
		s.settled(ctx, c, "r", time.Minute)
		s.isLeftToItsAgent(t, "a")
		s.silence("a") // the cloud still has the machine
		s.settled(ctx, c, "r", time.Minute)
		s.isLeftToItsAgent(t, "a")
		s.lose("a")
		rt := s.settled(ctx, c, "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Succeeded || !rt.Status.MachineGone {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		if s.nodes["a"] != nil || len(s.touched) > 0 || len(s.violations) > 0 {
			t.Errorf("%v, %v, %v", s.nodes["a"], s.touched, s.violations)
		}
	})
}

func TestI7ACloudThatDoesNotKnowTheMachineOfAReadyNodeIsNotBelieved(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		onNotice(t, s, "a")
		c := s.controller(t)
		s.settled(ctx, c, "r", 10*time.Second)
		s.lose("a")
		s.settled(ctx, c, "r", time.Minute)
		s.isLeftToItsAgent(t, "a")
	})
}

func TestANodeWhoseNoticeIsOverAndWhoseMachineLivesIsNotRetired(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		onNotice(t, s, "a")
		c := s.controller(t)
		s.settled(ctx, c, "r", 10*time.Second)
		s.change("a", func(n *corev1.Node) { n.Annotations, n.Spec.Unschedulable = nil, false })
		rt := s.settled(ctx, c, "r", time.Minute)
		if rt.Status.Phase != v1alpha1.Refused || EndedBy(rt) != NoticeOver {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.isAsItWas(t, "a")
	})
}

func TestAMachineWhoseNodeWasDeletedByAnotherIsSeenToItsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		onNotice(t, s, "a")
		c := s.controller(t)
		s.settled(ctx, c, "r", 10*time.Second)
		s.lose("a")
		s.mu.Lock()
		delete(s.nodes, "a") // as the cloud's own controller does
		s.mu.Unlock()
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

func TestSomebodyWhoWantsTheNodeGoneDoesNotWaitForTheCloud(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		onNotice(t, s, "a")
		c := s.controller(t)
		s.settled(ctx, c, "r", 10*time.Second)
		s.change("a", func(n *corev1.Node) { n.Annotations, n.Spec.Unschedulable = nil, false })
		s.silence("a")
		s.machines["sim://a"].State = cloud.Stopped // and kept, so that the retirement would wait for ever
		s.retire(t, "mine", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		for range 5 {
			s.turn(ctx, c, "mine")
			s.turn(ctx, c, "r")
		}
		if rt := s.settled(ctx, c, "mine", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		if rt := s.settled(ctx, c, "r", time.Hour); EndedBy(rt) != AlreadyRetiring {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.hasLeft(t, "a")
	})
}

// TestI5ANodeThatItsCloudTakesAwayDoesNotStayForItsOwnRetirementWaits has a notice come for a node whose retirement waits, and
// another node leave meanwhile.
func TestI5ANodeThatItsCloudTakesAwayDoesNotStayForItsOwnRetirementWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addNode("c", map[string]string{pool: "ci"})
		s.groups[0].Spec.Minimum = 2
		s.groups[0].Spec.DisruptionBudgets[0].Reasons = []v1alpha1.Reason{v1alpha1.Surplus}
		s.groups[0].Spec.DisruptionBudgets[0].Nodes.IntVal = 0
		s.retire(t, "mine", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Surplus})
		c := s.controller(t)
		if rt := s.settled(ctx, c, "mine", time.Minute); rt.Status.Phase != v1alpha1.Pending {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		onNotice(t, s, "a")
		s.settled(ctx, c, "r", time.Minute)
		s.isLeftToItsAgent(t, "a")
		s.retire(t, "other", v1alpha1.NodeRetirementSpec{NodeName: "b", Reason: v1alpha1.Requested})
		if rt := s.settled(ctx, c, "other", time.Minute); rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != "MinSize" {
			t.Errorf("%s: %s, want it to wait for the minimum", rt.Status.Phase, rt.Status.Message)
		}
		if rt := s.settled(ctx, c, "mine", time.Minute); EndedBy(rt) != AlreadyRetiring {
			t.Errorf("%s: %s, want it to yield", rt.Status.Phase, rt.Status.Message)
		}
		s.silence("a")
		s.lose("a")
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

// TestANoticeWhoseNodeSomebodyHasDeletedIsNotWaitedForAtAMachineThatLives has the machine live, or be on its way out.
func TestANoticeWhoseNodeSomebodyHasDeletedIsNotWaitedForAtAMachineThatLives(t *testing.T) {
	for state, want := range map[cloud.State]string{cloud.Running: BeingRemoved, cloud.Deleting: ""} {
		t.Run(string(state), func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				onNotice(t, s, "a")
				c := s.controller(t)
				s.settled(ctx, c, "r", 10*time.Second)
				s.mu.Lock()
				s.machines["sim://a"].State = state
				delete(s.nodes, "a")
				s.mu.Unlock()
				if rt := s.settled(ctx, c, "r", time.Minute); EndedBy(rt) != want || s.touched["sim://a"] {
					t.Errorf("%s: %s, want %q; the machine was touched: %t", rt.Status.Phase, rt.Status.Message, want, s.touched["sim://a"])
				}
			})
		})
	}
}

// TestANoticeThatIsCalledOffStaysSoWhileItStands deletes its record before and after the machine is gone, and has the notice be over, or
// the Node go.
func TestANoticeThatIsCalledOffStaysSoWhileItStands(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(*sim)
		phase  v1alpha1.Phase
		ends   func(*sim)
	}{
		"the notice is over": {
			func(*sim) {}, v1alpha1.Refused,
			func(s *sim) {
				s.change("a", func(n *corev1.Node) { n.Annotations, n.Spec.Unschedulable = nil, false })
			},
		},
		"the notice is over, and a record of another owner cannot be read": {
			func(*sim) {}, v1alpha1.Refused,
			func(s *sim) {
				s.change("a", func(n *corev1.Node) {
					n.Annotations, n.Spec.Unschedulable = map[string]string{cordon.AnnotationKey("other"): "{"}, false
				})
			},
		},
		"the Node goes": {
			func(s *sim) {
				s.addPod("a", "web-1", func(p *simPod) { p.stops = -1 })
				s.silence("a")
				s.lose("a")
			}, v1alpha1.Aborted,
			func(s *sim) {
				s.mu.Lock()
				delete(s.nodes, "a")
				s.mu.Unlock()
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				onNotice(t, s, "a")
				c := s.controller(t)
				tt.before(s)
				s.settled(ctx, c, "r", 20*time.Second)
				if err := s.records.Delete(ctx, s.record("r")); err != nil {
					t.Fatal(err)
				}
				s.settled(ctx, c, "r", time.Minute)
				s.settled(ctx, s.controller(t), "r", time.Minute) // another process
				if rt := s.record("r"); rt == nil || EndedBy(rt) != CalledOff || rt.Status.Phase != tt.phase {
					t.Fatalf("%+v, want it to be kept as %s", rt, tt.phase)
				}
				if n := s.node("a"); n == nil || len(n.Annotations) != 1 || len(n.Spec.Taints) > 0 || s.touched["sim://a"] {
					t.Errorf("the node is not as its agent has left it: %+v", n)
				}
				tt.ends(s)
				if rt := s.settled(ctx, c, "r", time.Minute); rt != nil {
					t.Errorf("%s: %s, want the record to go", rt.Status.Phase, rt.Status.Message)
				}
			})
		})
	}
}
