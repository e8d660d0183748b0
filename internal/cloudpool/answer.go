package cloudpool

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

// say answers with an error in the API's form.
func say(w http.ResponseWriter, code int, message, detail string) {
	raw, err := json.MarshalIndent(api.ErrorMessage{Message: message, Detail: detail}, "", "  ")
	if err != nil {
		raw = []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(raw)
}

// show answers with an object.
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

// What is looked at and becomes no update: requests of no Kind that a metric counts.
const (
	detachMachine       = "detachMachine"
	setMembershipStatus = "setMembershipStatus"
)

// failed is the message of a request that failed. Of sizes and terminations it is what kubeaware-cloudpool-proxy said, which
// looked at nothing else.
func failed(k Kind) string {
	switch k {
	case SetSize:
		return "failed to set desired size"
	case detachMachine:
		return "failed to detach machine"
	case setMembershipStatus, Dispose:
		return "failed to set membership status"
	}
	return "failed to terminate machine"
}

// retrySeconds is when to ask again for a pool that is being updated.
const retrySeconds = 5

// refuse answers a request that was not carried out.
func (s *Server) refuse(w http.ResponseWriter, kind Kind, machine string, err error) {
	var busy *BusyError
	var badRequest *api.BadRequest
	var f *Failure
	switch {
	case errors.As(err, &badRequest):
		say(w, http.StatusBadRequest, badRequest.Message, badRequest.Detail)
	case errors.As(err, &busy):
		w.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
		say(w, http.StatusTooManyRequests, failed(kind), busy.Error())
	default:
		if !errors.As(err, &f) {
			f = &Failure{Result: resultOf(err), Detail: err.Error(), Err: err}
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

// codeOf says a result in HTTP.
func codeOf(r Result) int {
	switch r {
	case Done:
		return http.StatusOK
	case NotFound:
		return http.StatusNotFound
	case NotPossible, Partly:
		return http.StatusConflict
	case BackendAway:
		return http.StatusBadGateway
	case ClusterAway:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// errNodeAlone is a machine that is no member of its pool although a node says that it is it.
var errNodeAlone = errors.New("there is a node of this machine")

// nodeAlone reports whether there is a node of a machine that the pool does not have.
func nodeAlone(f *Front, machine string) bool {
	identity, ok := f.Backend.Identity(&api.Machine{ID: machine})
	nodes, err := f.Updater.o.Cluster.Nodes()
	if err != nil || !ok {
		return false
	}
	return slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		is, err := f.Backend.NodeIdentity(n.Spec.ProviderID)
		return err == nil && is == identity
	})
}

// strictDetail puts a reason in the form that kubeaware-cloudpool-proxy gave it.
func strictDetail(kind Kind, machine string, f *Failure) string {
	const unsafe = "TerminateMachine: machine is not deemed safe to scale down: "
	switch {
	case kind == SetSize && f.Result == BackendAway:
		return "failed to retrieve cloudpool: getMachinePool: " + f.Detail
	case kind == SetSize && f.Result == ClusterAway:
		return "failed to retrieve kubernetes worker nodes: " + f.Detail
	case kind == SetSize:
		return f.Detail
	case errors.Is(f, errNodeAlone):
		return "failed to get cloudpool machine with ID " + machine + ": getMachine " + machine + ": machine not found: "
	case f.Result == NotFound: // it looked for the node first
		return "no kubernetes node with external ID " + machine + " exists"
	case f.Result == ClusterAway:
		return "failed to get nodes: " + f.Detail
	case f.Result == NotPossible && strings.Contains(f.Detail, ruleRegistering):
		return "no kubernetes node with external ID " + machine + " exists"
	case f.Result == NotPossible:
		return unsafe + f.Detail
	}
	return f.Detail
}

// told answers how an update ended.
func (s *Server) told(w http.ResponseWriter, up *Update) {
	w.Header().Set("Slipway-Update", up.ID)
	o := up.Outcome
	w.Header().Set("Slipway-Removed", strconv.Itoa(o.Removed))
	switch {
	case o.Result == Done:
		w.WriteHeader(http.StatusOK)
	case s.o.StrictCompat && o.Result == Partly && !hasFailed(up):
		w.WriteHeader(http.StatusOK) // as kubeaware-cloudpool-proxy did: what could be removed is
	case s.o.StrictCompat && up.Kind == SetSize:
		detail := o.Detail
		if hasFailed(up) || o.Result == BackendAway {
			detail = "scale-down failed: " + detail
		}
		say(w, http.StatusInternalServerError, failed(up.Kind), detail)
	default:
		s.refuse(w, up.Kind, up.MachineID, &Failure{Result: o.Result, Detail: o.Detail})
	}
}

// hasFailed reports an update of which a machine was to go and did not.
func hasFailed(up *Update) bool {
	for _, t := range up.Turns {
		if t.State == Refused {
			return true
		}
	}
	return false
}

// relay answers with what the server said to a request that was passed on to it in other words.
func (s *Server) relay(w http.ResponseWriter, kind Kind, doing string, err error) {
	status := api.AsStatus(err)
	switch {
	case err == nil:
		w.WriteHeader(http.StatusOK)
	case s.o.StrictCompat && kind == SetSize:
		detail := err.Error()
		if status != nil {
			detail = fmt.Sprintf("%s: %s", status.Message, status.Detail)
		}
		say(w, http.StatusInternalServerError, failed(kind), "failed to request desiredSize against backend cloudpool: "+doing+": "+detail)
	case status != nil && status.Own && status.Code >= 400 && status.Code < 600 && (s.o.StrictCompat || !deniesUs(status.Code)):
		say(w, status.Code, status.Message, status.Detail)
	case cloud.RefusalOf(err) == cloud.AtLimit, cloud.RefusalOf(err) == cloud.Invalid:
		say(w, http.StatusBadRequest, "illegal input: "+doing, err.Error())
	case resultOf(err) == NotFound, resultOf(err) == NotPossible, resultOf(err) == ClusterAway:
		say(w, codeOf(resultOf(err)), failed(kind), err.Error())
	default:
		say(w, http.StatusBadGateway, "failed to forward request to backend: failed to complete backend cloudpool request", doing+": "+err.Error())
	}
}
