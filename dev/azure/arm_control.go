package azure

import (
	"fmt"
	"net/http"
	"time"
)

// registerControlRoutes adds the control API of ARM, in addition to the API of events:
//
//	GET    /emulator/arm/state                         machines, scale sets' capacities and agent pools
//	GET    /emulator/arm/requests                      the requests so far, by action
//	POST   /emulator/arm/machines/{name}/lose          remove a machine as an eviction does
//	GET    /emulator/arm/faults                        the active faults
//	POST   /emulator/arm/faults                        inject one, or a list: {"kind":"throttled","retryAfter":"7s","times":3}
//	DELETE /emulator/arm/faults                        remove all faults; hanging deletions continue
//	POST   /emulator/arm/operations/forget             make all operations unknown
func (a *ARM) registerControlRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /emulator/arm/state", func(w http.ResponseWriter, _ *http.Request) { writeReply(w, a.State(), nil) })
	mux.HandleFunc("GET /emulator/arm/requests", func(w http.ResponseWriter, _ *http.Request) {
		writeReply(w, a.Requests(), nil)
	})
	mux.HandleFunc("POST /emulator/arm/machines/{name}/lose", func(w http.ResponseWriter, r *http.Request) {
		writeReply(w, struct{}{}, a.RemoveVM(r.Context(), r.PathValue("name")))
	})
	mux.HandleFunc("GET /emulator/arm/faults", func(w http.ResponseWriter, _ *http.Request) {
		writeReply(w, toFaultsJSON(a.Faults()), nil)
	})
	mux.HandleFunc("POST /emulator/arm/faults", a.serveInjectFaults)
	mux.HandleFunc("DELETE /emulator/arm/faults", func(w http.ResponseWriter, _ *http.Request) {
		a.ClearFaults()
		writeReply(w, toFaultsJSON(nil), nil)
	})
	mux.HandleFunc("POST /emulator/arm/operations/forget", func(w http.ResponseWriter, _ *http.Request) {
		a.ForgetOperations()
		writeReply(w, struct{}{}, nil)
	})
}

// ARMState is the state of an ARM at one moment.
type ARMState struct {
	At         time.Time      `json:"at"`
	Capacities map[string]int `json:"capacities"`
	AgentPools []AgentPool    `json:"agentPools"`
	Machines   []VM           `json:"machines"`
}

// State returns a snapshot. It shares only the machines' tags with the emulator.
func (a *ARM) State() ARMState {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := ARMState{At: time.Now(), Capacities: map[string]int{}, AgentPools: []AgentPool{}, Machines: a.listVMsLocked()}
	for _, set := range a.sets {
		s.Capacities[set.Name] = set.capacity
	}
	for _, pool := range a.pools {
		s.AgentPools = append(s.AgentPools, pool.toAgentPool())
	}
	return s
}

// armFaultJSON is the JSON form of an ARMFault.
type armFaultJSON struct {
	Kind       ARMFaultKind `json:"kind"`
	Times      int          `json:"times,omitempty"`
	For        string       `json:"for,omitempty"`
	Action     string       `json:"action,omitempty"`
	Resource   string       `json:"resource,omitempty"`
	Processed  bool         `json:"processed,omitempty"`
	Status     int          `json:"status,omitempty"`
	Code       string       `json:"code,omitempty"`
	Message    string       `json:"message,omitempty"`
	RetryAfter string       `json:"retryAfter,omitempty"`
}

func toFaultsJSON(faults []ARMFault) []armFaultJSON {
	list := make([]armFaultJSON, 0, len(faults))
	for _, f := range faults {
		j := armFaultJSON{
			Kind: f.Kind, Times: f.Times, Action: f.Action, Resource: f.Resource, Processed: f.Processed, Status: f.Status,
			Code: f.Code, Message: f.Message,
		}
		if f.For > 0 {
			j.For = f.For.String()
		}
		if f.RetryAfter > 0 {
			j.RetryAfter = f.RetryAfter.String()
		}
		list = append(list, j)
	}
	return list
}

// ParseARMFaults parses one fault or a list of faults. Every error is ErrInvalid and names the field.
func ParseARMFaults(body []byte) ([]ARMFault, error) {
	list, err := parseOneOrMore[armFaultJSON](body)
	if err != nil {
		return nil, fmt.Errorf("faults are %w: %w", ErrInvalid, err)
	}
	faults := make([]ARMFault, len(list))
	for i, j := range list {
		f := ARMFault{
			Kind: j.Kind, Times: j.Times, Action: j.Action, Resource: j.Resource, Processed: j.Processed, Status: j.Status,
			Code: j.Code, Message: j.Message,
		}
		if f.For, err = parseDuration("for", j.For); err == nil {
			f.RetryAfter, err = parseDuration("retryAfter", j.RetryAfter)
		}
		if err == nil {
			err = f.validate()
		}
		if err != nil {
			return nil, fmt.Errorf("fault %d: %w", i, err)
		}
		faults[i] = f
	}
	return faults, nil
}

func (a *ARM) serveInjectFaults(w http.ResponseWriter, r *http.Request) {
	body, err := readControlBody(r)
	if err != nil {
		writeReply(w, nil, err)
		return
	}
	faults, err := ParseARMFaults(body)
	if err == nil {
		err = a.InjectFaults(faults...)
	}
	writeReply(w, toFaultsJSON(a.Faults()), err)
}
