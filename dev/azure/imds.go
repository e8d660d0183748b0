package azure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// APIVersions returns the api-versions of Scheduled Events, newest first. They added: 2020-07-01 DurationInSeconds,
// 2019-08-01 EventSource, 2019-04-01 Description, 2019-01-01 events of type Terminate, 2017-11-01 events of type
// Preempt, 2017-08-01 resource names without a leading underscore.
func APIVersions() []string {
	return []string{
		"2020-07-01", "2019-08-01", "2019-04-01", "2019-01-01", "2017-11-01", "2017-08-01", "2017-03-01",
	}
}

const (
	metadataPath = "/metadata/scheduledevents"
	// maxStartRequests limits the body of a POST. A list of a hundred events needs a tenth of it.
	maxStartRequests = 64 << 10
	// disabledAfter is the time without calls until the service is switched off for a scale set.
	disabledAfter = 24 * time.Hour
	// newestVersions is the number of versions in the response to a bad api-version.
	newestVersions = 3
)

// document is the response to a GET. The fields are in the order of the documentation's examples.
type document struct {
	DocumentIncarnation int             `json:"DocumentIncarnation"`
	Events              []documentEvent `json:"Events"`
}

type documentEvent struct {
	EventID           string      `json:"EventId"`
	EventStatus       EventStatus `json:"EventStatus"`
	EventType         EventType   `json:"EventType"`
	ResourceType      string      `json:"ResourceType"`
	Resources         []string    `json:"Resources"`
	NotBefore         string      `json:"NotBefore"`
	Description       *string     `json:"Description,omitempty"`
	EventSource       EventSource `json:"EventSource,omitempty"`
	DurationInSeconds *int        `json:"DurationInSeconds,omitempty"`
}

// response is a response. It is complete before it is sent, so that a fault can change it.
type response struct {
	status int
	body   []byte
}

// Handler serves the metadata service of this scale set only, at /metadata/scheduledevents and at
// /virtualMachines/{machine}/metadata/scheduledevents.
func (s *ScaleSet) Handler() http.Handler {
	mux := http.NewServeMux()
	serve := func(w http.ResponseWriter, r *http.Request) {
		s.emulator.serveScheduledEvents(w, r, s, r.PathValue("machine"))
	}
	mux.HandleFunc(metadataPath, serve)
	mux.HandleFunc("/virtualMachines/{machine}"+metadataPath, serve)
	return mux
}

func (e *Emulator) registerMetadataRoutes(mux *http.ServeMux) {
	serve := func(w http.ResponseWriter, r *http.Request) {
		set, err := e.findScaleSet(r.PathValue("scaleSet"))
		if err != nil {
			newErrorResponse(http.StatusNotFound, "Not found. "+err.Error()).writeTo(w)
			return
		}
		e.serveScheduledEvents(w, r, set, r.PathValue("machine"))
	}
	mux.HandleFunc(metadataPath, serve)
	mux.HandleFunc("/scalesets/{scaleSet}"+metadataPath, serve)
	mux.HandleFunc("/scalesets/{scaleSet}/virtualMachines/{machine}"+metadataPath, serve)
}

// serveScheduledEvents serves one request. machine is the client in the path, or empty.
func (e *Emulator) serveScheduledEvents(w http.ResponseWriter, r *http.Request, set *ScaleSet, machine string) {
	if err := e.countRequestAndAwaitEnabled(r.Context(), set); err != nil {
		panic(http.ErrAbortHandler) // a return would send 200 without a body
	}
	fault, faulty := e.takeRequestFault(faultTarget{method: r.Method, scaleSet: set.name, machine: machine})
	var a response
	if !faulty || r.Method == http.MethodGet || fault.Processed {
		a = e.respondWithoutFault(r, set, machine)
	}
	if faulty {
		e.log.Info("respond with a fault", "kind", fault.Kind, "method", r.Method, "scaleSet", set.name,
			"machine", machine)
		fault.writeFaultyResponse(e.ctx, w, r, a) //nolint:contextcheck // a hanging fault ends with the emulator; the client may have disconnected
		return
	}
	a.writeTo(w)
}

// countRequestAndAwaitEnabled counts the request and delays it while the service is being switched on for the scale set.
func (e *Emulator) countRequestAndAwaitEnabled(ctx context.Context, set *ScaleSet) error {
	e.mu.Lock()
	now := time.Now()
	if set.lastRequest.IsZero() || now.Sub(set.lastRequest) > disabledAfter {
		set.enabledAt = now.Add(e.opts.FirstCallDelay)
	}
	set.lastRequest = now
	set.requests++
	wait := set.enabledAt.Sub(now)
	e.mu.Unlock()
	return sleepUnlessClosed(ctx, e.ctx, wait)
}

// sleepUnlessClosed waits for d. It fails if the client or the emulator ends first.
func sleepUnlessClosed(client, emulator context.Context, d time.Duration) error {
	if d <= 0 {
		return client.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-client.Done():
		return client.Err()
	case <-emulator.Done():
		return emulator.Err()
	}
}

// respondWithoutFault returns the healthy response.
func (e *Emulator) respondWithoutFault(r *http.Request, set *ScaleSet, machine string) response {
	if refusal, ok := refuseRequest(r); ok {
		return refusal
	}
	if r.Method == http.MethodPost {
		return e.serveApproval(r, set, machine)
	}
	return response{status: http.StatusOK, body: encodeJSON(e.newDocument(set, r.URL.Query().Get("api-version")))}
}

