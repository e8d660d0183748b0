package retirement

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestWhichRecordsWaitForAReplacement also checks that one is looked at again as soon as it does not any more.
func TestWhichRecordsWaitForAReplacement(t *testing.T) {
	ofNotice := v1alpha1.NodeRetirementSpec{Group: "ci", Notice: &v1alpha1.NoticeReference{Source: "azure", ID: "1", Type: "Preempt"}}
	in := func(s v1alpha1.ReplacementState) *v1alpha1.Replacement { return &v1alpha1.Replacement{State: s} }
	for name, tt := range map[string]struct {
		spec   v1alpha1.NodeRetirementSpec
		status v1alpha1.NodeRetirementStatus
		waits  bool
	}{
		"nobody has looked at it yet": {ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded}, true},
		"it is refused": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded, Replacement: in(v1alpha1.ReplacementWaiting)}, true,
		},
		"the machine is gone, and the rest cannot be done": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Failed, MachineGone: true, Replacement: in(v1alpha1.ReplacementWaiting)}, true,
		},
		"it is ordered": {
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
		"there is to be none": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded, Replacement: in(v1alpha1.ReplacementNotNeeded)}, false,
		},
		"the machine was there when it was refused": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Refused, Replacement: in(v1alpha1.ReplacementWaiting)}, false,
		},
		"the retirement goes on": {
			ofNotice, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Draining, MachineGone: true}, false,
		},
		"no notice takes the machine away": {
			v1alpha1.NodeRetirementSpec{Group: "ci"}, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded}, false,
		},
		"the node is in no group": {
			v1alpha1.NodeRetirementSpec{Notice: ofNotice.Notice}, v1alpha1.NodeRetirementStatus{Phase: v1alpha1.Succeeded}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			rt := &v1alpha1.NodeRetirement{Spec: tt.spec, Status: tt.status}
			if is := awaitsReplacement(rt); is != tt.waits {
				t.Errorf("it waits: %t, want %t", is, tt.waits)
			}
			over := rt.DeepCopy()
			over.Status.Replacement = in(v1alpha1.ReplacementNotNeeded)
			if woken := recordMatters().Update(event.UpdateEvent{ObjectOld: rt, ObjectNew: over}); woken != tt.waits {
				t.Errorf("it is looked at again at once: %t, want %t", woken, tt.waits)
			}
		})
	}
}

// TestARecordOfAFailureIsKeptForAsLongAsItsNodeIsLeftAlone has neither the manager nor the record want it to be kept: who asks
// for a node's retirement knows from it alone that one has just failed.
func TestARecordOfAFailureIsKeptForAsLongAsItsNodeIsLeftAlone(t *testing.T) {
	for name, tt := range map[string]struct {
		after *metav1.Duration
		kept  time.Duration
	}{
		"as the group says":           {&metav1.Duration{Duration: 20 * time.Minute}, 20 * time.Minute},
		"the group does not say":      {nil, 5 * time.Minute},
		"the group wants no cooldown": {&metav1.Duration{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.groups[0].Spec.Cooldowns.AfterFailure = tt.after
				s.addPod("a", "own", protectedPod)
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", TTLAfterFinished: &metav1.Duration{}})
				c, began := s.controller(t), time.Now()
				c.o.TTL = 0
				for s.record("r") != nil && time.Since(began) < time.Hour {
					s.turn(ctx, c, "r")
				}
				if kept := time.Since(began); kept < tt.kept || kept > tt.kept+time.Minute {
					t.Errorf("kept for %s, want %s", kept, tt.kept)
				}
			})
		})
	}
}
