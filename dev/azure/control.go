package azure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// registerControlRoutes adds the control API, for the demo and for manual use. Bodies and responses are JSON; durations are text
// such as "30s".
//
//	GET    /emulator/state                    scale sets, and all events with their history
//	GET    /emulator/events                   only the events
//	POST   /emulator/events                   announce: {"type":"Preempt","resources":["aks-spot-12345678-vmss_3"]}, or
//	                                          {"scenario":"live-migration","resources":[…]}; see announceRequest
//	GET    /emulator/events/{id}              one event
//	POST   /emulator/events/{id}/start        start it now; also cancel and finish
//	POST   /emulator/events/{id}/reschedule   {"notBefore":"2026-08-01T12:00:00Z"} or {"notice":"2m"} from now
//	GET    /emulator/faults                   the active faults
//	POST   /emulator/faults                   inject one, or a list: {"kind":"status","status":429,"times":3}
//	DELETE /emulator/faults                   remove all faults
//	GET    /emulator/ledger                   the ledger; ?event=ID for one event, ?format=summary for text lines with
//	                                          ?tolerance=1s
//
// A failed request changes nothing and returns {"error": …}: 400 for invalid input, 404 for missing objects, 409 for
// what the current state does not allow.
func (e *Emulator) registerControlRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /emulator/state", func(w http.ResponseWriter, _ *http.Request) { writeReply(w, e.State(), nil) })
	mux.HandleFunc("GET /emulator/events", func(w http.ResponseWriter, _ *http.Request) {
		writeReply(w, e.State().Events, nil)
	})
	mux.HandleFunc("POST /emulator/events", e.serveAnnounce)
	mux.HandleFunc("GET /emulator/events/{id}", func(w http.ResponseWriter, r *http.Request) {
		e.replyEvent(w, r.PathValue("id"), nil)
	})
	mux.HandleFunc("POST /emulator/events/{id}/start", e.serveCommand(func(_ *http.Request, id string) error {
		return e.StartEvent(id)
	}))
	mux.HandleFunc("POST /emulator/events/{id}/cancel", e.serveCommand(func(_ *http.Request, id string) error {
		return e.CancelEvent(id)
	}))
	mux.HandleFunc("POST /emulator/events/{id}/finish", e.serveCommand(func(r *http.Request, id string) error {
		return e.FinishEvent(r.Context(), id)
	}))
	mux.HandleFunc("POST /emulator/events/{id}/reschedule", e.serveCommand(e.serveReschedule))
	mux.HandleFunc("GET /emulator/faults", e.serveFaults)
	mux.HandleFunc("POST /emulator/faults", e.serveInjectFaults)
	mux.HandleFunc("DELETE /emulator/faults", func(w http.ResponseWriter, r *http.Request) {
		e.ClearFaults()
		e.serveFaults(w, r)
	})
	mux.HandleFunc("GET /emulator/ledger", e.serveLedger)
}

// maxControlBody is the maximum size of a control request's body in bytes.
const maxControlBody = 1 << 20

// announceRequest is the JSON form of an Announcement. If it names a scenario, the scenario sets the missing fields.
type announceRequest struct {
	Scenario        string      `json:"scenario,omitempty"`
	ScaleSet        string      `json:"scaleSet,omitempty"`
	EventID         string      `json:"eventId,omitempty"`
	Type            EventType   `json:"type,omitempty"`
	Resources       []string    `json:"resources"`
	Status          EventStatus `json:"status,omitempty"`
	Notice          string      `json:"notice,omitempty"`
	NotBefore       string      `json:"notBefore,omitempty"`
	Source          EventSource `json:"source,omitempty"`
	Description     *string     `json:"description,omitempty"`
	DurationSeconds *int        `json:"durationSeconds,omitempty"`
	Outage          string      `json:"outage,omitempty"`
}

// ParseAnnouncement parses an announcement in JSON. Every error wraps ErrInvalid and names the field. It does not
// check whether the scale set exists; Announce does.
func ParseAnnouncement(body []byte) (Announcement, error) {
	var request announceRequest
	if err := unmarshalOne(body, &request, true); err != nil {
		return Announcement{}, fmt.Errorf("announcement is %w: %w", ErrInvalid, err)
	}
	var a Announcement
	if request.Scenario != "" {
		var err error
		if a, err = NewScenario(request.Scenario); err != nil {
			return Announcement{}, err
		}
	}
	if err := request.applyTo(&a); err != nil {
		return Announcement{}, err
	}
	return a, a.validate()
}