// refuseRequest makes the checks that precede the method's own. The messages are those of the real service as far as they are
// documented. Those for X-Forwarded-For and for the method are not.
func refuseRequest(r *http.Request) (refusal response, refused bool) {
	version := r.URL.Query().Get("api-version")
	switch {
	case len(r.Header.Values("X-Forwarded-For")) > 0:
		return newBadRequest("X-Forwarded-For header is not allowed: the request must not come through a proxy"), true
	case !strings.EqualFold(r.Header.Get("Metadata"), "true"):
		return newBadRequest("Required metadata header not specified or not correct"), true
	case version == "":
		return newBadVersionResponse("api-version was not specified in the request." +
			" For more information refer to aka.ms/azureimds"), true
	case !slices.Contains(APIVersions(), version):
		return newBadVersionResponse("api-version is invalid or was not specified in the request."), true
	case r.Method != http.MethodGet && r.Method != http.MethodPost:
		return newErrorResponse(http.StatusMethodNotAllowed, "Method not allowed. Use GET or POST"), true
	}
	return response{}, false
}

// newDocument returns the scale set's document in an api-version.
func (e *Emulator) newDocument(set *ScaleSet, version string) document {
	e.mu.Lock()
	defer e.mu.Unlock()
	doc := document{DocumentIncarnation: set.incarnation, Events: []documentEvent{}}
	for _, ev := range e.events {
		if ev.set == set && ev.record.IsListed() && versionHasType(version, ev.record.Type) {
			doc.Events = append(doc.Events, toDocumentEvent(&ev.record, version))
		}
	}
	return doc
}

// versionHasType reports whether an api-version has events of the type. Versions are ISO dates, so they compare as strings.
func versionHasType(version string, t EventType) bool {
	switch t {
	case Terminate:
		return version >= "2019-01-01"
	case Preempt:
		return version >= "2017-11-01"
	}
	return true
}

// toDocumentEvent returns one event in an api-version.
func toDocumentEvent(r *EventRecord, version string) documentEvent {
	de := documentEvent{
		EventID: r.EventID, EventStatus: r.Status, EventType: r.Type, ResourceType: "VirtualMachine",
		Resources: slices.Clone(r.Resources),
	}
	if r.Status == Scheduled {
		de.NotBefore = r.NotBefore.UTC().Format(http.TimeFormat)
	}
	if version < "2017-08-01" {
		for i := range de.Resources {
			de.Resources[i] = "_" + de.Resources[i]
		}
	}
	if version >= "2019-04-01" {
		de.Description = new(r.Description)
	}
	if version >= "2019-08-01" {
		de.EventSource = r.Source
	}
	if version >= "2020-07-01" {
		de.DurationInSeconds = new(r.DurationSeconds)
	}
	return de
}

func (e *Emulator) serveApproval(r *http.Request, set *ScaleSet, machine string) response {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxStartRequests))
	if err != nil {
		return newBadRequest(fmt.Sprintf("The body could not be read: %v", err))
	}
	ids, err := ParseStartRequests(body)
	if err != nil {
		return newBadRequest(err.Error())
	}
	if err := e.approveEvents(set, ids, identifyApprover(r, machine)); err != nil {
		return newBadRequest(err.Error())
	}
	return response{status: http.StatusOK}
}

// identifyApprover names the client that approves. On a loopback address only the machine in the path identifies an agent.
func identifyApprover(r *http.Request, machine string) string {
	if machine != "" {
		return machine
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return host + " " + r.UserAgent()
}

// ErrMalformed is the error of an invalid StartRequests body, for errors.Is.
var ErrMalformed = errors.New("malformed StartRequests")

// ParseStartRequests parses the body of a POST and returns the approved event IDs: at least one GUID, unchanged and
// without duplicates. It ignores unknown fields, because older clients send the document's incarnation. Every error is
// ErrMalformed.
func ParseStartRequests(body []byte) ([]string, error) {
	var request struct {
		StartRequests []struct {
			EventID string `json:"EventId"`
		} `json:"StartRequests"`
	}
	if err := unmarshalOne(body, &request, false); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if len(request.StartRequests) == 0 {
		return nil, fmt.Errorf("%w: StartRequests is missing or empty: want at least one {\"EventId\": …}", ErrMalformed)
	}
	var ids []string
	for i, start := range request.StartRequests {
		if !isGUID(start.EventID) {
			return nil, fmt.Errorf("%w: StartRequests[%d].EventId is %q: must be a GUID", ErrMalformed, i, start.EventID)
		}
		if !slices.ContainsFunc(ids, func(id string) bool { return strings.EqualFold(id, start.EventID) }) {
			ids = append(ids, start.EventID)
		}
	}
	return ids, nil
}

// unmarshalOne parses exactly one JSON value. If strict, it refuses unknown fields.
func unmarshalOne(data []byte, into any, strict bool) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if strict {
		dec.DisallowUnknownFields()
	}
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("unexpected JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected JSON: there is data after the first value")
	}
	return nil
}

// encodeJSON encodes a value of this package, which cannot fail.
func encodeJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return []byte(`{"error":"Internal server error. ` + err.Error() + `"}`)
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}

func newBadRequest(message string) response {
	return newErrorResponse(http.StatusBadRequest, "Bad request. "+message)
}

// newBadVersionResponse lists the newest versions, as the documentation shows for a request without version.
func newBadVersionResponse(message string) response {
	return response{status: http.StatusBadRequest, body: encodeJSON(struct {
		Error  string   `json:"error"`
		Newest []string `json:"newest-versions"`
	}{"Bad request. " + message, APIVersions()[:newestVersions]})}
}

func newErrorResponse(status int, message string) response {
	return response{status: status, body: encodeJSON(struct {
		Error string `json:"error"`
	}{message})}
}

// writeTo writes the response as the real service does.
func (a response) writeTo(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // a client that has disconnected cannot be told
}
