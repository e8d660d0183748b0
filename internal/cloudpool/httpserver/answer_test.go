package httpserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
)

// decodeError returns the status code and the error text of an answer.
func decodeError(t *testing.T, w *httptest.ResponseRecorder) (code int, text string) {
	t.Helper()
	var said api.ErrorMessage
	if w.Body.Len() > 0 {
		if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil {
			t.Errorf("%q: %v", w.Body, err)
		}
	}
	return w.Code, said.Message + ": " + said.Detail
}

func TestFailuresHaveDistinctCodesUnlessStrict(t *testing.T) {
	away := controller.NewBackendFailure("reading the pool", errors.New("connection refused"))
	cluster := controller.NewClusterFailure("reading the nodes", errors.New("timeout"))
	unsafe := controller.NewFailuref(controller.NotPossible, "n is not a viable scale-down candidate: why (protected)")
	for name, tt := range map[string]struct {
		kind controller.Kind
		err  error
		code int
		// strict is the text of kubeaware-cloudpool-proxy, with status 500.
		strict string
	}{
		"no such machine":                     {controller.Terminate, controller.NewFailuref(controller.NotFound, "machine m"), 404, "failed to terminate machine: no kubernetes node with external ID m exists"},
		"node without machine":                {controller.Terminate, &controller.Failure{Result: controller.NotFound, Err: errNodeWithoutMachine}, 404, "failed to terminate machine: failed to get cloudpool machine with ID m: getMachine m: machine not found: "},
		"no machine to detach":                {controller.DetachMachine, controller.NewFailuref(controller.NotFound, "machine m"), 404, "failed to detach machine: "},
		"no machine to dispose":               {controller.Dispose, controller.NewFailuref(controller.NotFound, "machine m"), 404, "failed to set membership status: "},
		"not safe":                            {controller.Terminate, unsafe, 409, "failed to terminate machine: TerminateMachine: machine is not deemed safe to scale down: n is not a viable"},
		"no candidate":                        {controller.SetSize, controller.NewFailuref(controller.NotPossible, "found no viable candidates for scaling down: x"), 409, "failed to set desired size: found no viable candidates"},
		"server unavailable":                  {controller.SetSize, away, 502, "failed to set desired size: failed to retrieve cloudpool: getMachinePool: reading the pool: connection refused"},
		"API server unavailable":              {controller.SetSize, cluster, 503, "failed to set desired size: failed to retrieve kubernetes worker nodes: "},
		"API server unavailable, one machine": {controller.Terminate, cluster, 503, "failed to terminate machine: failed to get nodes: "},
		"no node yet":                         {controller.Terminate, controller.NewFailuref(controller.NotPossible, "m is not …: (%s)", matching.RuleRegistering), 409, "failed to terminate machine: no kubernetes node with external ID m exists"},
		"cloud refuses":                       {controller.Terminate, &cloud.RefusedError{Reason: cloud.Protected, Err: errors.New("locked")}, 502, "failed to terminate machine: "},
		"other error":                         {controller.SetSize, errors.New("100% strange"), 500, "failed to set desired size: 100% strange"},
	} {
		for _, strict := range []bool{false, true} {
			w := httptest.NewRecorder()
			(&Server{opts: ServerOptions{StrictCompat: strict}}).writeFailure(w, tt.kind, "m", tt.err)
			code, text := decodeError(t, w)
			want := tt.code
			if strict {
				want = http.StatusInternalServerError
			}
			if code != want || strict && !strings.HasPrefix(text, tt.strict) {
				t.Errorf("%s, strict %t: %d %q, want %d %q", name, strict, code, text, want, tt.strict)
			}
		}
	}
	for _, strict := range []bool{false, true} { // bad requests keep their status in strict mode
		w := httptest.NewRecorder()
		_, err := api.DecodeTerminate([]byte("{}"))
		(&Server{opts: ServerOptions{StrictCompat: strict}}).writeFailure(w, controller.Terminate, "", err)
		if code, text := decodeError(t, w); code != http.StatusBadRequest || text != "terminateMachine message did not specify a machineId: " {
			t.Errorf("%d %q", code, text)
		}
	}
}

