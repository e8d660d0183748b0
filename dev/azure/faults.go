package azure

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FaultKind is a kind of failure of the metadata service.
type FaultKind string

const (
	FaultNone   FaultKind = "none"   // a healthy response: a pause in a script
	FaultStatus FaultKind = "status" // Status with a JSON error, such as 429, 410, 500 or 503
	FaultHTML   FaultKind = "html"   // 200 with an HTML page, as from a captive portal
	FaultHalf   FaultKind = "half"   // the connection is closed in the middle of the document
	FaultField  FaultKind = "field"  // the document with Field set to Value
	FaultHuge   FaultKind = "huge"   // the document, padded to Size bytes with events of other machines
	FaultEmpty  FaultKind = "empty"  // 200 without a body
	FaultHang   FaultKind = "hang"   // no response until the client gives up
	FaultReset  FaultKind = "reset"  // the connection is reset without a response
)

// FaultKinds returns all kinds of faults of the metadata service.
func FaultKinds() []FaultKind {
	return []FaultKind{
		FaultNone, FaultStatus, FaultHTML, FaultHalf, FaultField, FaultHuge, FaultEmpty, FaultHang, FaultReset,
	}
}

// DefaultHugeSize is the default size, in bytes, of the document that a FaultHuge returns.
const DefaultHugeSize = 10 << 20

// maxHugeSize is the maximum size, in bytes, of the document that a FaultHuge returns. The emulator builds this
// document in memory.
const maxHugeSize = 256 << 20

// Fault makes responses of the metadata service fail. Active faults form a list. Each request gets the first fault
// in the list that matches it. So a list can state what happens to consecutive requests.
type Fault struct {
	Kind FaultKind
	// Times is the number of requests that the fault applies to. For is its lifetime after injection. With neither it
	// applies to one request; with both it ends when either is used up.
	Times int
	For   time.Duration

	// Method, ScaleSet and Machine restrict the fault to matching requests. Empty matches any. Machine is known only if
	// it is in the request's path. ScaleSet and Machine ignore letter case.
	Method   string
	ScaleSet string
	Machine  string

	// Processed makes a POST take effect although its response fails. Otherwise nothing is approved.
	Processed bool
	// Status is the status of FaultStatus, 400 to 599. RetryAfter is its Retry-After header; zero means none.
	Status     int
	RetryAfter time.Duration
	// Field is the field that FaultField changes, in the document or in each of its events. Empty means all fields. Value
	// is the new JSON value; nil means a value of a wrong type.
	Field string
	Value json.RawMessage
	// Size is the minimum size of a FaultHuge in bytes. Zero means DefaultHugeSize.
	Size int
}

func (f Fault) validate() error {
	switch {
	case !slices.Contains(FaultKinds(), f.Kind):
		return fmt.Errorf("kind %q is %w: want one of %v", f.Kind, ErrInvalid, FaultKinds())
	case f.Times < 0:
		return fmt.Errorf("times %d is %w: must be positive", f.Times, ErrInvalid)
	case f.For < 0:
		return fmt.Errorf("for %v is %w: must be a positive duration", f.For, ErrInvalid)
	case f.Method != "" && f.Method != http.MethodGet && f.Method != http.MethodPost:
		return fmt.Errorf("method %q is %w: must be GET, POST or empty for both", f.Method, ErrInvalid)
	case f.Kind == FaultStatus && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status %d is %w: must be 400 to 599", f.Status, ErrInvalid)
	case f.RetryAfter < 0:
		return fmt.Errorf("retryAfter %v is %w: must be a positive duration", f.RetryAfter, ErrInvalid)
	case f.Field != "" && !slices.Contains(documentFields(), f.Field):
		return fmt.Errorf("field %q is %w: want one of %v", f.Field, ErrInvalid, documentFields())
	case f.Value != nil && f.Field == "":
		return fmt.Errorf("a value without a field is %w: set field to one of %v", ErrInvalid, documentFields())
	case f.Value != nil && !json.Valid(f.Value):
		return fmt.Errorf("value %q is %w: must be JSON", f.Value, ErrInvalid)
	case f.Size < 0 || f.Size > maxHugeSize:
		return fmt.Errorf("size %d is %w: must be 0 to %d bytes", f.Size, ErrInvalid, maxHugeSize)
	}
	return nil
}

type armedFault struct {
	Fault
	left  int       // remaining requests; negative means unlimited
	until time.Time // zero means no end
}

// InjectFaults appends faults to the list of active faults. If a fault is invalid, InjectFaults appends none and
// returns ErrInvalid.
func (e *Emulator) InjectFaults(faults ...Fault) error {
	armed := make([]*armedFault, len(faults))
	now := time.Now()
	for i, f := range faults {
		if err := f.validate(); err != nil {
			return fmt.Errorf("fault %d: %w", i, err)
		}
		a := &armedFault{Fault: f, left: f.Times}
		if f.For > 0 {
			a.until = now.Add(f.For)
		}
		if f.Times == 0 {
			a.left = 1
			if f.For > 0 {
				a.left = -1
			}
		}
		armed[i] = a
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = append(e.faults, armed...)
	return nil
}

// Faults lists the active faults. Their fields Times and For hold what remains.
func (e *Emulator) Faults() []Fault {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	e.dropExpiredFaultsLocked(now)
	faults := []Fault{}
	for _, a := range e.faults {
		f := a.Fault
		f.Times = max(a.left, 0)
		if !a.until.IsZero() {
			f.For = a.until.Sub(now)
		}
		faults = append(faults, f)
	}
	return faults
}

// ClearFaults removes all faults. Requests that hang now continue to hang.
func (e *Emulator) ClearFaults() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = nil
}

