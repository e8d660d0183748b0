package cloudpool

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// FaultKind is a kind of backend failure.
type FaultKind string

// The kinds of failures. The first ones apply to requests.
const (
	Status    FaultKind = "status"   // Fault.Status, with a message in the API's form
	HTML      FaultKind = "html"     // an HTML page, with Fault.Status or 200
	Redirect  FaultKind = "redirect" // Fault.Status or 302, to Fault.Location
	Half      FaultKind = "half"     // the first half of the response
	Reset     FaultKind = "reset"    // no response
	Hang      FaultKind = "hang"     // no response until the client disconnects or Heal is called
	Throttled FaultKind = "throttled"
	// LoseResponse means that the request takes effect, but the response does not arrive.
	LoseResponse FaultKind = "lost"

	TerminationFails FaultKind = "termination-fails" // Fault.Machine stays, although its termination was accepted
	TerminationHangs FaultKind = "termination-hangs" // Fault.Machine stays TERMINATING
	Stale            FaultKind = "stale"             // reads are up to Fault.After old; with 0 they stay as they are now
)

// Fault is a failure to inject.
type Fault struct {
	Kind FaultKind
	// Method and Path select requests. Empty selects all. Path is a suffix, such as /pool/terminate.
	Method, Path string
	// Skip is the number of matching requests that succeed first. Times is the number that fail; 0 means all.
	Skip, Times int
	Status      int
	Message     string
	Location    string
	After       time.Duration
	Machine     string
}

type armedFault struct {
	Fault
	seen, done int
	healed     chan struct{}
}

// InjectFaults adds faults until Heal.
func (p *Pool) InjectFaults(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range faults {
		fault := &armedFault{Fault: f, healed: make(chan struct{})}
		if f.Kind == Stale {
			p.cachedObservationLocked()
			p.stale = fault
		}
		p.faults = append(p.faults, fault)
	}
	p.notifyWaitersLocked()
}

// ClearFaults removes all faults.
func (p *Pool) ClearFaults() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		close(f.healed)
	}
	p.faults, p.stale, p.cache = nil, nil, nil
	p.notifyWaitersLocked()
}

func (p *Pool) hasFaultLocked(kind FaultKind, machine string) bool {
	return slices.ContainsFunc(p.faults, func(f *armedFault) bool { return f.Kind == kind && f.Machine == machine })
}

// takeRequestFaultLocked returns the fault that applies to a request, or nil.
func (p *Pool) takeRequestFaultLocked(r *http.Request) *armedFault {
	for _, f := range p.faults {
		if f.Machine != "" || f.Kind == Stale || f.Method != "" && f.Method != r.Method || !strings.HasSuffix(r.URL.Path, f.Path) {
			continue
		}
		f.seen++
		if f.seen <= f.Skip || f.Times > 0 && f.done >= f.Times {
			continue
		}
		f.done++
		return f
	}
	return nil
}

// writeFaultyResponse writes the faulty response.
func (f *armedFault) writeFaultyResponse(w http.ResponseWriter, r *http.Request) {
	code := func(fallback int) int {
		if f.Status != 0 {
			return f.Status
		}
		return fallback
	}
	switch f.Kind {
	case HTML:
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(code(http.StatusOK))
		fmt.Fprint(w, "<html><body>This page is no cloudpool.</body></html>")
	case Redirect:
		w.Header().Set("Location", f.Location)
		w.WriteHeader(code(http.StatusFound))
	case Half:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "400")
		fmt.Fprint(w, `{"timestamp":"2026-01-01T00:00:00.000Z","machines":[{"id":"i-`)
		panic(http.ErrAbortHandler)
	case Reset:
		panic(http.ErrAbortHandler)
	case Hang:
		select {
		case <-r.Context().Done():
		case <-f.healed:
		}
		panic(http.ErrAbortHandler)
	case Throttled:
		w.Header().Set("Retry-After", fmt.Sprint(int(f.After.Seconds())))
		writeError(w, code(http.StatusTooManyRequests), "too many requests")
	default:
		message := f.Message
		if message == "" {
			message = "internal error"
		}
		writeError(w, code(http.StatusInternalServerError), "%s", message)
	}
}
