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

// checkingCloud knows which permissions its credential lacks.
type checkingCloud struct {
	simCloud
	missing cloud.Permissions
	err     error
	asked   []string
}

func (c *checkingCloud) MissingDeletePermissions(_ context.Context, id string) (cloud.Permissions, error) {
	c.asked = append(c.asked, id)
	return c.missing, c.err
}

func (c *checkingCloud) MissingGroupPermissions(context.Context, string) (cloud.GroupPermissions, error) {
	return cloud.GroupPermissions{}, errors.New("not asked for")
}

func TestI10RetirementWaitsForDeletePermission(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		// The group already lacks the permission: the retirement still has to wait for it.
		s.groups[0].Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.CloudRightsMissing, Message: "lacks it",
		}}
		s.addPod("a", "web-1", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		from := &checkingCloud{simCloud: simCloud{s}, missing: cloud.Permissions{{Name: "sets/delete/action", Scope: "/sets/ci"}}}
		c.options.Clouds["sim"] = from
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
		if rt.Status.Phase != v1alpha1.Pending || blocked == nil || blocked.Reason != CloudRights ||
			!strings.Contains(rt.Status.Message, "the credential lacks sets/delete/action on /sets/ci") {
			t.Fatalf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, blocked)
		}
		if a := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementAdmitted); a == nil || a.Reason != CloudRights {
			t.Errorf("admitted: %+v", a)
		}
		s.checkNodeRestored(t, "a")
		if on := s.listPodsOn("a"); len(on) != 1 || on[0].DeletionTimestamp != nil {
			t.Errorf("of its pods there is %+v", on)
		}
		from.missing = nil
		if rt = s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkRetired(t, "a")
		for _, id := range from.asked {
			if id != "sim://a" {
				t.Errorf("asked about %s", id)
			}
		}
	})
}

func TestRetirementWaitsForDeletionProtection(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.addPod("a", "web-1", nil)
		s.instances["sim://a"].DeletionProtected, s.instances["sim://a"].DeletionProtectionReason = true, "it is locked"
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
		if rt.Status.Phase != v1alpha1.Pending || blocked == nil || blocked.Reason != CloudRefused || !strings.Contains(rt.Status.Message, "sim://a") ||
			!strings.Contains(rt.Status.Message, "it is locked") {
			t.Fatalf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, blocked)
		}
		s.checkNodeRestored(t, "a")
		if on := s.listPodsOn("a"); len(on) != 1 || on[0].DeletionTimestamp != nil {
			t.Errorf("of its pods there is %+v", on)
		}
		s.instances["sim://a"].DeletionProtected = false
		if rt = s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkRetired(t, "a")
	})
}

// TestDeletionProtectionAfterCaptureStopsRetirement also counts reads: a reconcile that captured the instance does not
// read it again for the admission.
func TestDeletionProtectionAfterCaptureStopsRetirement(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		s.makeNodeUnready("b") // it uses up the disruption budget
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.mu.Lock()
		s.instances["sim://a"].DeletionProtected = true
		s.mu.Unlock()
		s.reviveNode("b")
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		if rt.Status.Captured == nil || rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != CloudRefused {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkNodeRestored(t, "a")
	})
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		reads, readsAtCordon := 0, -1
		s.interceptRequests(func(moment, request string) error {
			switch {
			case moment == "before" && request == "cloud instance":
				reads++
			case request == "patch node" && readsAtCordon < 0:
				readsAtCordon = reads
			}
			return nil
		})
		if s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour); readsAtCordon != 1 {
			t.Errorf("the instance was read %d times before its node was cordoned, want once", readsAtCordon)
		}
	})
}

func TestI7UnknownPermissionsDelayNothing(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		from := &checkingCloud{simCloud: simCloud{s}, err: &cloud.RefusedError{Reason: cloud.NoRight, Err: errors.New("not to be asked")}}
		c.options.Clouds["sim"] = from
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || len(from.asked) == 0 {
			t.Fatalf("%s: %s, asked %d times", rt.Status.Phase, rt.Status.Message, len(from.asked))
		}
		s.checkRetired(t, "a")
	})
}

func TestGoneInstanceNeedsNoDeletePermission(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		delete(s.instances, "sim://a")
		s.changeNode("a", setUnready)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		c.options.Clouds["sim"] = &checkingCloud{simCloud: simCloud{s}, missing: cloud.Permissions{{Name: "sets/delete/action", Scope: "/sets/ci"}}}
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}
