package azure

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const (
	testSet = "aks-spot-12345678-vmss"
	vm0     = testSet + "_0"
	vm1     = testSet + "_1"
	query   = "?api-version=2020-07-01"
)

// newEmulator returns an emulator with one scale set for one test.
func newEmulator(t testing.TB, opts Options) *Emulator {
	t.Helper()
	e := New(opts)
	t.Cleanup(e.Close)
	e.EnsureScaleSet(testSet)
	return e
}

// serveEmulator serves the emulator over HTTP and returns the base URL.
func serveEmulator(t testing.TB, e *Emulator) string {
	t.Helper()
	server := httptest.NewServer(e.Handler())
	t.Cleanup(server.Close)
	t.Cleanup(e.Close) // before the server, which waits for requests that the emulator holds
	return server.URL
}

// sendCall sends a request with the Metadata header, and returns the status and the body.
func sendCall(t testing.TB, method, url, body string) (int, string) {
	t.Helper()
	return sendCallWith(t, method, url, body, http.Header{"Metadata": {"true"}})
}

func sendCallWith(t testing.TB, method, url, body string, header http.Header) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	must.NoError(t, err)
	r.Header = header
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer func() { _ = resp.Body.Close() }() // read only
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: reading the body: %v", method, url, err)
	}
	return resp.StatusCode, string(got)
}

// readDocument gets the document, and fails if the status is not 200.
func readDocument(t testing.TB, base string) document {
	t.Helper()
	status, body := sendCall(t, http.MethodGet, base+metadataPath+query, "")
	if status != http.StatusOK {
		t.Fatalf("GET: %d %s", status, body)
	}
	var doc document
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatalf("GET: %s: %v", body, err)
	}
	return doc
}

func mustAnnounce(t testing.TB, e *Emulator, a Announcement) EventRecord {
	t.Helper()
	r, err := e.Announce(a)
	must.NoError(t, err)
	return r
}

// startRequestBody returns the body of a POST that approves these events.
func startRequestBody(ids ...string) string {
	var list []string
	for _, id := range ids {
		list = append(list, fmt.Sprintf(`{"EventId":%q}`, id))
	}
	return `{"StartRequests":[` + strings.Join(list, ",") + `]}`
}

func TestInvalidMetadataRequestIsRefused(t *testing.T) {
	base := serveEmulator(t, newEmulator(t, Options{}))
	metadata := http.Header{"Metadata": {"true"}}
	newest := []any{"2020-07-01", "2019-08-01", "2019-04-01"}
	tests := []struct {
		name, method, path string
		header             http.Header
		status             int
		message            string
		newest             any
	}{
		{"without the Metadata header", "GET", metadataPath + query, http.Header{}, 400, "metadata header", nil},
		{
			"with Metadata: false", "GET", metadataPath + query,
			http.Header{"Metadata": {"false"}},
			400, "metadata header", nil,
		},
		{
			"through a proxy", "GET", metadataPath + query,
			http.Header{"Metadata": {"true"}, "X-Forwarded-For": {"10.0.0.1"}},
			400, "X-Forwarded-For", nil,
		},
		{"POST without the Metadata header", "POST", metadataPath + query, http.Header{}, 400, "metadata header", nil},
		{"without an api-version", "GET", metadataPath, metadata, 400, "api-version was not specified", newest},
		{"unknown api-version", "GET", metadataPath + "?api-version=2099-01-01", metadata, 400, "api-version is inv", newest},
		{"latest as api-version", "GET", metadataPath + "?api-version=latest", metadata, 400, "api-version is inv", newest},
		{"other method", "DELETE", metadataPath + query, metadata, 405, "Method not allowed", nil},
		{"unknown scale set", "GET", "/scalesets/nope" + metadataPath + query, metadata, 404, testSet, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, body := sendCallWith(t, tt.method, base+tt.path, "", tt.header)
			var got map[string]any
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatalf("the response %q is not JSON: %v", body, err)
			}
			message, _ := got["error"].(string)
			if status != tt.status || !strings.Contains(message, tt.message) {
				t.Errorf("got %d %s, want %d with %q", status, body, tt.status, tt.message)
			}
			check.Equal(t, tt.newest, got["newest-versions"])
		})
	}
}

func TestMetadataHeaderIgnoresLetterCase(t *testing.T) {
	base := serveEmulator(t, newEmulator(t, Options{}))
	status, body := sendCallWith(t, "GET", base+metadataPath+query, "", http.Header{"Metadata": {"True"}})
	if status != http.StatusOK {
		t.Errorf("got %d %s", status, body)
	}
}

func TestDocumentWithoutEvents(t *testing.T) {
	base := serveEmulator(t, newEmulator(t, Options{}))
	status, body := sendCall(t, "GET", base+metadataPath+query, "")
	if want := `{"DocumentIncarnation":1,"Events":[]}`; status != 200 || body != want {
		t.Errorf("got %d %s, want %s", status, body, want)
	}
}