// applyTo sets the fields of an announcement that the request states.
func (r announceRequest) applyTo(a *Announcement) (err error) {
	a.ScaleSet, a.EventID, a.Resources = r.ScaleSet, r.EventID, r.Resources
	if r.Type != "" {
		a.Type = r.Type
	}
	if r.Status != "" {
		a.Status = r.Status
	}
	if r.Source != "" {
		a.Source = r.Source
	}
	if r.Description != nil {
		a.Description = r.Description
	}
	if r.DurationSeconds != nil {
		a.DurationSeconds = r.DurationSeconds
	}
	if a.Notice, err = parseDuration("notice", r.Notice); err != nil {
		return err
	}
	if a.Outage, err = parseDuration("outage", r.Outage); err != nil {
		return err
	}
	a.NotBefore, err = parseTime("notBefore", r.NotBefore)
	return err
}

// parseDuration parses a duration such as "30s". An empty text means zero.
func parseDuration(field, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s %q is %w: must be a positive duration such as 30s or 5m", field, text, ErrInvalid)
	}
	return d, nil
}

// parseTime parses a time. An empty text means the zero time.
func parseTime(field, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s %q is %w: must be RFC 3339, such as 2026-08-01T12:00:00Z", field, text, ErrInvalid)
	}
	return t, nil
}

type faultJSON struct {
	Kind       FaultKind       `json:"kind"`
	Times      int             `json:"times,omitempty"`
	For        string          `json:"for,omitempty"`
	Method     string          `json:"method,omitempty"`
	ScaleSet   string          `json:"scaleSet,omitempty"`
	Machine    string          `json:"machine,omitempty"`
	Processed  bool            `json:"processed,omitempty"`
	Status     int             `json:"status,omitempty"`
	RetryAfter string          `json:"retryAfter,omitempty"`
	Field      string          `json:"field,omitempty"`
	Value      json.RawMessage `json:"value,omitempty"`
	Size       int             `json:"size,omitempty"`
}

// ParseFaults parses one fault or a list of faults in JSON. Every error wraps ErrInvalid and names the field.
func ParseFaults(body []byte) ([]Fault, error) {
	list, err := parseOneOrMore[faultJSON](body)
	if err != nil {
		return nil, fmt.Errorf("faults are %w: %w", ErrInvalid, err)
	}
	faults := make([]Fault, len(list))
	for i, j := range list {
		f, err := j.toFault()
		if err != nil {
			return nil, fmt.Errorf("fault %d: %w", i, err)
		}
		faults[i] = f
	}
	return faults, nil
}

// parseOneOrMore parses one JSON value, or a list with at least one value.
func parseOneOrMore[T any](body []byte) ([]T, error) {
	var list []T
	into := any(&list)
	if !strings.HasPrefix(strings.TrimSpace(string(body)), "[") {
		list = make([]T, 1)
		into = &list[0]
	}
	if err := unmarshalOne(body, into, true); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("the list is empty: give at least one")
	}
	return list, nil
}

func (j faultJSON) toFault() (Fault, error) {
	f := Fault{
		Kind: j.Kind, Times: j.Times, Method: j.Method, ScaleSet: j.ScaleSet, Machine: j.Machine,
		Processed: j.Processed, Status: j.Status, Field: j.Field, Value: j.Value, Size: j.Size,
	}
	var err error
	if f.For, err = parseDuration("for", j.For); err != nil {
		return f, err
	}
	if f.RetryAfter, err = parseDuration("retryAfter", j.RetryAfter); err != nil {
		return f, err
	}
	return f, f.validate()
}

// MarshalJSON writes the form that ParseFaults reads. Durations are text, such as "1m30s". Zero fields are left out.
func (f Fault) MarshalJSON() ([]byte, error) {
	j := faultJSON{
		Kind: f.Kind, Times: f.Times, Method: f.Method, ScaleSet: f.ScaleSet, Machine: f.Machine,
		Processed: f.Processed, Status: f.Status, Field: f.Field, Value: f.Value, Size: f.Size,
	}
	if f.For > 0 {
		j.For = f.For.String()
	}
	if f.RetryAfter > 0 {
		j.RetryAfter = f.RetryAfter.String()
	}
	return json.Marshal(j)
}

func (e *Emulator) serveAnnounce(w http.ResponseWriter, r *http.Request) {
	body, err := readControlBody(r)
	if err != nil {
		writeReply(w, nil, err)
		return
	}
	a, err := ParseAnnouncement(body)
	if err != nil {
		writeReply(w, nil, err)
		return
	}
	record, err := e.Announce(a) //nolint:contextcheck // an event outlives the request that announces it
	writeReply(w, record, err)
}

