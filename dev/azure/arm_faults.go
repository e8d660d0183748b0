package azure

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// ARMFaultKind is a kind of ARM failure.
type ARMFaultKind string

// The kinds of faults. The last four apply to accepted deletions, creations and increases of capacity. All others
// apply to requests.
const (
	ARMPass          ARMFaultKind = "pass"           // a healthy response: a pause in a script
	ARMStatus        ARMFaultKind = "status"         // Status with Code and Message in ARM's form, and RetryAfter
	ARMDenied        ARMFaultKind = "denied"         // 403 AuthorizationFailed, which names the action
	ARMThrottled     ARMFaultKind = "throttled"      // 429 with RetryAfter, as compute's and ARM's own limits answer
	ARMBusy          ARMFaultKind = "busy"           // 409: another operation is in progress
	ARMHTML          ARMFaultKind = "html"           // Status (200 if zero) with an HTML page, as from a proxy
	ARMHalf          ARMFaultKind = "half"           // the connection is closed in the middle of the response
	ARMHang          ARMFaultKind = "hang"           // no response until the client gives up
	ARMReset         ARMFaultKind = "reset"          // the connection is closed without a response
	ARMStale         ARMFaultKind = "stale"          // lists of machines are those at the time of injection
	ARMOtherHost     ARMFaultKind = "elsewhere"      // addresses in the response have another host, Message
	ARMDeletionFails ARMFaultKind = "deletion-fails" // the deletion of Resource ends as Failed with Code and Message
	ARMDeletionHangs ARMFaultKind = "deletion-hangs" // the deletion of Resource hangs until the faults are cleared
	ARMCreationFails ARMFaultKind = "creation-fails" // a new machine and its operation end as Failed with Code and Message

	// ARMAllocationFails makes an increase of the scale set Resource end as Failed with Code and Message. The capacity
	// stays increased, and no machine is created. The next request for a capacity, even the same one, creates the
	// machines.
	ARMAllocationFails ARMFaultKind = "allocation-fails"
)

// ARMFaultKinds returns all kinds of faults of ARM.
func ARMFaultKinds() []ARMFaultKind {
	return []ARMFaultKind{
		ARMPass, ARMStatus, ARMDenied, ARMThrottled, ARMBusy, ARMHTML, ARMHalf, ARMHang, ARMReset, ARMStale, ARMOtherHost,
		ARMDeletionFails, ARMDeletionHangs, ARMCreationFails, ARMAllocationFails,
	}
}

// ARMFault makes responses of ARM fail. Active faults form a list. Each request and each deletion gets the first
// fault in the list that matches it. So a list can state what happens to consecutive requests.
type ARMFault struct {
	Kind ARMFaultKind
	// Times is the number of requests or deletions that the fault applies to. For is its lifetime after injection. With
	// neither it applies until the faults are cleared.
	Times int
	For   time.Duration
	// Action restricts the fault to an action, such as Microsoft.Compute/virtualMachineScaleSets/delete/action. A final
	// "*" matches every action with that prefix. Empty matches any action.
	Action string
	// Resource restricts the fault to requests with this path segment, or to the deletion of this machine.
	Resource string
	// Processed makes a request take effect although its response fails.
	Processed  bool
	Status     int
	Code       string
	Message    string
	RetryAfter time.Duration
}

func (f ARMFault) validate() error {
	switch {
	case !slices.Contains(ARMFaultKinds(), f.Kind):
		return fmt.Errorf("kind %q is %w: want one of %v", f.Kind, ErrInvalid, ARMFaultKinds())
	case f.Times < 0:
		return fmt.Errorf("times %d is %w: must be positive", f.Times, ErrInvalid)
	case f.For < 0:
		return fmt.Errorf("for %v is %w: must be a positive duration", f.For, ErrInvalid)
	case f.RetryAfter < 0:
		return fmt.Errorf("retryAfter %v is %w: must be a positive duration", f.RetryAfter, ErrInvalid)
	case f.Kind == ARMStatus && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status %d is %w: must be 400 to 599", f.Status, ErrInvalid)
	case f.Kind == ARMOtherHost && f.Message == "":
		return fmt.Errorf("an elsewhere without a message is %w: set message to the host", ErrInvalid)
	}
	return nil
}