func TestOutcomeDeterminesStatusCode(t *testing.T) {
	refused := []v1alpha1.PoolMachine{{State: v1alpha1.MachineRemoved}, {State: v1alpha1.MachineRefused}}
	for name, tt := range map[string]struct {
		update       controller.Update
		code, strict int
	}{
		"done":                     {controller.Update{Kind: controller.SetSize, Outcome: &controller.Outcome{Result: controller.Done, Removed: 2}}, 200, 200},
		"too few candidates":       {controller.Update{Kind: controller.SetSize, Machines: []v1alpha1.PoolMachine{{State: v1alpha1.MachineRemoved}}, Outcome: &controller.Outcome{Result: controller.Partial, Removed: 1}}, 409, 200},
		"one machine failed":       {controller.Update{Kind: controller.SetSize, Machines: refused, Outcome: &controller.Outcome{Result: controller.Partial, Removed: 1}}, 409, 500},
		"server fails after drain": {controller.Update{Kind: controller.SetSize, Outcome: &controller.Outcome{Result: controller.BackendUnavailable}}, 502, 500},
		"machine stays":            {controller.Update{Kind: controller.Terminate, Outcome: &controller.Outcome{Result: controller.NotPossible}}, 409, 500},
	} {
		for strict, want := range map[bool]int{false: tt.code, true: tt.strict} {
			w := httptest.NewRecorder()
			tt.update.ID = "workers-7"
			(&Server{opts: ServerOptions{StrictCompat: strict}}).writeOutcome(w, &tt.update)
			if id, removed := w.Header().Get("Slipway-Update"), w.Header().Get("Slipway-Removed"); id != "workers-7" || removed != strconv.Itoa(tt.update.Outcome.Removed) {
				t.Errorf("%s: the headers say update %q, removed %q", name, id, removed)
			}
			if w.Code != want || want == 200 && w.Body.Len() > 0 {
				t.Errorf("%s, strict %t: %d %s, want %d", name, strict, w.Code, w.Body, want)
			}
		}
	}
}

func TestServerAnswerToRaiseIsForwarded(t *testing.T) {
	own := &api.StatusError{Code: 400, FromServer: true, ErrorMessage: api.ErrorMessage{Message: "illegal input: no", Detail: "why"}}
	for name, tt := range map[string]struct {
		err          error
		code, strict int
		text         string
	}{
		"accepted":             {nil, 200, 200, ": "},
		"refused":              {own, 400, 500, "illegal input: no: why"},
		"unauthorized":         {&api.StatusError{Code: 401, FromServer: true}, 502, 500, ""},
		"answer of a proxy":    {&api.StatusError{Code: 404, ErrorMessage: api.ErrorMessage{Message: "<html>"}}, 502, 500, ""},
		"limit of a NodeGroup": {&cloud.RefusedError{Reason: cloud.AtLimit, Err: errors.New("maximum")}, 400, 500, ""},
	} {
		for strict, want := range map[bool]int{false: tt.code, true: tt.strict} {
			w := httptest.NewRecorder()
			(&Server{opts: ServerOptions{StrictCompat: strict}}).writeServerAnswer(w, (&controller.Update{Kind: controller.SetSize, DesiredSize: 3}).WithServerAnswer(tt.err))
			code, text := decodeError(t, w)
			if code != want || !strict && tt.text != "" && text != tt.text {
				t.Errorf("%s, strict %t: %d %q, want %d %q", name, strict, code, text, want, tt.text)
			}
			if strict && want == 500 && !strings.HasPrefix(text, "failed to set desired size: failed to request desiredSize against backend cloudpool: setDesiredSize 3: ") {
				t.Errorf("%s: %q", name, text)
			}
		}
	}
}
