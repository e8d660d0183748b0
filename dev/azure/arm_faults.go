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

// ARMFaultKind is a way in which ARM fails.
type ARMFaultKind string

// The kinds of faults. The last four are of deletions, creations and raises that were accepted, the others of requests.
const (
	ARMPass          ARMFaultKind = "pass"           // a healthy answer: a pause in a script
	ARMStatus        ARMFaultKind = "status"         // Status with Code and Message in ARM's form, and RetryAfter
	ARMDenied        ARMFaultKind = "denied"         // 403 AuthorizationFailed, which names the action
	ARMThrottled     ARMFaultKind = "throttled"      // 429 with RetryAfter, as compute's and ARM's own limits answer
	ARMBusy          ARMFaultKind = "busy"           // 409: another operation is in progress
	ARMHTML          ARMFaultKind = "html"           // Status (200 when zero) with a page of HTML, as from a proxy
	ARMHalf          ARMFaultKind = "half"           // the connection is closed in the middle of the answer
	ARMHang          ARMFaultKind = "hang"           // no answer until the client gives up
	ARMReset         ARMFaultKind = "reset"          // the connection is closed without an answer
	ARMStale         ARMFaultKind = "stale"          // lists of machines are as they were when the fault was injected
	ARMElsewhere     ARMFaultKind = "elsewhere"      // addresses to ask next are those of another host, Message
	ARMDeletionFails ARMFaultKind = "deletion-fails" // the deletion of Resource ends as Failed with Code and Message
	ARMDeletionHangs ARMFaultKind = "deletion-hangs" // the deletion of Resource does not end until the faults are cleared
	ARMCreationFails ARMFaultKind = "creation-fails" // a new machine, and its operation, end as Failed with Code and Message

	// ARMAllocationFails has a raise of the scale set Resource end as Failed with Code and Message. The capacity stays raised,
	// and no machine is made; machines are made when a capacity is asked for once more, the same one too.
	ARMAllocationFails ARMFaultKind = "allocation-fails"
)

// ARMFaultKinds lists the known kinds.
func ARMFaultKinds() []ARMFaultKind {
	return []ARMFaultKind{
		ARMPass, ARMStatus, ARMDenied, ARMThrottled, ARMBusy, ARMHTML, ARMHalf, ARMHang, ARMReset, ARMStale, ARMElsewhere,
		ARMDeletionFails, ARMDeletionHangs, ARMCreationFails, ARMAllocationFails,
	}
}

// ARMFault is an instruction to spoil answers of ARM. Faults stand in a list; each request, and each deletion, is served
// by the first one that concerns it, so that a list is also a script.
type ARMFault struct {
	Kind ARMFaultKind
	// Times is how many requests or deletions the fault serves, and For how long it lasts from when it is injected.
	// With neither it serves until the faults are cleared.
	Times int
	For   time.Duration
	// Action restricts the fault to requests of an action, such as Microsoft.Compute/virtualMachineScaleSets/delete/action,
	// or of those that begin with it when it ends in "*". Empty is any.
	Action string
	// Resource restricts it to requests with that segment in their path, or deletions of the machine of that name.
	Resource string
	// Processed makes a request take effect although its answer is spoiled.
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
		return fmt.Errorf("times %d is %w: want a positive number", f.Times, ErrInvalid)
	case f.For < 0:
		return fmt.Errorf("for %v is %w: want a positive duration", f.For, ErrInvalid)
	case f.RetryAfter < 0:
		return fmt.Errorf("retryAfter %v is %w: want a positive duration", f.RetryAfter, ErrInvalid)
	case f.Kind == ARMStatus && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status %d is %w: want one from 400 to 599", f.Status, ErrInvalid)
	case f.Kind == ARMElsewhere && f.Message == "":
		return fmt.Errorf("an elsewhere without a message is %w: give the host in it", ErrInvalid)
	}
	return nil
}

type armedARMFault struct {
	ARMFault
	left  int       // negative is any number
	until time.Time // zero is for ever
	stale []VM
}

// Inject appends faults to the list. One that is not usable is ErrInvalid, and then none is appended.
func (a *ARM) Inject(faults ...ARMFault) error {
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
			armed.stale = a.machinesLocked()
		}
		a.faults = append(a.faults, armed)
	}
	return nil
}

// ClearFaults removes all faults. Deletions that hang go on.
func (a *ARM) ClearFaults() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = nil
	a.announceLocked()
}

