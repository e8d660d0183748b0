package retirement

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// checkingCloud is a cloud that knows which rights its credential lacks.
type checkingCloud struct {
	simCloud
	missing cloud.Rights
	err     error
	asked   []string
}

func (c *checkingCloud) MissingToDelete(_ context.Context, id string) (cloud.Rights, error) {
	c.asked = append(c.asked, id)
	return c.missing, c.err
}

func (c *checkingCloud) MissingForGroup(context.Context, string) (cloud.GroupRights, error) {
	return cloud.GroupRights{}, errors.New("not asked for")
}

func TestI10ANodeWhoseMachineMustNotBeDeletedIsLeftAloneUntilTheRightIsGiven(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		// The group has been found to lack the right already: that is to be waited for all the same.
		s.groups[0].Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.CloudRightsMissing, Message: "lacks it",
		}}
		s.addPod("a", "web-1", nil)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.controller(t)
		from := &checkingCloud{simCloud: simCloud{s}, missing: cloud.Rights{{Name: "sets/delete/action", Scope: "/sets/ci"}}}
		c.o.Clouds["sim"] = from
		rt := s.settled(ctx, c, "r", time.Hour)
		blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
		if rt.Status.Phase != v1alpha1.Pending || blocked == nil || blocked.Reason != CloudRights ||
			!strings.Contains(rt.Status.Message, "the credential lacks sets/delete/action on /sets/ci") {
			t.Fatalf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, blocked)
		}
		if a := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementAdmitted); a == nil || a.Reason != CloudRights {
			t.Errorf("admitted: %+v", a)
		}
		s.isAsItWas(t, "a")
		if on := s.podsOn("a"); len(on) != 1 || on[0].DeletionTimestamp != nil {
			t.Errorf("of its pods there is %+v", on)
		}
		from.missing = nil
		if rt = s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.hasLeft(t, "a")
		for _, id := range from.asked {
			if id != "sim://a" {
				t.Errorf("asked about %s", id)
			}
		}
	})
}

func TestANodeWhoseMachineItsCloudKeepsIsLeftAloneUntilItIsLetGo(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web-1", nil)
		s.machines["sim://a"].Kept, s.machines["sim://a"].KeptReason = true, "it is locked"
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.controller(t)
		rt := s.settled(ctx, c, "r", time.Hour)
		blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
		if rt.Status.Phase != v1alpha1.Pending || blocked == nil || blocked.Reason != CloudRefused || !strings.Contains(rt.Status.Message, "sim://a") ||
			!strings.Contains(rt.Status.Message, "it is locked") {
			t.Fatalf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, blocked)
		}
		s.isAsItWas(t, "a")
		if on := s.podsOn("a"); len(on) != 1 || on[0].DeletionTimestamp != nil {
			t.Errorf("of its pods there is %+v", on)
		}
		s.machines["sim://a"].Kept = false
		if rt = s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.hasLeft(t, "a")
	})
}

// TestAMachineThatIsKeptOnlyAfterItWasCapturedIsLeftAlone also counts: a walk that has captured the machine does not read it
// again to admit it.
func TestAMachineThatIsKeptOnlyAfterItWasCapturedIsLeftAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		s.silence("b") // which uses up the budget
		c := s.controller(t)
		s.settled(ctx, c, "r", time.Minute)
		s.mu.Lock()
		s.machines["sim://a"].Kept = true
		s.mu.Unlock()
		s.bringBack("b")
		rt := s.settled(ctx, c, "r", time.Hour)
		if rt.Status.Captured == nil || rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != CloudRefused {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.isAsItWas(t, "a")
	})
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		reads, atHold := 0, -1
		s.atEach(func(moment, request string) error {
			switch {
			case moment == "before" && request == "cloud instance":
				reads++
			case request == "patch node" && atHold < 0:
				atHold = reads
			}
			return nil
		})
		if s.settled(ctx, s.controller(t), "r", time.Hour); atHold != 1 {
			t.Errorf("the machine was read %d times before its node was held, want once", atHold)
		}
	})
}

func TestI7RightsThatAreNotKnownHoldNothingUp(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.controller(t)
		from := &checkingCloud{simCloud: simCloud{s}, err: &cloud.RefusedError{Reason: cloud.NoRight, Err: errors.New("not to be asked")}}
		c.o.Clouds["sim"] = from
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || len(from.asked) == 0 {
			t.Fatalf("%s: %s, asked %d times", rt.Status.Phase, rt.Status.Message, len(from.asked))
		}
		s.hasLeft(t, "a")
	})
}

func TestTheNodeOfAMachineThatIsGoneNeedsNoRightToDeleteIt(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		delete(s.machines, "sim://a")
		s.change("a", silent)
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.controller(t)
		c.o.Clouds["sim"] = &checkingCloud{simCloud: simCloud{s}, missing: cloud.Rights{{Name: "sets/delete/action", Scope: "/sets/ci"}}}
		if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}
