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

// TestOverrideIsAnnouncedOnce sets an override for the drain, and for an instance with a protected pod that arrived
// after the Node's deletion.
func TestOverrideIsAnnouncedOnce(t *testing.T) {
	for name, late := range map[string]bool{"in the drain": false, "once the Node is deleted": true} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				c := s.newController(t)
				recorder := events.NewFakeRecorder(1000)
				c.options.Events, c.events = recorder, eventRecorder{recorder}
				override := &v1alpha1.OverrideProtection{By: "ops", Until: metav1.NewTime(time.Now().Add(24 * time.Hour)), Why: "bad disk"}
				spec := v1alpha1.NodeRetirementSpec{NodeName: "a"}
				s.instances["sim://a"].failingDeletions = 2
				if late {
					s.afterNodeDeletion(func() {
						s.addPod("a", "p", protectedPod)
					})
				} else {
					s.addPod("a", "p", protectedPod)
					spec.OverrideProtection = override
				}
				s.createRetirement(t, "r", spec)
				if late {
					if rt := s.reconcileUntilDone(ctx, c, "r", time.Minute); rt.Status.Phase != v1alpha1.NodeDeleted || s.deletionRequested["sim://a"] {
						t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
					}
					rt := s.getRetirement("r")
					rt.Spec.OverrideProtection = override
					if err := s.retirements.Update(ctx, rt); err != nil {
						t.Fatal(err)
					}
				}
				if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				emitted := 0
				for len(recorder.Events) > 0 {
					if strings.Contains(<-recorder.Events, string(eventOverridden)) {
						emitted++
					}
				}
				if emitted != 2 { // on the NodeRetirement and on the Node
					t.Errorf("%d Events %s, want one on each object", emitted, eventOverridden)
				}
			})
		})
	}
}
