package retirement

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// TestRetirementsAwaitingReplacement also checks that a record is reconciled as soon as it stops waiting.
func TestRetirementsAwaitingReplacement(t *testing.T) {
	ofNotice := v1alpha1.NodeRetirementSpec{Group: "ci", Notice: &v1alpha1.NoticeReference{Source: "azure", ID: "1", Type: "Preempt"}}
	in := func(s v1alpha1.ReplacementState) *v1alpha1.Replacement { return &v1alpha1.Replacement{State: s} }
	for name, tt := range map[string]struct {
		spec   v1alpha1.NodeRetirementSpec
		status v1alpha1.NodeRetirementStatus
		waits  bool
	}{
		"it has no status yet": {ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded}, true},
		"it is refused": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded, Replacement: in(v1alpha1.ReplacementWaiting)}, true,
		},
		"the instance is gone, and the retirement failed": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Failed, InstanceGone: true, Replacement: in(v1alpha1.ReplacementWaiting)}, true,
		},
		"it is launched": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Aborted, Replacement: in(v1alpha1.ReplacementLaunched)}, true,
		},
		"an earlier version has launched it": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded, Replacement: in("Ordered")}, false,
		},
		"its instance is not usable": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded, Replacement: in(v1alpha1.ReplacementFailed)}, false,
		},
		"it runs": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded, Replacement: in(v1alpha1.ReplacementReady)}, false,
		},
		"decided against": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded, Replacement: in(v1alpha1.ReplacementNotNeeded)}, false,
		},
		"refused while the instance existed": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Refused, Replacement: in(v1alpha1.ReplacementWaiting)}, false,
		},
		"the retirement is not finished": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Draining, InstanceGone: true}, false,
		},
		"no notice takes the instance away": {
			v1alpha1.NodeRetirementSpec{Group: "ci"}, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded}, false,
		},
		"the node is in no group": {
			v1alpha1.NodeRetirementSpec{Notice: ofNotice.Notice}, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			rt := &v1alpha1.NodeRetirement{Spec: tt.spec, Status: tt.status}
			is := isAwaitingReplacement(rt)
			check.Not(t, is != tt.waits, "it waits: %t, want %t", is, tt.waits)
			finished := rt.DeepCopy()
			finished.Status.Replacement = in(v1alpha1.ReplacementNotNeeded)
			woken := foreignRetirementChangePredicate().Update(event.UpdateEvent{ObjectOld: rt, ObjectNew: finished})
			check.Not(t, woken != tt.waits, "it is reconciled at once: %t, want %t", woken, tt.waits)
		})
	}
}

// TestFailedRecordIsKeptDuringCooldown sets TTLs of 0 in the manager and the record. The record is the only sign of the
// recent failure.
func TestFailedRecordIsKeptDuringCooldown(t *testing.T) {
	for name, tt := range map[string]struct {
		after *metav1.Duration
		kept  time.Duration
	}{
		"cooldown of the group": {&metav1.Duration{Duration: 20 * time.Minute}, 20 * time.Minute},
		"default cooldown":      {nil, 5 * time.Minute},
		"no cooldown":           {&metav1.Duration{}, 0},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.groups[0].Spec.Cooldowns.AfterFailure = tt.after
			s.addPod("a", "own", protectedPod)
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", TTLAfterFinished: &metav1.Duration{}})
			c, began := s.newController(t), time.Now()
			c.options.TTL = 0
			for s.getRetirement("r") != nil && time.Since(began) < time.Hour {
				s.reconcileOnce(ctx, c, "r")
			}
			if kept := time.Since(began); kept < tt.kept || kept > tt.kept+time.Minute {
				t.Errorf("kept for %s, want %s", kept, tt.kept)
			}
		}))
	}
}

func TestRecordStateReportsChangedObstacles(t *testing.T) {
	p := &retirementScope{rt: &v1alpha1.NodeRetirement{}}
	for i, step := range []struct {
		code string
		news bool
	}{
		{"", false},
		{GroupNotReady, true},
		{GroupNotReady, false},
		{CloudBusy, true}, // something else blocked it before
		{CloudBusy, false},
		{"", true},
		{CloudBusy, true},
	} {
		if news := p.recordWaitState(step.code, "message", nil); news != step.news {
			t.Errorf("step %d, %q: changed is %t, want %t", i, step.code, news, step.news)
		}
	}
}
