package controller

import (
	"net/http"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestAMachineThatIsToRunOnIsLeftByWhoeverRetiresIt detaches a machine, and has one kept, that somebody else retires.
func TestAMachineThatIsToRunOnIsLeftByWhoeverRetiresIt(t *testing.T) {
	detach := []string{"/pool/detach", `{"machineId": "` + uuid(2) + `", "decrementDesiredSize": true}`}
	keep := []string{"/pool/membershipStatus", `{"machineId": "` + uuid(2) + `", "membershipStatus": {"active": true, "evictable": false}}`}
	for name, tt := range map[string]struct {
		phase  v1alpha1.Phase
		notice bool
		held   bool // its manager is away
		ask    []string
		code   int
		says   string
		left   int
	}{
		"detached before it begins":             {v1alpha1.Pending, false, false, detach, http.StatusOK, "", 0},
		"detached with a notice":                {v1alpha1.Pending, true, false, detach, http.StatusOK, "", 1},
		"detached while it is drained":          {v1alpha1.Draining, false, false, detach, http.StatusOK, "", 0},
		"detached, and not given back yet":      {v1alpha1.Draining, false, true, detach, http.StatusConflict, "NodeRetirement others-n2 of its node n2 was called off", 1},
		"detached when it is drained":           {v1alpha1.Drained, false, false, detach, http.StatusConflict, "cannot be kept any more: NodeRetirement others-n2 of its node n2 is Drained", 1},
		"detached when its node is gone":        {v1alpha1.NodeDeleted, false, false, detach, http.StatusConflict, "cannot be kept any more", 1},
		"not evictable before it begins, waits": {v1alpha1.Pending, false, false, keep, http.StatusOK, "", 1},
		"not evictable while it is drained":     {v1alpha1.Draining, false, false, keep, http.StatusOK, "", 0},
		"not evictable when it is drained":      {v1alpha1.Drained, false, false, keep, http.StatusConflict, "cannot be kept any more", 1},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				front := s.served(s.replica("a"))
				s.retire(2, "n2")
				rt := s.retirements()[0]
				if tt.notice {
					rt.Spec.Notice = &v1alpha1.NoticeReference{Source: "azure", ID: "1", Type: "Preempt"}
				}
				if tt.held {
					rt.Finalizers = []string{"slipway.dev/retirement"}
				}
				if err := s.objects.Update(t.Context(), &rt); err != nil {
					t.Fatal(err)
				}
				s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = tt.phase })
				if tt.phase == v1alpha1.NodeDeleted {
					s.loses("n2")
				}
				s.passes(0)
				w := posted(t, front, tt.ask[0], tt.ask[1])
				if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.says) {
					t.Errorf("%d %s; want %d, and %q", w.Code, w.Body, tt.code, tt.says)
				}
				if asked := s.pool.requests(); len(asked) > 0 != (tt.code == http.StatusOK) {
					t.Errorf("the pool's server was asked for %q", asked)
				}
				if n := len(s.retirements()); n != tt.left {
					t.Errorf("%d retirements, want %d", n, tt.left)
				}
			})
		})
	}
}