// serveCommand returns a handler that calls run for the event in the path, and responds with the changed event.
func (e *Emulator) serveCommand(run func(r *http.Request, id string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		e.replyEvent(w, id, run(r, id))
	}
}

func (e *Emulator) replyEvent(w http.ResponseWriter, id string, err error) {
	record, ok := e.State().Event(id)
	if err == nil && !ok {
		err = fmt.Errorf("event %q: %w", id, ErrUnknownEvent)
	}
	writeReply(w, record, err)
}

func (e *Emulator) serveReschedule(r *http.Request, id string) error {
	body, err := readControlBody(r)
	if err != nil {
		return err
	}
	notBefore, err := parseReschedule(body, time.Now())
	if err != nil {
		return err
	}
	return e.RescheduleEvent(id, notBefore)
}

// parseReschedule returns the new NotBefore from a request body. The body states a time, or a duration from now.
func parseReschedule(body []byte, now time.Time) (time.Time, error) {
	var request struct {
		NotBefore string `json:"notBefore"`
		Notice    string `json:"notice"`
	}
	if err := unmarshalOne(body, &request, true); err != nil {
		return time.Time{}, fmt.Errorf("reschedule is %w: %w", ErrInvalid, err)
	}
	if (request.NotBefore == "") == (request.Notice == "") {
		return time.Time{}, fmt.Errorf("reschedule is %w: set either notBefore or notice", ErrInvalid)
	}
	if request.NotBefore != "" {
		return parseTime("notBefore", request.NotBefore)
	}
	notice, err := parseDuration("notice", request.Notice)
	return now.Add(notice), err
}

func (e *Emulator) serveFaults(w http.ResponseWriter, _ *http.Request) {
	writeReply(w, e.Faults(), nil)
}

func (e *Emulator) serveInjectFaults(w http.ResponseWriter, r *http.Request) {
	body, err := readControlBody(r)
	if err != nil {
		writeReply(w, nil, err)
		return
	}
	faults, err := ParseFaults(body)
	if err == nil {
		err = e.InjectFaults(faults...)
	}
	writeReply(w, e.Faults(), err)
}

// errNoLedger means that the emulator has no ledger, because it watches no cluster.
var errNoLedger = errors.New("there is no ledger because the emulator watches no cluster")

// Ledger returns the ledger of all events so far. It is empty if Options.Bookkeeper is nil.
func (e *Emulator) Ledger() Ledger {
	if e.opts.LedgerBuilder == nil {
		return Ledger{At: time.Now(), Events: []EventLedger{}}
	}
	return e.opts.LedgerBuilder.Ledger(e.State())
}

func (e *Emulator) serveLedger(w http.ResponseWriter, r *http.Request) {
	if e.opts.LedgerBuilder == nil {
		writeReply(w, nil, errNoLedger)
		return
	}
	query := r.URL.Query()
	ledger := e.Ledger()
	if id := query.Get("event"); id != "" {
		event, ok := ledger.Event(id)
		if !ok {
			writeReply(w, nil, fmt.Errorf("event %q: %w", id, ErrUnknownEvent))
			return
		}
		ledger.Events = []EventLedger{event}
	}
	switch format := query.Get("format"); format {
	case "", "json":
		writeReply(w, ledger, nil)
	case "summary":
		tolerance, err := parseDuration("tolerance", query.Get("tolerance"))
		if err != nil {
			writeReply(w, nil, err)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, ledger.Summary(tolerance))
	default:
		writeReply(w, nil, fmt.Errorf("format %q is %w: must be json or summary", format, ErrInvalid))
	}
}

func readControlBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxControlBody))
	if err != nil {
		return nil, fmt.Errorf("the body is %w: %w", ErrInvalid, err)
	}
	return body, nil
}

// writeReply writes value as JSON. If err is not nil, it writes err with its HTTP status instead.
func writeReply(w http.ResponseWriter, value any, err error) {
	if err != nil {
		newErrorResponse(httpStatus(err), err.Error()).writeTo(w)
		return
	}
	response{status: http.StatusOK, body: encodeJSON(value)}.writeTo(w)
}

func httpStatus(err error) int {
	switch {
	case errors.Is(err, ErrInvalid):
		return http.StatusBadRequest
	case errors.Is(err, ErrUnknownEvent), errors.Is(err, ErrUnknownScaleSet), errors.Is(err, ErrUnknownResource),
		errors.Is(err, errNoLedger):
		return http.StatusNotFound
	case errors.Is(err, ErrWrongStatus), errors.Is(err, ErrDuplicateEvent):
		return http.StatusConflict
	case errors.Is(err, ErrClosed):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
