package retirement

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestVolumesOfSkippedPodsAreIgnoredAndUnknownVolumesTimeOut uses a DaemonSet pod with a claim.
func TestVolumesOfSkippedPodsAreIgnoredAndUnknownVolumesTimeOut(t *testing.T) {
	for name, tt := range map[string]struct {
		setup func(*sim)
		phase v1alpha1.Phase
		code  string
	}{
		"its volume is attached": {
			func(s *sim) { s.claims, s.volumes = map[string]string{"ns/data": "pv-1"}, newAttachments("a") }, v1alpha1.Succeeded, "",
		},
		"its claim is gone":                    {func(*sim) {}, v1alpha1.Succeeded, ""},
		"its claim is gone, the volume is not": {func(s *sim) { s.volumes = newAttachments("a") }, v1alpha1.Aborted, VolumesAttached},
		"its claim cannot be read": {func(s *sim) {
			s.interceptRequests(func(_, request string) error {
				if request == "get claim" {
					return errors.New("no answer")
				}
				return nil
			})
		}, v1alpha1.Aborted, DrainTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.groups[0].Spec.Drain.WaitForDetach = true
				s.groups[0].Spec.Drain.Timeout = &metav1.Duration{Duration: 10 * time.Minute}
				s.addPod("a", "agent", func(p *simPod) {
					p.OwnerReferences[0].Kind = "DaemonSet"
					volumes := `[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]`
					if err := json.Unmarshal([]byte(volumes), &p.Spec.Volumes); err != nil {
						t.Fatal(err)
					}
				})
				tt.setup(s)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
				if rt.Status.Phase != tt.phase || EarlyEndCode(rt) != tt.code {
					t.Fatalf("%s: %s, want %s %q", rt.Status.Phase, rt.Status.Message, tt.phase, tt.code)
				}
				if tt.phase == v1alpha1.Aborted {
					s.checkNodeRestored(t, "a")
				}
			})
		})
	}
}
