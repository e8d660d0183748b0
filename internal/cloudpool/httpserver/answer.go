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

// say answers with an error in the API's form.
func say(w http.ResponseWriter, code int, message, detail string) {
	show(w, code, api.ErrorMessage{Message: message, Detail: detail})
}

// show answers with an object. If it cannot be written as JSON, that is a fault of this process.
func show(w http.ResponseWriter, code int, object any) {
	raw, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		say(w, http.StatusInternalServerError, "the answer cannot be written", err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(raw)
}

// isTooLong reports whether a body could not be read since it is too long.
func isTooLong(err error) bool { return errors.As(err, new(*http.MaxBytesError)) }

// failed is the message of a request that failed. Of sizes and terminations it is what kubeaware-cloudpool-proxy said, which
// looked at nothing else.
func failed(k controller.Kind) string {
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

// retrySeconds is when to ask again for a pool that is being updated.
const retrySeconds = 5

// refuse answers a request that was not carried out.
func (s *Server) refuse(w http.ResponseWriter, kind controller.Kind, machine string, err error) {
	var busy *controller.BusyError
	var badRequest *api.BadRequest
	var f *controller.Failure
	switch {
	case errors.As(err, &badRequest):
		say(w, http.StatusBadRequest, badRequest.Message, badRequest.Detail)
	case errors.As(err, &busy):
		w.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
		say(w, http.StatusTooManyRequests, failed(kind), busy.Error())
	default:
		if !errors.As(err, &f) {
			f = &controller.Failure{Result: controller.ResultOf(err), Detail: err.Error(), Err: err}
		}
		if s.o.StrictCompat {
			say(w, http.StatusInternalServerError, failed(kind), strictDetail(kind, machine, f))
			return
		}
		code := codeOf(f.Result)
		if code == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
		}
		say(w, code, failed(kind), f.Detail)
	}
}

func codeOf(r controller.Result) int {
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

// errNodeAlone is a machine that is no member of its pool although a node says that it is it.
var errNodeAlone = errors.New("there is a node of this machine")

// strictDetail puts a reason in the form that kubeaware-cloudpool-proxy gave it.
func strictDetail(kind controller.Kind, machine string, f *controller.Failure) string {
	const unsafe = "TerminateMachine: machine is not deemed safe to scale down: "
	switch {
	case kind == controller.SetSize && f.Result == controller.BackendUnavailable:
		return "failed to retrieve cloudpool: getMachinePool: " + f.Detail
	case kind == controller.SetSize && f.Result == controller.ClusterUnavailable:
		return "failed to retrieve kubernetes worker nodes: " + f.Detail
	case kind == controller.SetSize:
		return f.Detail
	case errors.Is(f, errNodeAlone):
		return "failed to get cloudpool machine with ID " + machine + ": getMachine " + machine + ": machine not found: "
	case f.Result == controller.NotFound && strings.HasPrefix(f.Detail, controller.TerminationFailed):
		return f.Detail
	case f.Result == controller.NotFound: // it looked for the node first
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

// told answers how an update ended.
func (s *Server) told(w http.ResponseWriter, up *controller.Update) {
	o := up.Outcome
	if up.ID != "" { // there is a PoolUpdate
		w.Header().Set("Slipway-Update", up.ID)
		w.Header().Set("Slipway-Removed", strconv.Itoa(o.Removed))
	}
	switch {
	case o.Result == controller.Done:
		w.WriteHeader(http.StatusOK)
	case s.o.StrictCompat && o.Result == controller.Partial && !controller.HasFailed(up):
		w.WriteHeader(http.StatusOK) // as kubeaware-cloudpool-proxy did: what could be removed is
	case s.o.StrictCompat && up.Kind == controller.SetSize:
		detail := o.Detail
		if controller.HasFailed(up) || o.Result == controller.BackendUnavailable {
			detail = "scale-down failed: " + detail
		}
		say(w, http.StatusInternalServerError, failed(up.Kind), detail)
	default:
		s.refuse(w, up.Kind, up.MachineID, &controller.Failure{Result: o.Result, Detail: o.Detail})
	}
}

// relay answers with what the pool's server, or its cloud, said to an update that was passed on to it in other words, if it refused.
func (s *Server) relay(w http.ResponseWriter, up *controller.Update) {
	a := up.Answer
	switch {
	case a == nil:
		s.told(w, up)
	case s.o.StrictCompat && up.Kind == controller.SetSize:
		detail := up.Outcome.Detail
		if a.Code != 0 {
			detail = a.Message + ": " + a.Detail
		}
		say(w, http.StatusInternalServerError, failed(up.Kind), "failed to request desiredSize against backend cloudpool: "+up.Doing()+": "+detail)
	case a.Code != 0 && (s.o.StrictCompat || !deniesUs(int(a.Code))):
		say(w, int(a.Code), a.Message, a.Detail)
	case a.Code == 0 && up.Outcome.Result != controller.BackendUnavailable:
		say(w, codeOf(up.Outcome.Result), failed(up.Kind), up.Outcome.Detail)
	default:
		say(w, http.StatusBadGateway, "failed to forward request to backend: failed to complete backend cloudpool request", up.Doing()+": "+up.Outcome.Detail)
	}
}
