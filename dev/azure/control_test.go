package azure

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// callControl sends a request to the control API and parses the response into a value, unless it is nil.
func callControl(t testing.TB, method, url, body string, into any) int {
	t.Helper()
	status, answer := sendCallWith(t, method, url, body, http.Header{})
	if into != nil {
		if err := json.Unmarshal([]byte(answer), into); err != nil {
			t.Fatalf("%s %s answered %d %s: %v", method, url, status, answer, err)
		}
	}
	return status
}

func TestControlRunsEventToItsEnd(t *testing.T) {
	e := newEmulator(t, Options{Outage: time.Hour})
	base := serveEmulator(t, e)
	events := base + "/emulator/events"

	var record EventRecord
	status := callControl(t, "POST", events, `{"type":"Reboot","resources":["`+vm0+`"],"notice":"20s","source":"User",
		"description":"why","durationSeconds":9,"outage":"1h","eventId":"602D9444-d2cd-49c7-8624-8643e7171297"}`, &record)
	want := EventRecord{
		ScaleSet: testSet, EventID: "602D9444-d2cd-49c7-8624-8643e7171297", Type: Reboot, Resources: []string{vm0},
		Status: Scheduled, Source: User, Description: "why", DurationSeconds: 9,
		VisibleAt: record.VisibleAt, NotBefore: roundUpToSecond(record.VisibleAt.Add(20 * time.Second)),
	}
	if diff := cmp.Diff(want, record); status != 200 || diff != "" {
		t.Fatalf("announce answered %d (-want +got):\n%s", status, diff)
	}
	if age := time.Since(record.VisibleAt); age < 0 || age > time.Minute {
		t.Errorf("visible since %v", record.VisibleAt)
	}

	event := events + "/" + record.EventID
	status = callControl(t, "POST", event+"/reschedule", `{"notBefore":"2099-01-01T00:00:00.5Z"}`, &record)
	if status != 200 || !record.NotBefore.Equal(time.Date(2099, 1, 1, 0, 0, 1, 0, time.UTC)) {
		t.Errorf("reschedule answered %d %+v", status, record)
	}
	status = callControl(t, "POST", event+"/reschedule", `{"notice":"10m"}`, &record)
	if left := time.Until(record.NotBefore); status != 200 || left < 9*time.Minute || left > 11*time.Minute {
		t.Errorf("reschedule answered %d %+v", status, record)
	}
	status = callControl(t, "POST", event+"/start", "", &record)
	if status != 200 || record.Status != Started || record.StartedBy != ByCommand {
		t.Errorf("start answered %d %+v", status, record)
	}
	status = callControl(t, "POST", event+"/finish", "", &record)
	if status != 200 || record.Ending != Finished {
		t.Errorf("finish answered %d %+v", status, record)
	}

	record = EventRecord{} // because parsing keeps fields that the JSON omits
	status = callControl(t, "POST", events, `{"scenario":"live-migration","resources":["`+vm1+`"]}`, &record)
	if status != 200 || record.Type != Freeze || !strings.Contains(record.Description, "Live Migration") {
		t.Errorf("announce answered %d %+v", status, record)
	}
	status = callControl(t, "POST", events+"/"+strings.ToLower(record.EventID)+"/cancel", "", &record)
	if status != 200 || record.Ending != Cancelled {
		t.Errorf("cancel answered %d %+v", status, record)
	}

	var got EventRecord
	if status := callControl(t, "GET", events+"/"+record.EventID, "", &got); status != 200 || !cmp.Equal(got, record) {
		t.Errorf("the event: %d %+v", status, got)
	}
	var list []EventRecord
	if status := callControl(t, "GET", events, "", &list); status != 200 || len(list) != 2 || !cmp.Equal(list[1], record) {
		t.Errorf("the list: %d %+v", status, list)
	}
	var state State
	status = callControl(t, "GET", base+"/emulator/state", "", &state)
	if status != 200 || len(state.Events) != 2 || state.ScaleSets[0].Incarnation != 8 {
		t.Errorf("the state: %d %+v", status, state)
	}
}

func TestControlInjectsListsAndClearsFaults(t *testing.T) {
	e := newEmulator(t, Options{})
	faults := serveEmulator(t, e) + "/emulator/faults"
	var got []map[string]any
	status := callControl(t, "POST", faults, `[{"kind":"status","status":429,"times":3,"retryAfter":"1s"},
		{"kind":"field","field":"NotBefore","value":"soon"}]`, &got)
	want := []map[string]any{
		{"kind": "status", "status": 429.0, "times": 3.0, "retryAfter": "1s"},
		{"kind": "field", "field": "NotBefore", "value": "soon", "times": 1.0},
	}
	if diff := cmp.Diff(want, got); status != 200 || diff != "" {
		t.Errorf("inject answered %d (-want +got):\n%s", status, diff)
	}
	if status := callControl(t, "POST", faults, `{"kind":"reset","for":"1h"}`, &got); status != 200 || len(got) != 3 {
		t.Errorf("inject answered %d %v", status, got)
	}
	if status := callControl(t, "GET", faults, "", &got); status != 200 || len(got) != 3 {
		t.Errorf("the list: %d %v", status, got)
	}
	if status := callControl(t, "DELETE", faults, "", &got); status != 200 || len(got) != 0 {
		t.Errorf("clear answered %d %v", status, got)
	}
}

