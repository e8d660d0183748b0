package azure

import (
	"errors"
	"fmt"
	"net/http"
)

// The part of Azure Resource Manager that announces the end of a Spot machine, in both of its forms:
//
//	POST /subscriptions/{s}/resourceGroups/{g}/providers/Microsoft.Compute/virtualMachineScaleSets/{set}/virtualMachines/{i}/simulateEviction
//	POST /subscriptions/{s}/resourceGroups/{g}/providers/Microsoft.Compute/virtualMachines/{vm}/simulateEviction
//
// The answer is 204, and a Preempt appears in Scheduled Events with the notice of its type, 30 s unless configured.
func (e *Emulator) routeSimulateEviction(mux *http.ServeMux) {
	const group = "POST /subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute/"
	mux.HandleFunc(group+"virtualMachineScaleSets/{set}/virtualMachines/{instance}/simulateEviction",
		func(w http.ResponseWriter, r *http.Request) {
			e.serveSimulateEviction(w, r, r.PathValue("set"), r.PathValue("set")+"_"+r.PathValue("instance"))
		})
	mux.HandleFunc(group+"virtualMachines/{vm}/simulateEviction", func(w http.ResponseWriter, r *http.Request) {
		e.serveSimulateEviction(w, r, "", r.PathValue("vm"))
	})
}

func (e *Emulator) serveSimulateEviction(w http.ResponseWriter, r *http.Request, set, resource string) {
	if r.URL.Query().Get("api-version") == "" {
		armError(w, http.StatusBadRequest, "MissingApiVersionParameter",
			"The api-version query parameter (?api-version=) is required for all requests.")
		return
	}
	_, err := e.Announce(Announcement{ScaleSet: set, Type: Preempt, Resources: []string{resource}})
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, ErrUnknownScaleSet):
		armError(w, http.StatusNotFound, "ResourceNotFound", fmt.Sprintf("The machine %q was not found: %v", resource, err))
	default:
		armError(w, statusOf(err), "OperationNotAllowed", err.Error())
	}
}

// armError answers as Azure Resource Manager does
// (https://learn.microsoft.com/azure/azure-resource-manager/management/resource-manager-async-operations).
func armError(w http.ResponseWriter, status int, code, message string) {
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	body.Error.Code, body.Error.Message = code, message
	answer{status: status, body: marshal(body)}.send(w)
}