type armedARMFault struct {
	ARMFault
	left  int       // negative means unlimited
	until time.Time // zero means no end
	stale []VM
}

// InjectFaults appends faults to the list of active faults. If a fault is invalid, InjectFaults appends none and
// returns ErrInvalid.
func (a *ARM) InjectFaults(faults ...ARMFault) error {
	for i, f := range faults {
		if err := f.validate(); err != nil {
			return fmt.Errorf("fault %d: %w", i, err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range faults {
		armed := &armedARMFault{ARMFault: f, left: cmp.Or(f.Times, -1)}
		if f.For > 0 {
			armed.until = time.Now().Add(f.For)
		}
		if f.Kind == ARMStale {
			armed.stale = a.listVMsLocked()
		}
		a.faults = append(a.faults, armed)
	}
	return nil
}

// ClearFaults removes all faults. Deletions that hang because of a fault continue.
func (a *ARM) ClearFaults() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = nil
	a.notifyWaitersLocked()
}

// ClearResourceFaults removes the faults that apply only to the given resource.
func (a *ARM) ClearResourceFaults(resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = slices.DeleteFunc(a.faults, func(f *armedARMFault) bool { return f.Resource == resource })
	a.notifyWaitersLocked()
}

// Faults lists the active faults.
func (a *ARM) Faults() []ARMFault {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropExpiredFaultsLocked()
	list := []ARMFault{}
	for _, f := range a.faults {
		list = append(list, f.ARMFault)
	}
	return list
}

func (a *ARM) dropExpiredFaultsLocked() {
	now := time.Now()
	a.faults = slices.DeleteFunc(a.faults, func(f *armedARMFault) bool {
		return f.left == 0 || (!f.until.IsZero() && now.After(f.until))
	})
}

func (f *ARMFault) isDeletionFault() bool {
	return f.Kind == ARMDeletionFails || f.Kind == ARMDeletionHangs
}

func (f *ARMFault) isRequestFault() bool { return !f.isDeletionFault() && !f.isCreationFault() }

func (f *ARMFault) isCreationFault() bool {
	return f.Kind == ARMCreationFails || f.Kind == ARMAllocationFails
}

// takeRequestFault returns the first fault that matches a request, or nil. It counts the request against the fault's
// Times.
func (a *ARM) takeRequestFault(action, path string) *armedARMFault {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropExpiredFaultsLocked()
	for _, f := range a.faults {
		if f.isRequestFault() && f.matchesRequest(action, path) {
			f.left = max(f.left-1, -1)
			return f
		}
	}
	return nil
}

func (f *ARMFault) matchesRequest(action, path string) bool {
	if f.Action != "" {
		prefix, open := strings.CutSuffix(f.Action, "*")
		if len(action) < len(prefix) || !strings.EqualFold(action[:len(prefix)], prefix) || (!open && len(action) != len(prefix)) {
			return false
		}
	}
	if f.Kind == ARMStale && !strings.HasSuffix(path, "achines") {
		return false
	}
	return f.Resource == "" || slices.ContainsFunc(strings.Split(path, "/"), func(segment string) bool {
		return strings.EqualFold(segment, f.Resource)
	})
}

// takeDeletionFaultLocked returns the fault of a machine's deletion, or nil. It counts the deletion against the
// fault's Times, unless the fault makes deletions hang.
func (a *ARM) takeDeletionFaultLocked(resource string) *armedARMFault {
	a.dropExpiredFaultsLocked()
	for _, f := range a.faults {
		if !f.isDeletionFault() || (f.Resource != "" && !strings.EqualFold(f.Resource, resource)) {
			continue
		}
		if f.Kind == ARMDeletionFails {
			f.left = max(f.left-1, -1)
		}
		return f
	}
	return nil
}

// takeCreationFaultLocked returns the fault of a new machine or of an increase of a scale set, or nil. It counts the
// call against the fault's Times.
func (a *ARM) takeCreationFaultLocked(kind ARMFaultKind, resource string) *armedARMFault {
	a.dropExpiredFaultsLocked()
	for _, f := range a.faults {
		if f.Kind == kind && (f.Resource == "" || strings.EqualFold(f.Resource, resource)) {
			f.left = max(f.left-1, -1)
			return f
		}
	}
	return nil
}

// isHandled reports whether the handler still processes a request that has this fault.
func (f *armedARMFault) isHandled() bool {
	return !f.replacesResponse() || f.Processed || f.Kind == ARMHalf || f.Kind == ARMOtherHost
}

// replacesResponse reports whether the client gets a faulty response instead of the handler's response.
func (f *armedARMFault) replacesResponse() bool { return f.Kind != ARMPass && f.Kind != ARMStale }

// writeFaultyResponse writes the response that the fault demands. It returns the HTTP status, or 0 if it sends no
// response.
func (f *armedARMFault) writeFaultyResponse(w http.ResponseWriter, r *http.Request, a *ARM, answer armResponse) (statusCode int) {
	switch f.Kind {
	case ARMHang:
		select {
		case <-r.Context().Done():
		case <-a.emulator.ctx.Done():
		}
		panic(http.ErrAbortHandler)
	case ARMReset:
		panic(http.ErrAbortHandler)
	case ARMHalf:
		body := encodeJSON(answer.body)
		w.Header().Set("Content-Length", fmt.Sprint(len(body)+1))
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(answer.status)
		_, _ = w.Write(body[:len(body)/2])
		panic(http.ErrAbortHandler)
	case ARMHTML:
		status := cmp.Or(f.Status, http.StatusOK)
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		fmt.Fprint(w, "<html><body>This page is not ARM.</body></html>")
		return status
	case ARMOtherHost:
		f.replaceHost(r, &answer)
		a.writeResponse(w, answer)
		return answer.status
	}
	refusal := f.toError(r, a)
	a.writeResponse(w, refusal.toResponse())
	return refusal.Status
}

// replaceHost replaces the host in all addresses of a response: those in headers and in nextLink.
func (f *armedARMFault) replaceHost(r *http.Request, answer *armResponse) {
	for name, values := range answer.header {
		for i := range values {
			answer.header[name][i] = strings.Replace(values[i], r.Host, f.Message, 1)
		}
	}
	if body, ok := answer.body.(map[string]any); ok {
		if link, ok := body["nextLink"].(string); ok {
			body["nextLink"] = strings.Replace(link, r.Host, f.Message, 1)
		}
	}
}

// toError returns the fault as an error in ARM's form.
func (f *armedARMFault) toError(r *http.Request, a *ARM) *armError {
	err := &armError{
		Status: f.Status, Code: cmp.Or(f.Code, "InternalServerError"), RetryAfter: f.RetryAfter,
		Message: cmp.Or(f.Message, "Encountered internal server error. Diagnostic information: timestamp '20260901T120000Z'."),
	}
	switch f.Kind {
	case ARMThrottled:
		err.Status, err.Code = http.StatusTooManyRequests, cmp.Or(f.Code, "TooManyRequests")
		err.Message = cmp.Or(f.Message, "The request is being throttled as the limit has been reached for operation type.")
	case ARMBusy:
		err.Status, err.Code = http.StatusConflict, cmp.Or(f.Code, "OperationNotAllowed")
		err.Message = cmp.Or(f.Message, "Operation is not allowed: Another operation is in progress, please wait for it to finish "+
			"before starting a new operation.")
	case ARMDenied:
		err.Status, err.Code = http.StatusForbidden, "AuthorizationFailed"
		err.Message = fmt.Sprintf("The client '%[1]s' with object id '%[1]s' does not have authorization to perform action '%[2]s' "+
			"over scope '%[3]s' or the scope is invalid. If access was recently granted, please refresh your credentials.",
			DefaultTenant, a.requestAction(r), r.URL.Path)
	}
	return err
}

func (a *ARM) requestAction(r *http.Request) string {
	for _, route := range a.routes() {
		method, path, _ := strings.Cut(route.pattern, " ")
		if r.Pattern == method+" /subscriptions/{subscription}"+path {
			return route.action
		}
	}
	return ""
}

// staleKey is the context key of the outdated list of machines that a request gets.
type staleKey struct{}

func withStaleVMs(r *http.Request, f *armedARMFault) *http.Request {
	if f == nil || f.Kind != ARMStale {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), staleKey{}, f.stale))
}

// staleVMs returns the outdated list of machines that a request gets, or nil if the request gets the current list.
func staleVMs(r *http.Request) []VM {
	machines, _ := r.Context().Value(staleKey{}).([]VM)
	return machines
}
