package azure

import (
	"errors"
	"fmt"
	"net/http"
)

// registerSimulateEvictionRoutes adds the ARM requests that evict a Spot machine, in both forms:
//
//	POST /subscriptions/{s}/resourceGroups/{g}/providers/Microsoft.Compute/virtualMachineScaleSets/{set}/virtualMachines/{i}/simulateEviction
//	POST /subscriptions/{s}/resourceGroups/{g}/providers/Microsoft.Compute/virtualMachines/{vm}/simulateEviction
//
// The response is 204. A Preempt appears in Scheduled Events with the notice of its type, 30 s by default.
func (e *Emulator) registerSimulateEvictionRoutes(mux *http.ServeMux) {
	const group = "POST /subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute/"
	mux.HandleFunc(group+"virtualMachineScaleSets/{set}/virtualMachines/{instance}/simulateEviction",
		func(w http.ResponseWriter, r *http.Request) {
			e.serveSimulateEviction(w, r, r.PathValue("set"), r.PathValue("set")+"_"+r.PathValue("instance")) //nolint:contextcheck // the event outlives the request
		})
	mux.HandleFunc(group+"virtualMachines/{vm}/simulateEviction", func(w http.ResponseWriter, r *http.Request) {
		e.serveSimulateEviction(w, r, "", r.PathValue("vm")) //nolint:contextcheck // the event outlives the request
	})
}

// serveSimulateEviction serves the plain address, which needs neither TLS nor a token.
func (e *Emulator) serveSimulateEviction(w http.ResponseWriter, r *http.Request, set, resource string) {
	if r.URL.Query().Get("api-version") == "" {
		sendARMError(w, &armError{
			Status: http.StatusBadRequest, Code: "MissingApiVersionParameter",
			Message: "The api-version query parameter (?api-version=) is required for all requests.",
		})
		return
	}
	if err := e.simulateEviction(set, resource); err != nil {
		sendARMError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (e *Emulator) simulateEviction(set, resource string) *armError {
	_, err := e.Announce(Announcement{ScaleSet: set, Type: Preempt, Resources: []string{resource}})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrUnknownScaleSet):
		return newNotFoundError("Microsoft.Compute/virtualMachines", resource)
	}
	return &armError{Status: httpStatus(err), Code: "OperationNotAllowed", Message: err.Error()}
}

// evictInstance and evictVM serve ARM itself: the machine must exist, have priority Spot, and run.
func (a *ARM) evictInstance(r *http.Request) (armResponse, *armError) {
	return a.serveEviction(r, a.findRequestedInstanceLocked)
}

func (a *ARM) evictVM(r *http.Request) (armResponse, *armError) {
	return a.serveEviction(r, a.findRequestedVMLocked)
}

func (a *ARM) serveEviction(r *http.Request, find func(*http.Request) (*armVM, *armError)) (armResponse, *armError) {
	a.mu.Lock()
	m, failed := find(r)
	var vm VM
	if failed == nil {
		vm = m.VM
	}
	a.mu.Unlock()
	switch {
	case failed != nil:
		return armResponse{}, failed
	case !vm.Spot || vm.Power != Running:
		return armResponse{}, &armError{Status: http.StatusConflict, Code: "OperationNotAllowed", Message: fmt.Sprintf(
			"Simulate Eviction is not allowed on VM %s: it must have priority Spot and be running.", vm.Resource)}
	}
	if err := a.emulator.simulateEviction(vm.ScaleSet, vm.Resource); err != nil {
		return armResponse{}, err
	}
	return armResponse{status: http.StatusNoContent}, nil
}

func sendARMError(w http.ResponseWriter, err *armError) {
	response{status: err.Status, body: encodeJSON(err.body())}.writeTo(w)
}
