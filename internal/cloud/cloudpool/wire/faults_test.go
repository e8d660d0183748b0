package wire_test

import (
	"net/http"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// These tests are named after faults of kubeaware-cloudpool-proxy. Package kubeaware has the whole list.

func TestFaultSuccessOtherThan200IsAFailure(t *testing.T) {
	for _, code := range []int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent} {
		c := newTestClient(t, "", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
		for what, err := range map[string]error{
			"size":       c.SetDesiredSize(t.Context(), 3),
			"terminate":  c.Terminate(t.Context(), wire.Removal{MachineID: "m"}),
			"detach":     c.Detach(t.Context(), wire.Removal{MachineID: "m"}),
			"membership": c.SetMembershipStatus(t.Context(), wire.SetMembershipStatus{MachineID: "m"}),
		} {
			if err != nil {
				t.Errorf("%s, answered %d: %v", what, code, err)
			}
		}
	}
}

func TestFaultOwnRequestsAreForwardedForNobody(t *testing.T) {
	seen := make(chan http.Header, 1)
	c := newTestClient(t, "", func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })
	must.NoError(t, c.SetDesiredSize(t.Context(), 3))
	if h := <-seen; h.Values("X-Forwarded-For") != nil {
		t.Errorf("X-Forwarded-For is %q, want no such header", h.Values("X-Forwarded-For"))
	}
}