// faultTarget holds the properties of a request that decide which faults apply to it.
type faultTarget struct{ method, scaleSet, machine string }

func (f Fault) matches(t faultTarget) bool {
	return (f.Method == "" || f.Method == t.method) &&
		(f.ScaleSet == "" || strings.EqualFold(f.ScaleSet, t.scaleSet)) &&
		(f.Machine == "" || strings.EqualFold(f.Machine, t.machine))
}

// takeRequestFault returns the first fault that matches a request, and reports whether there is one. It counts the
// request against the fault's Times.
func (e *Emulator) takeRequestFault(t faultTarget) (fault Fault, active bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dropExpiredFaultsLocked(time.Now())
	for _, a := range e.faults {
		if !a.matches(t) {
			continue
		}
		if a.left > 0 {
			a.left--
		}
		return a.Fault, a.Kind != FaultNone
	}
	return Fault{}, false
}

func (e *Emulator) dropExpiredFaultsLocked(now time.Time) {
	e.faults = slices.DeleteFunc(e.faults, func(a *armedFault) bool {
		return a.left == 0 || (!a.until.IsZero() && !now.Before(a.until))
	})
}

// writeFaultyResponse writes the response that the fault demands. The response a is what the client would get
// without the fault. It is empty for a POST that is not processed.
func (f Fault) writeFaultyResponse(emulator context.Context, w http.ResponseWriter, r *http.Request, a response) {
	switch f.Kind {
	case FaultStatus:
		if f.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(roundUpSeconds(f.RetryAfter))))
		}
		newErrorResponse(f.Status, http.StatusText(f.Status)).writeTo(w)
	case FaultHTML:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte("<!DOCTYPE html>\n<html><head><title>Sign in</title></head>" +
			"<body><p>Please sign in to use this network.</p></body></html>\n"))
	case FaultEmpty:
		w.WriteHeader(http.StatusOK)
	case FaultField:
		a.withField(f.Field, f.Value).writeTo(w)
	case FaultHuge:
		a.withPadding(f.Size).writeTo(w)
	case FaultHang:
		_, _ = io.Copy(io.Discard, r.Body) // the server detects a disconnect only after the end of the body
		select {
		case <-r.Context().Done():
		case <-emulator.Done():
		}
		panic(http.ErrAbortHandler) // net/http's way to close a connection without a response
	case FaultHalf:
		writeHalfBody(w, a)
	case FaultReset:
		resetConnection(w)
	}
}

func roundUpSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// writeHalfBody sends a Content-Length for the whole body, sends half of the body, and closes the connection.
func writeHalfBody(w http.ResponseWriter, a response) {
	if len(a.body) == 0 {
		a = response{status: http.StatusOK, body: []byte(`{"DocumentIncarnation":1,"Events":[]}`)}
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	response{status: a.status, body: a.body[:len(a.body)/2]}.writeTo(w)
	_ = http.NewResponseController(w).Flush() // it fails only if the client has disconnected
	panic(http.ErrAbortHandler)
}

// resetConnection closes a TCP connection abruptly: the client gets RST instead of FIN.
func resetConnection(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// documentFields lists the fields of a document that a FaultField can change.
func documentFields() []string {
	return []string{
		"DocumentIncarnation", "Events", "EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore",
		"Description", "EventSource", "DurationInSeconds",
	}
}

// withField returns the response with one field of the document and of its events set to value. An empty field means
// all fields. A nil value means a value of a wrong JSON type. A response without a document, such as an error, stays
// unchanged.
func (a response) withField(field string, value json.RawMessage) response {
	var doc map[string]json.RawMessage
	var events []map[string]json.RawMessage
	if json.Unmarshal(a.body, &doc) != nil || json.Unmarshal(doc["Events"], &events) != nil {
		return a
	}
	for _, event := range events {
		setField(event, field, value)
	}
	if field != "Events" {
		doc["Events"] = encodeJSON(events)
	}
	if field != "" { // if all fields change, the list must remain to show its events
		setField(doc, field, value)
	} else {
		setField(doc, "DocumentIncarnation", nil)
	}
	a.body = encodeJSON(doc)
	return a
}

func setField(in map[string]json.RawMessage, field string, value json.RawMessage) {
	for name, was := range in {
		if field != "" && field != name {
			continue
		}
		if value != nil {
			in[name] = value
			continue
		}
		in[name] = wrongTypeValue(was)
	}
}

// wrongTypeValue returns a JSON value of another type than was. It returns an object in place of text or a list, and
// text in place of a number.
func wrongTypeValue(was json.RawMessage) json.RawMessage {
	if was[0] == '"' || was[0] == '[' {
		return json.RawMessage(`{"wrong":"type"}`)
	}
	return json.RawMessage(`"wrong type"`)
}

// withPadding returns the response with added events until the document has the given size in bytes. These events
// are valid, but their machines do not exist.
func (a response) withPadding(size int) response {
	if size == 0 {
		size = DefaultHugeSize
	}
	var doc document
	if json.Unmarshal(a.body, &doc) != nil {
		return a
	}
	notBefore := time.Now().Add(MinimumNotice(Redeploy)).UTC().Format(http.TimeFormat)
	for i, grown := 0, len(a.body); grown < size; i++ {
		padding := documentEvent{
			EventID: newEventID(), EventStatus: Scheduled, EventType: Redeploy, ResourceType: "VirtualMachine",
			Resources: []string{"padding_" + strconv.Itoa(i)}, NotBefore: notBefore, EventSource: Platform,
			Description: new(defaultDescription(Redeploy, Platform)), DurationInSeconds: new(UnknownDuration),
		}
		doc.Events = append(doc.Events, padding)
		grown += len(encodeJSON(padding))
	}
	a.body = encodeJSON(doc)
	return a
}