func TestDocumentListsScheduledEvent(t *testing.T) {
	e := newEmulator(t, Options{})
	base := serveEmulator(t, e)
	notBefore := time.Now().Add(time.Hour).Truncate(time.Second).UTC()
	mustAnnounce(t, e, Announcement{
		Type: Freeze, Resources: []string{vm0, vm1}, EventID: "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
		NotBefore: notBefore,
	})
	want := fmt.Sprintf(`{"DocumentIncarnation":2,"Events":[{"EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123",`+
		`"EventStatus":"Scheduled","EventType":"Freeze","ResourceType":"VirtualMachine","Resources":[%q,%q],`+
		`"NotBefore":%q,"Description":"Host server is undergoing maintenance.","EventSource":"Platform",`+
		`"DurationInSeconds":5}]}`, vm0, vm1, notBefore.Format("Mon, 02 Jan 2006 15:04:05 GMT"))
	if _, body := sendCall(t, "GET", base+metadataPath+query, ""); body != want {
		t.Errorf("got  %s\nwant %s", body, want)
	}
}

func TestOlderVersionsHaveFewerFields(t *testing.T) {
	e := newEmulator(t, Options{})
	base := serveEmulator(t, e)
	for _, typ := range []EventType{Reboot, Preempt, Terminate} {
		mustAnnounce(t, e, Announcement{Type: typ, Resources: []string{vm0}, Notice: time.Hour})
	}
	all := []string{"Reboot", "Preempt", "Terminate"}
	tests := []struct {
		version  string
		types    []string
		resource string
		later    []string // the later fields that are shown
	}{
		{"2020-07-01", all, vm0, []string{"Description", "EventSource", "DurationInSeconds"}},
		{"2019-08-01", all, vm0, []string{"Description", "EventSource"}},
		{"2019-04-01", all, vm0, []string{"Description"}},
		{"2019-01-01", all, vm0, nil},
		{"2017-11-01", []string{"Reboot", "Preempt"}, vm0, nil},
		{"2017-08-01", []string{"Reboot"}, vm0, nil},
		{"2017-03-01", []string{"Reboot"}, "_" + vm0, nil},
	}
	if len(tests) != len(APIVersions()) {
		t.Errorf("%d of %d versions are tested", len(tests), len(APIVersions()))
	}
	for _, tt := range tests {
		t.Run(tt.version, func(t *testing.T) {
			_, body := sendCall(t, "GET", base+metadataPath+"?api-version="+tt.version, "")
			var doc struct{ Events []map[string]any }
			must.NoError(t, json.Unmarshal([]byte(body), &doc))
			var types []string
			for _, event := range doc.Events {
				types = append(types, event["EventType"].(string))
				check.Equal(t, []any{tt.resource}, event["Resources"])
				for _, field := range []string{"Description", "EventSource", "DurationInSeconds"} {
					if _, ok := event[field]; ok != slices.Contains(tt.later, field) {
						t.Errorf("%s is shown: %t", field, ok)
					}
				}
			}
			check.Equal(t, tt.types, types)
		})
	}
}

func TestScaleSetsHaveSeparateDocuments(t *testing.T) {
	e := newEmulator(t, Options{})
	other := e.EnsureScaleSet("aks-sys-87654321-vmss")
	base := serveEmulator(t, e)
	alone := httptest.NewServer(other.Handler())
	t.Cleanup(alone.Close)
	mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})

	if doc := readDocument(t, base+"/scalesets/"+testSet); len(doc.Events) != 1 || doc.DocumentIncarnation != 2 {
		t.Errorf("the event's scale set shows %+v", doc)
	}
	if doc := readDocument(t, base+"/scalesets/"+strings.ToUpper(testSet)+"/virtualMachines/"+vm1); len(doc.Events) != 1 {
		t.Errorf("another machine of the scale set, in another letter case, is shown %+v", doc)
	}
	for _, url := range []string{
		base + "/scalesets/" + other.Name(), alone.URL, alone.URL + "/virtualMachines/aks-sys-87654321-vmss_0",
	} {
		if doc := readDocument(t, url); len(doc.Events) != 0 || doc.DocumentIncarnation != 1 {
			t.Errorf("the other scale set shows %+v at %s", doc, url)
		}
	}
	if status, body := sendCall(t, "GET", base+metadataPath+query, ""); status != http.StatusNotFound {
		t.Errorf("with two scale sets the path without scale set returns %d %s", status, body)
	}
}

