package retirement

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// is sets the group's condition Accepted.
func (s *sim) is(status metav1.ConditionStatus, reason string, generation int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[0].Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.GroupAccepted, Status: status, Reason: reason, Message: "so it is", ObservedGeneration: generation,
	}}
}

// TestI5NothingLeavesAGroupBeforeItIsAccepted has a retirement find a group of which nobody has said that it is acted on, and
// of whose cloud's minimum nothing is known: as it is looked at first, and as the next process finds it.
func TestI5NothingLeavesAGroupBeforeItIsAccepted(t *testing.T) {
	for name, tt := range map[string]struct {
		not  func(*sim)
		code string
	}{
		"nobody has looked at it yet": {func(s *sim) { s.groups[0].Status = v1alpha1.NodeGroupStatus{} }, GroupNotJudged},
		"nor as it is now": {func(s *sim) {
			s.groups[0].Generation = 2
			s.is(metav1.ConditionTrue, v1alpha1.AcceptedReason, 1)
		}, GroupNotJudged},
		"its cloud has not answered yet": {func(s *sim) { s.is(metav1.ConditionUnknown, "CloudNotRead", 0) }, GroupNotAccepted},
	} {
		for when, captured := range map[string]bool{"at first": false, "when it is captured": true} {
			t.Run(name+", "+when, func(t *testing.T) {
				inBubble(t, func(t *testing.T, ctx context.Context) {
					s := ci(t)
					s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
					c := s.controller(t)
					if captured {
						s.silence("b") // which uses up the budget
						s.settled(ctx, c, "r", time.Minute)
						s.bringBack("b")
						c = s.controller(t)
					}
					tt.not(s)
					rt := s.settled(ctx, c, "r", time.Hour)
					if rt.Status.Phase != v1alpha1.Pending || len(rt.Status.Reasons) != 1 || rt.Status.Reasons[0].Code != tt.code {
						t.Fatalf("%s: %+v, want it to wait for %s", rt.Status.Phase, rt.Status.Reasons, tt.code)
					}
					s.isAsItWas(t, "a")
					s.groups[0].Status.CloudMinimum = 2
					s.is(metav1.ConditionTrue, v1alpha1.AcceptedReason, s.groups[0].Generation)
					if rt = s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != "Minimum" {
						t.Fatalf("%s: %+v, want the cloud's minimum kept", rt.Status.Phase, rt.Status.Reasons)
					}
					s.groups[0].Status.CloudMinimum = 1
					if rt = s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
						t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
					}
				})
			})
		}
	}
}

func TestWhichGroupANodeIsOfIsNotSaidBeforeAllThatSelectItAreJudged(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		younger := group()
		younger.Name, younger.Status = "all", v1alpha1.NodeGroupStatus{}
		s.groups = append(s.groups, younger)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		told := make(chan string, 100)
		c.events = announcer{&events.FakeRecorder{Events: told}}
		if rt := s.settled(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != GroupNotJudged {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		if len(told) > 0 {
			t.Errorf("what passes by itself is told of: %s", <-told)
		}
		s.groups[1].Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.OverlapsGroup, Message: "overlaps ci",
		}}
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || rt.Status.Captured.Group != "ci" {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

// TestAGroupThatOwnsNoNodeHoldsUpNoneOfAnothers has a group be refused that selects another's nodes.
func TestAGroupThatOwnsNoNodeHoldsUpNoneOfAnothers(t *testing.T) {
	for _, reason := range []string{v1alpha1.OverlapsGroup, v1alpha1.SelectsControlPlane, v1alpha1.InvalidSpec} {
		t.Run(reason, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				other := group()
				other.Name = "all"
				other.Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: reason, Message: "is refused",
				}}
				s.groups = append(s.groups, other)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				if rt := s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || rt.Status.Captured.Group != "ci" {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
			})
		})
	}
}

// TestI5ANodeOfAGroupThatIsRefusedIsNotTakenForOneOfNoGroup has the group that it overlapped be gone, and nobody have looked since.
func TestI5ANodeOfAGroupThatIsRefusedIsNotTakenForOneOfNoGroup(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.groups[0].Spec.Minimum = 2
		s.is(metav1.ConditionFalse, v1alpha1.OverlapsGroup, 0)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.settled(ctx, s.controller(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Refused || rt.Status.Reasons[0].Code != GroupNotAccepted {
			t.Errorf("%s: %s, want it refused", rt.Status.Phase, rt.Status.Message)
		}
		s.isAsItWas(t, "a")
	})
}

