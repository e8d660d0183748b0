package controller

import (
	"net/http"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestKeepingMachineCancelsForeignRetirement detaches a machine, or makes it non-evictable, while another client's
// retirement of it is unfinished.
func TestKeepingMachineCancelsForeignRetirement(t *testing.T) {
	detach := []string{"/pool/detach", `{"machineId": "` + newUUID(2) + `", "decrementDesiredSize": true}`}
	keep := []string{"/pool/membershipStatus", `{"machineId": "` + newUUID(2) + `", "membershipStatus": {"active": true, "evictable": false}}`}
	for name, tt := range map[string]struct {
		phase       v1alpha1.Phase
		notice      bool
		finalizer   bool // the manager does not run
		request     []string
		code        int
		text        string
		retirements int
	}{
		"detached before start":        {v1alpha1.Pending, false, false, detach, http.StatusOK, "", 0},
		"detached with notice":         {v1alpha1.Pending, true, false, detach, http.StatusOK, "", 1},
		"detached while draining":      {v1alpha1.Draining, false, false, detach, http.StatusOK, "", 0},
		"detached, not restored yet":   {v1alpha1.Draining, false, true, detach, http.StatusConflict, "NodeRetirement others-n2 of its node n2 was cancelled", 1},
		"detached after drain":         {v1alpha1.Drained, false, false, detach, http.StatusConflict, "can no longer be kept: NodeRetirement others-n2 of its node n2 is Drained", 1},
		"detached after node deletion": {v1alpha1.NodeDeleted, false, false, detach, http.StatusConflict, "can no longer be kept", 1},
		"not evictable before start":   {v1alpha1.Pending, false, false, keep, http.StatusOK, "", 1},
		"not evictable while draining": {v1alpha1.Draining, false, false, keep, http.StatusOK, "", 0},
		"not evictable after drain":    {v1alpha1.Drained, false, false, keep, http.StatusConflict, "can no longer be kept", 1},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				front := s.newFrontServer(s.startReplica("a"))
				s.createForeignRetirement(2, "n2")
				rt := s.listRetirements()[0]
				if tt.notice {
					rt.Spec.Notice = &v1alpha1.NoticeReference{Source: "azure", ID: "1", Type: "Preempt"}
				}
				if tt.finalizer {
					rt.Finalizers = []string{"slipway.dev/retirement"}
				}
				if err := s.objects.Update(t.Context(), &rt); err != nil {
					t.Fatal(err)
				}
				s.updateRetirementStatus(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = tt.phase })
				if tt.phase == v1alpha1.NodeDeleted {
					s.deleteNode("n2")
				}
				s.advance(0)
				w := post(t, front, tt.request[0], tt.request[1])
				if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.text) {
					t.Errorf("%d %s; want %d, and %q", w.Code, w.Body, tt.code, tt.text)
				}
				if asked := s.pool.changeRequests(); len(asked) > 0 != (tt.code == http.StatusOK) {
					t.Errorf("the pool's server was asked for %q", asked)
				}
				if n := len(s.listRetirements()); n != tt.retirements {
					t.Errorf("%d retirements, want %d", n, tt.retirements)
				}
			})
		})
	}
}