func TestApprovalStartsEventForAllResources(t *testing.T) {
	e := newEmulator(t, Options{Outage: time.Hour})
	base := serveEmulator(t, e)
	approved := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0, vm1}})
	other := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{testSet + "_2"}})

	// The letter case of a GUID does not matter.
	url := base + "/scalesets/" + testSet + "/virtualMachines/" + vm0 + metadataPath + query
	if status, body := sendCall(t, "POST", url, startRequestBody(strings.ToLower(approved.EventID))); status != 200 || body != "" {
		t.Fatalf("approval: %d %q", status, body)
	}
	doc := readDocument(t, base)
	if doc.DocumentIncarnation != 4 { // empty, two announcements, one start
		t.Errorf("incarnation %d, want 4", doc.DocumentIncarnation)
	}
	first, second := doc.Events[0], doc.Events[1]
	if first.EventStatus != Started || first.NotBefore != "" || len(first.Resources) != 2 {
		t.Errorf("the approved event is shown as %+v", first)
	}
	if second.EventID != other.EventID || second.EventStatus != Scheduled || second.NotBefore == "" {
		t.Errorf("the event outside the list is shown as %+v", second)
	}

	// Repeated approvals, also by another machine, return 200 and change nothing.
	url1 := base + "/scalesets/" + testSet + "/virtualMachines/" + vm1 + metadataPath + query
	for _, u := range []string{url, url1} {
		if status, body := sendCall(t, "POST", u, startRequestBody(approved.EventID)); status != 200 {
			t.Errorf("repeated approval: %d %s", status, body)
		}
	}
	if got := readDocument(t, base).DocumentIncarnation; got != 4 {
		t.Errorf("incarnation %d after repeated approvals, want 4", got)
	}
	record, _ := e.State().Event(approved.EventID)
	if len(record.Approvals) != 2 || record.Approvals[0].By != vm0 || record.Approvals[0].Times != 2 ||
		record.Approvals[1].By != vm1 || record.StartedBy != ByApproval {
		t.Errorf("the history is %+v", record)
	}
}

func TestApprovalWithoutMachineIsRecordedByClient(t *testing.T) {
	e := newEmulator(t, Options{})
	base := serveEmulator(t, e)
	record := mustAnnounce(t, e, Announcement{Type: Freeze, Resources: []string{vm0}})
	header := http.Header{"Metadata": {"true"}, "User-Agent": {"slipway/1"}}
	if status, body := sendCallWith(t, "POST", base+metadataPath+query, startRequestBody(record.EventID), header); status != 200 {
		t.Fatalf("got %d %s", status, body)
	}
	record, _ = e.State().Event(record.EventID)
	check.Is(t, "127.0.0.1 slipway/1", record.Approvals[0].By)
}

func TestRefusedApprovalApprovesNothing(t *testing.T) {
	e := newEmulator(t, Options{})
	e.EnsureScaleSet("other")
	base := serveEmulator(t, e)
	known := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})
	foreign := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{"other_0"}})
	gone := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm1}})
	must.NoError(t, e.CancelEvent(gone.EventID))
	before := e.State()
	for name, body := range map[string]string{
		"invalid JSON":               `StartRequests`,
		"cut JSON":                   `{"StartRequests":[{"EventId":"` + known.EventID,
		"two values":                 startRequestBody(known.EventID) + `{}`,
		"empty body":                 ``,
		"no list":                    `{}`,
		"empty list":                 `{"StartRequests":[]}`,
		"list of a wrong type":       `{"StartRequests":"` + known.EventID + `"}`,
		"ID of a wrong type":         `{"StartRequests":[{"EventId":7}]}`,
		"missing ID":                 `{"StartRequests":[{}]}`,
		"ID that is not a GUID":      startRequestBody("event-1"),
		"unknown ID":                 startRequestBody("602d9444-d2cd-49c7-8624-8643e7171297"),
		"known and unknown ID":       startRequestBody(known.EventID, "602d9444-d2cd-49c7-8624-8643e7171297"),
		"event of another scale set": startRequestBody(foreign.EventID),
		"vanished event":             startRequestBody(gone.EventID),
		"body of a megabyte":         startRequestBody(known.EventID) + strings.Repeat(" ", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			status, answer := sendCall(t, "POST", base+"/scalesets/"+testSet+metadataPath+query, body)
			if status != http.StatusBadRequest || !strings.HasPrefix(answer, `{"error":"Bad request. `) {
				t.Errorf("got %d %s", status, answer)
			}
		})
	}
	check.Equal(t, before.Events, e.State().Events)
}

func FuzzParseStartRequests(f *testing.F) {
	id := "602d9444-d2cd-49c7-8624-8643e7171297"
	f.Add([]byte(startRequestBody(id)))
	f.Add([]byte(startRequestBody(id, strings.ToUpper(id))))
	f.Add([]byte(`{"DocumentIncarnation":3,"StartRequests":[{"EventId":"` + id + `"}]}`))
	f.Add([]byte(`{"StartRequests":null}`))
	f.Add([]byte(`[]`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, body []byte) {
		ids, err := ParseStartRequests(body)
		if err != nil {
			if len(ids) > 0 {
				t.Fatalf("an error together with the IDs %q: %v", ids, err)
			}
			return
		}
		if len(ids) == 0 {
			t.Fatal("no ID and no error")
		}
		for i, id := range ids {
			if !isGUID(id) {
				t.Fatalf("%q is not a GUID", id)
			}
			if slices.ContainsFunc(ids[:i], func(other string) bool { return strings.EqualFold(id, other) }) {
				t.Fatalf("%q is listed twice", id)
			}
		}
		again, err := ParseStartRequests([]byte(startRequestBody(ids...)))
		if err != nil || !slices.Equal(ids, again) {
			t.Fatalf("%q parses as %q, %v after encoding", ids, again, err)
		}
	})
}