// Relent removes the faults that are restricted to a resource.
func (a *ARM) Relent(resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = slices.DeleteFunc(a.faults, func(f *armedARMFault) bool { return f.Resource == resource })
	a.announceLocked()
}

// Faults lists the faults that are not over.
func (a *ARM) Faults() []ARMFault {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropOverLocked()
	list := []ARMFault{}
	for _, f := range a.faults {
		list = append(list, f.ARMFault)
	}
	return list
}

func (a *ARM) dropOverLocked() {
	now := time.Now()
	a.faults = slices.DeleteFunc(a.faults, func(f *armedARMFault) bool {
		return f.left == 0 || (!f.until.IsZero() && now.After(f.until))
	})
}

// ofDeletion reports whether a fault is one of deletions.
func (f *ARMFault) ofDeletion() bool { return f.Kind == ARMDeletionFails || f.Kind == ARMDeletionHangs }

// ofRequest reports whether a fault is one of requests.
func (f *ARMFault) ofRequest() bool { return !f.ofDeletion() && !f.ofCreation() }

// ofCreation reports whether a fault is one of machines that are to be made.
func (f *ARMFault) ofCreation() bool {
	return f.Kind == ARMCreationFails || f.Kind == ARMAllocationFails
}

// takeFault gives the fault that serves a request, if any.
func (a *ARM) takeFault(action, path string) *armedARMFault {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropOverLocked()
	for _, f := range a.faults {
		if f.ofRequest() && f.concerns(action, path) {
			f.left = max(f.left-1, -1)
			return f
		}
	}
	return nil
}

func (f *ARMFault) concerns(action, path string) bool {
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

// takeDeletionFaultLocked gives the fault of a machine's deletion. One that hangs is not used up by being looked at.
func (a *ARM) takeDeletionFaultLocked(resource string) *armedARMFault {
	a.dropOverLocked()
	for _, f := range a.faults {
		if !f.ofDeletion() || (f.Resource != "" && !strings.EqualFold(f.Resource, resource)) {
			continue
		}
		if f.Kind == ARMDeletionFails {
			f.left = max(f.left-1, -1)
		}
		return f
	}
	return nil
}

// takeCreationFaultLocked gives the fault of a new machine, or of the raise of a scale set.
func (a *ARM) takeCreationFaultLocked(kind ARMFaultKind, resource string) *armedARMFault {
	a.dropOverLocked()
	for _, f := range a.faults {
		if f.Kind == kind && (f.Resource == "" || strings.EqualFold(f.Resource, resource)) {
			f.left = max(f.left-1, -1)
			return f
		}
	}
	return nil
}

// passes reports whether the request is handled in spite of the fault.
func (f *armedARMFault) passes() bool {
	return !f.spoils() || f.Processed || f.Kind == ARMHalf || f.Kind == ARMElsewhere
}

// spoils reports whether the answer is not the one of the handler.
func (f *armedARMFault) spoils() bool { return f.Kind != ARMPass && f.Kind != ARMStale }

// serve gives the spoiled answer, and its status: 0 for none.
func (f *armedARMFault) serve(w http.ResponseWriter, r *http.Request, a *ARM, answer armAnswer) int {
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
		body := marshal(answer.body)
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
	case ARMElsewhere:
		f.redirect(r, &answer)
		a.send(w, answer)
		return answer.status
	}
	refusal := f.refusal(r, a)
	a.send(w, refusal.answer())
	return refusal.Status
}

// redirect makes every address in an answer one of another host.
func (f *armedARMFault) redirect(r *http.Request, answer *armAnswer) {
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

// refusal is the fault as an error in ARM's form.
func (f *armedARMFault) refusal(r *http.Request, a *ARM) *armError {
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
			DefaultTenant, a.actionOf(r), r.URL.Path)
	}
	return err
}

func (a *ARM) actionOf(r *http.Request) string {
	for _, route := range a.routes() {
		method, path, _ := strings.Cut(route.pattern, " ")
		if r.Pattern == method+" /subscriptions/{subscription}"+path {
			return route.action
		}
	}
	return ""
}

// staleKey is the key of what a stale list shows in a request's context.
type staleKey struct{}

func withStale(r *http.Request, f *armedARMFault) *http.Request {
	if f == nil || f.Kind != ARMStale {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), staleKey{}, f.stale))
}

// staleMachines gives the machines that a stale list shows; nil when the list is not stale.
func staleMachines(r *http.Request) []VM {
	machines, _ := r.Context().Value(staleKey{}).([]VM)
	return machines
}