// TestAGroupThatItsCloudRefusesToTellOfIsWaitedFor has a credential expire, and be renewed.
func TestAGroupThatItsCloudRefusesToTellOfIsWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.is(metav1.ConditionFalse, v1alpha1.CloudRefused, 0)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.controller(t)
		rt := s.settled(ctx, c, "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Pending || len(rt.Status.Reasons) != 1 || rt.Status.Reasons[0].Code != CloudRefused {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.isAsItWas(t, "a")
		s.is(metav1.ConditionTrue, v1alpha1.AcceptedReason, 0)
		if rt = s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

// refusedTo has a group's cloud refuse it, and know none of its machines: the credential is another project's by now.
func (s *sim) refusedTo(reason string, node string) *machine {
	s.is(metav1.ConditionFalse, reason, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machines["sim://"+node]
	delete(s.machines, "sim://"+node)
	return m
}

// TestI7ACloudIsNotBelievedWhileTheGroupIsNotAccepted has the credential become one of another project, which knows no machine,
// while the Node is not Ready for a moment.
func TestI7ACloudIsNotBelievedWhileTheGroupIsNotAccepted(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, *sim){
		"as it waits for a bound": func(t *testing.T, s *sim) {
			s.groups[0].Spec.Minimum = 2
			s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		},
		"as it waits for its cloud": func(t *testing.T, s *sim) { onNotice(t, s, "a") },
		"as it drains": func(t *testing.T, s *sim) {
			s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		},
	} {
		for _, reason := range []string{v1alpha1.CloudRefused, v1alpha1.CloudGroupNotFound} {
			t.Run(name+", "+reason, func(t *testing.T) {
				inBubble(t, func(t *testing.T, ctx context.Context) {
					s := ci(t)
					s.addPod("a", "web", func(p *simPod) { p.denied = true })
					begin(t, s)
					c := s.controller(t)
					s.settled(ctx, c, "r", time.Minute)
					m := s.refusedTo(reason, "a")
					s.change("a", func(n *corev1.Node) {
						for i := range n.Status.Conditions {
							if n.Status.Conditions[i].Type == corev1.NodeReady {
								n.Status.Conditions[i].Status = corev1.ConditionUnknown
							}
						}
					})
					rt := s.settled(ctx, c, "r", 10*time.Minute)
					if rt.Status.MachineGone || rt.Status.Phase.Finished() || rt.Status.Reasons[0].Code != GroupNotAccepted {
						t.Fatalf("%s, machine gone: %t: %s, want it to wait for its group", rt.Status.Phase, rt.Status.MachineGone, rt.Status.Message)
					}
					if n := s.node("a"); n == nil || isOutOfService(small(n)) || len(s.podsOn("a")) != 1 {
						t.Fatalf("the Node is %v, with %d pods", n, len(s.podsOn("a")))
					}
					s.mu.Lock()
					s.machines["sim://a"] = m
					s.mu.Unlock()
					s.is(metav1.ConditionTrue, v1alpha1.AcceptedReason, 0)
					if rt := s.settled(ctx, c, "r", 2*time.Minute); rt.Status.MachineGone || rt.Status.Phase.Finished() {
						t.Fatalf("%s: %s, and its machine is there", rt.Status.Phase, rt.Status.Message)
					}
					s.lose("a")
					if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
						t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
					}
				})
			})
		}
	}
}

// TestI7ADeletedMachineIsNotTakenForGoneByACloudThatRefusesItsGroup has that happen while the machine is being deleted.
func TestI7ADeletedMachineIsNotTakenForGoneByACloudThatRefusesItsGroup(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		var m *machine
		s.atEach(func(moment, request string) error {
			if moment == "after" && request == "cloud delete" && m == nil {
				m = s.refusedTo(v1alpha1.CloudRefused, "a")
			}
			return nil
		})
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.NodeDeleted || rt.Status.Reasons[0].Code != GroupNotAccepted {
			t.Fatalf("%s: %s, want it to wait for its group", rt.Status.Phase, rt.Status.Message)
		}
		s.mu.Lock()
		s.machines["sim://a"] = m
		s.mu.Unlock()
		s.is(metav1.ConditionTrue, v1alpha1.AcceptedReason, 0)
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}

// TestARetirementThatWaitsDoesNotAskItsCloudAtEachTurn counts them where a zone is out.
func TestARetirementThatWaitsDoesNotAskItsCloudAtEachTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := atMinimum(t)
		c := s.controller(t)
		s.settled(ctx, c, "r", time.Minute)
		s.silence("a")
		asked := 0
		s.atEach(func(moment, request string) error {
			if moment == "before" && request == "cloud instance" {
				asked++
			}
			return nil
		})
		if s.settled(ctx, c, "r", time.Hour); asked < 50 || asked > 60 {
			t.Errorf("the cloud was asked %d times in an hour", asked)
		}
	})
}