func TestRefusedControlRequestChangesNothing(t *testing.T) {
	e := newEmulator(t, Options{LedgerBuilder: fixedBookkeeper{}, Outage: time.Hour})
	base := serveEmulator(t, e) + "/emulator/"
	started := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}, Status: Started})
	gone := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})
	must.NoError(t, e.CancelEvent(gone.EventID))
	live := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})
	before := e.State()
	for name, tt := range map[string]struct {
		method, path, body string
		status             int
		message            string
	}{
		"announcement without JSON":       {"POST", "events", "hello", 400, "announcement"},
		"announcement with trailing data": {"POST", "events", `{} {}`, 400, "data after the first value"},
		"announcement's unknown field":    {"POST", "events", `{"colour":"red"}`, 400, "colour"},
		"announcement's wrong type":       {"POST", "events", `{"resources":"a"}`, 400, "resources"},
		"announcement's bad notice":       {"POST", "events", `{"type":"Reboot","notice":"soon"}`, 400, `notice "soon"`},
		"announcement's negative outage":  {"POST", "events", `{"type":"Reboot","outage":"-1s"}`, 400, `outage "-1s"`},
		"announcement's bad time":         {"POST", "events", `{"type":"Reboot","notBefore":"noon"}`, 400, `notBefore "noon"`},
		"unknown scenario":                {"POST", "events", `{"scenario":"flood"}`, 400, "live-migration"},
		"unknown scale set": {
			"POST", "events", `{"type":"Reboot","resources":["a"],"scaleSet":"nope"}`, 404, testSet,
		},
		"ID that exists": {
			"POST", "events", `{"type":"Reboot","resources":["a"],"eventId":"` + live.EventID + `"}`, 409, live.EventID,
		},
		"body of two megabytes":       {"POST", "events", strings.Repeat(" ", 2<<20), 400, "too large"},
		"unknown event":               {"GET", "events/7", "", 404, `"7"`},
		"start of an unknown event":   {"POST", "events/7/start", "", 404, `"7"`},
		"start of a started event":    {"POST", "events/" + started.EventID + "/start", "", 409, "Started"},
		"cancel of a started event":   {"POST", "events/" + started.EventID + "/cancel", "", 409, "Started"},
		"new time of a started event": {"POST", "events/" + started.EventID + "/reschedule", `{"notice":"1s"}`, 409, "Started"},
		"start of a cancelled event":  {"POST", "events/" + gone.EventID + "/start", "", 409, "vanished"},
		"cancel of a cancelled event": {"POST", "events/" + gone.EventID + "/cancel", "", 409, "vanished"},
		"finish before the start":     {"POST", "events/" + live.EventID + "/finish", "", 409, "Scheduled"},
		"reschedule without time":     {"POST", "events/" + live.EventID + "/reschedule", `{}`, 400, "either"},
		"reschedule to two times": {
			"POST", "events/" + live.EventID + "/reschedule",
			`{"notice":"1s","notBefore":"2099-01-01T00:00:00Z"}`, 400, "either",
		},
		"fault without JSON":       {"POST", "faults", "", 400, "faults"},
		"empty list of faults":     {"POST", "faults", "[]", 400, "at least"},
		"fault's unknown kind":     {"POST", "faults", `[{"kind":"empty"},{"kind":"bang"}]`, 400, `fault 1: kind "bang"`},
		"fault's bad duration":     {"POST", "faults", `{"kind":"empty","for":"long"}`, 400, `for "long"`},
		"ledger of no event":       {"GET", "ledger?event=7", "", 404, `"7"`},
		"ledger in unknown format": {"GET", "ledger?format=xml", "", 400, "xml"},
		"ledger's bad tolerance":   {"GET", "ledger?format=summary&tolerance=x", "", 400, "tolerance"},
	} {
		t.Run(name, func(t *testing.T) {
			var got struct{ Error string }
			status := callControl(t, tt.method, base+tt.path, tt.body, &got)
			if status != tt.status || !strings.Contains(got.Error, tt.message) {
				t.Errorf("got %d %q, want %d with %q", status, got.Error, tt.status, tt.message)
			}
		})
	}
	check.Equal(t, before.Events, e.State().Events)
	if left := e.Faults(); len(left) != 0 {
		t.Errorf("faults: %+v", left)
	}
}

