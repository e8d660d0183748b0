package retirement

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestAnOverrideIsToldOfOnceWhereverItLetsAProtectedPodGo gives it for the drain, and for a machine that a pod holds which
// came after its Node was deleted.
func TestAnOverrideIsToldOfOnceWhereverItLetsAProtectedPodGo(t *testing.T) {
	for name, late := range map[string]bool{"in the drain": false, "once the Node is deleted": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				c := s.controller(t)
				recorder := events.NewFakeRecorder(1000)
				c.o.Events, c.events = recorder, announcer{recorder}
				override := &v1alpha1.OverrideProtection{By: "ops", Until: metav1.NewTime(time.Now().Add(24 * time.Hour)), Why: "bad disk"}
				spec := v1alpha1.NodeRetirementSpec{NodeName: "a"}
				s.machines["sim://a"].fails = 2
				if late {
					s.onceNodeDeleted(func() {
						s.addPod("a", "p", protectedPod)
					})
				} else {
					s.addPod("a", "p", protectedPod)
					spec.OverrideProtection = override
				}
				s.retire(t, "r", spec)
				if late {
					if rt := s.settled(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.NodeDeleted || s.touched["sim://a"] {
						t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
					}
					rt := s.record("r")
					rt.Spec.OverrideProtection = override
					if err := s.records.Update(ctx, rt); err != nil {
						t.Fatal(err)
					}
				}
				if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				told := 0
				for len(recorder.Events) > 0 {
					if strings.Contains(<-recorder.Events, string(eventOverridden)) {
						told++
					}
				}
				if told != 2 { // on the NodeRetirement and on the Node
					t.Errorf("%d Events %s, want one on each of both", told, eventOverridden)
				}
			})
		})
	}
}
