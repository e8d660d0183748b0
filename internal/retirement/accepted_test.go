package retirement

import (
	"context"
	"testing"
	"time"

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