// fixedBookkeeper is a Bookkeeper of pods that all ran on one node, which stands behind every machine.
type fixedBookkeeper []Pod

func (b fixedBookkeeper) Ledger(state State) Ledger {
	return NewLedger(state, b, func(string) (string, bool) { return "node", true })
}

func TestControlShowsTheLedger(t *testing.T) {
	now := time.Now()
	pod := Pod{
		Namespace: "shop", Name: "web-1", Node: "node", BoundAt: now, DeletionSeenAt: now, DeletedAt: now,
		EndedAt: now.Add(time.Hour), ExitCode: new(int32(0)), WantedSeconds: 30, GrantedSeconds: 30,
	}
	e := newEmulator(t, Options{LedgerBuilder: fixedBookkeeper{pod}})
	url := serveEmulator(t, e) + "/emulator/ledger"
	first := mustAnnounce(t, e, Announcement{Type: Preempt, Resources: []string{vm0}})
	mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm1}})

	var ledger Ledger
	if status := callControl(t, "GET", url, "", &ledger); status != 200 || len(ledger.Events) != 2 {
		t.Errorf("got %d %+v", status, ledger)
	}
	status := callControl(t, "GET", url+"?event="+strings.ToLower(first.EventID), "", &ledger)
	if status != 200 || len(ledger.Events) != 1 || ledger.Events[0].Pods[0].Outcome != OutcomeFinished {
		t.Errorf("got %d %+v", status, ledger)
	}
	status, text := sendCall(t, "GET", url+"?event="+first.EventID+"&format=summary&tolerance=2s", "")
	want := "Preempt " + first.EventID + " of " + vm0 +
		": 1 pods, 1 finished, 0 cut-short, 0 lost; 0 cut with more than 2s left\n"
	if status != 200 || text != want {
		t.Errorf("got %d %q, want %q", status, text, want)
	}
}

func TestLedgerWithoutClusterIsRefused(t *testing.T) {
	e := newEmulator(t, Options{})
	var got struct{ Error string }
	status := callControl(t, "GET", serveEmulator(t, e)+"/emulator/ledger", "", &got)
	if status != 404 || !strings.Contains(got.Error, "no cluster") {
		t.Errorf("got %d %q", status, got.Error)
	}
}

func TestEveryScenarioCanBeAnnounced(t *testing.T) {
	e := newEmulator(t, Options{})
	for _, name := range ScenarioNames() {
		a, err := NewScenario(name, vm0)
		must.NoError(t, err)
		if _, err := e.Announce(a); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewScenario("flood"); !errors.Is(err, ErrInvalid) {
		t.Errorf("an unknown scenario: %v", err)
	}
}

func FuzzParseAnnouncement(f *testing.F) {
	f.Add([]byte(`{"type":"Preempt","resources":["aks-spot-12345678-vmss_3"],"notice":"30s"}`))
	f.Add([]byte(`{"scenario":"live-migration","resources":["a","b"],"notBefore":"2026-08-01T12:00:00Z"}`))
	f.Add([]byte(`{"type":"Reboot","resources":["a"],"status":"Started","durationSeconds":-1,"outage":"1m"}`))
	f.Add([]byte(`{"resources":null}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := ParseAnnouncement(body)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("not ErrInvalid: %v", err)
			}
			return
		}
		// Announce may only fail for reasons that the parser cannot know.
		e := New(Options{})
		defer e.Close()
		e.EnsureScaleSet(testSet)
		a.ScaleSet = testSet
		record, err := e.Announce(a)
		must.NoError(t, err)
		if record.Status == Scheduled && record.NotBefore.IsZero() {
			t.Fatalf("the event has no time: %+v", record)
		}
	})
}

func FuzzParseFaults(f *testing.F) {
	f.Add([]byte(`{"kind":"status","status":429,"times":3,"retryAfter":"1s"}`))
	f.Add([]byte(`[{"kind":"field","field":"NotBefore","value":{"a":[1]}},{"kind":"reset","for":"1h"}]`))
	f.Add([]byte(`[]`))
	f.Add([]byte(` [{}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		faults, err := ParseFaults(body)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("not ErrInvalid: %v", err)
			}
			return
		}
		written, err := json.Marshal(faults)
		must.NoError(t, err)
		again, err := ParseFaults(written)
		if err != nil {
			t.Fatalf("%s, from %s: %v", written, body, err)
		}
		rewritten, err := json.Marshal(again)
		if err != nil || string(rewritten) != string(written) {
			t.Fatalf("%s is parsed and encoded as %s, %v", written, rewritten, err)
		}
	})
}
