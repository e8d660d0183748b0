package httpserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
)

// writeError answers with an error in the form of the cloudpool API.
func writeError(w http.ResponseWriter, code int, message, detail string) {
	writeJSON(w, code, api.ErrorMessage{Message: message, Detail: detail})
}

// writeJSON answers with an object as JSON. If the object cannot be encoded, it answers 500.
func writeJSON(w http.ResponseWriter, code int, object any) {
	raw, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		writeError(w, http.StatusInternalServerError, "cannot encode the answer", err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(raw)
}

// isBodyTooLarge reports whether a request body was longer than the limit.
func isBodyTooLarge(err error) bool { return errors.As(err, new(*http.MaxBytesError)) }

// failureMessage returns the message for a request of this kind that has failed. For sizes and terminations it is the
// same text as in kubeaware-cloudpool-proxy.
func failureMessage(k controller.Kind) string {
	switch k {
	case controller.SetSize:
		return "failed to set desired size"
	case controller.DetachMachine:
		return "failed to detach machine"
	case controller.ChangeMembership, controller.Dispose:
		return "failed to set membership status"
	}
	return "failed to terminate machine"
}

// retrySeconds is the value of the header Retry-After, in seconds.
const retrySeconds = 5

// writeFailure answers a request that was not carried out.
func (s *Server) writeFailure(w http.ResponseWriter, kind controller.Kind, machine string, err error) {
	var busy *controller.BusyError
	var badRequest *api.BadRequestError
	var f *controller.Failure
	switch {
	case errors.As(err, &badRequest):
		writeError(w, http.StatusBadRequest, badRequest.Message, badRequest.Detail)
	case errors.As(err, &busy):
		w.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
		writeError(w, http.StatusTooManyRequests, failureMessage(kind), busy.Error())
	default:
		if !errors.As(err, &f) {
			f = &controller.Failure{Result: controller.ToResult(err), Detail: err.Error(), Err: err}
		}
		if s.opts.StrictCompat {
			writeError(w, http.StatusInternalServerError, failureMessage(kind), strictCompatDetail(kind, machine, f))
			return
		}
		code := toStatusCode(f.Result)
		if code == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
		}
		writeError(w, code, failureMessage(kind), f.Detail)
	}
}

func toStatusCode(r controller.Result) int {
	switch r {
	case controller.Done:
		return http.StatusOK
	case controller.NotFound:
		return http.StatusNotFound
	case controller.NotPossible, controller.Partial:
		return http.StatusConflict
	case controller.BackendUnavailable:
		return http.StatusBadGateway
	case controller.ClusterUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// errNodeWithoutMachine is the error for a machine that the pool does not list, although a Node has its provider ID.
var errNodeWithoutMachine = errors.New("a node belongs to this machine")

// strictCompatDetail returns the detail of a failure in the words of kubeaware-cloudpool-proxy.
func strictCompatDetail(kind controller.Kind, machine string, f *controller.Failure) string {
	const unsafe = "TerminateMachine: machine is not deemed safe to scale down: "
	switch {
	case kind == controller.SetSize && f.Result == controller.BackendUnavailable:
		return "failed to retrieve cloudpool: getMachinePool: " + f.Detail
	case kind == controller.SetSize && f.Result == controller.ClusterUnavailable:
		return "failed to retrieve kubernetes worker nodes: " + f.Detail
	case kind == controller.SetSize:
		return f.Detail
	case errors.Is(f, errNodeWithoutMachine):
		return "failed to get cloudpool machine with ID " + machine + ": getMachine " + machine + ": machine not found: "
	case f.Result == controller.NotFound && strings.HasPrefix(f.Detail, controller.TerminationFailedPrefix):
		return f.Detail
	case f.Result == controller.NotFound: // kubeaware-cloudpool-proxy looked for the node first
		return "no kubernetes node with external ID " + machine + " exists"
	case f.Result == controller.ClusterUnavailable:
		return "failed to get nodes: " + f.Detail
	case f.Result == controller.NotPossible && strings.Contains(f.Detail, matching.RuleRegistering):
		return "no kubernetes node with external ID " + machine + " exists"
	case f.Result == controller.NotPossible:
		return unsafe + f.Detail
	}
	return f.Detail
}

func (s *Server) writeOutcome(w http.ResponseWriter, up *controller.Update) {
	o := up.Outcome
	if up.ID != "" { // the update is stored as a PoolUpdate
		w.Header().Set("Slipway-Update", up.ID)
		w.Header().Set("Slipway-Removed", strconv.Itoa(o.Removed))
	}
	switch {
	case o.Result == controller.Done:
		w.WriteHeader(http.StatusOK)
	case s.opts.StrictCompat && o.Result == controller.Partial && !controller.HasRefusedMachine(up):
		w.WriteHeader(http.StatusOK) // as kubeaware-cloudpool-proxy did: all removable machines were removed
	case s.opts.StrictCompat && up.Kind == controller.SetSize:
		detail := o.Detail
		if controller.HasRefusedMachine(up) || o.Result == controller.BackendUnavailable {
			detail = "scale-down failed: " + detail
		}
		writeError(w, http.StatusInternalServerError, failureMessage(up.Kind), detail)
	default:
		s.writeFailure(w, up.Kind, up.MachineID, &controller.Failure{Result: o.Result, Detail: o.Detail})
	}
}

// writeServerAnswer answers a forwarded update. If the pool's server or its cloud has refused the update, it passes on
// the refusal, otherwise it writes the outcome.
func (s *Server) writeServerAnswer(w http.ResponseWriter, up *controller.Update) {
	a := up.ServerAnswer
	switch {
	case a == nil:
		s.writeOutcome(w, up)
	case s.opts.StrictCompat && up.Kind == controller.SetSize:
		detail := up.Outcome.Detail
		if a.Code != 0 {
			detail = a.Message + ": " + a.Detail
		}
		writeError(w, http.StatusInternalServerError, failureMessage(up.Kind), "failed to request desiredSize against backend cloudpool: "+up.APIOperation()+": "+detail)
	case a.Code != 0 && (s.opts.StrictCompat || !isAuthFailure(int(a.Code))):
		writeError(w, int(a.Code), a.Message, a.Detail)
	case a.Code == 0 && up.Outcome.Result != controller.BackendUnavailable:
		writeError(w, toStatusCode(up.Outcome.Result), failureMessage(up.Kind), up.Outcome.Detail)
	default:
		writeError(w, http.StatusBadGateway, "failed to forward request to backend: failed to complete backend cloudpool request", up.APIOperation()+": "+up.Outcome.Detail)
	}
}
