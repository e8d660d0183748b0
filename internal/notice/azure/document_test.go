package azure

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var readAt = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

func sample(tb testing.TB, name string) Document {
	tb.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "documents", name))
	must.NoError(tb, err)
	return raw
}

// preemptOf returns a document with one Preempt of vm_1 and some replaced fields; a nil value removes a field.
func preemptOf(changes map[string]any) Document {
	fields := map[string]any{
		"EventId": "E", "EventType": "Preempt", "EventStatus": "Scheduled", "ResourceType": "VirtualMachine",
		"Resources": []string{"vm_1"}, "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT", "Description": "",
		"EventSource": "Platform", "DurationInSeconds": -1,
	}
	for field, value := range changes {
		if value == nil {
			delete(fields, field)
		} else {
			fields[field] = value
		}
	}
	return documentOf(fields)
}

func documentOf(events ...any) Document {
	raw, err := json.Marshal(map[string]any{"DocumentIncarnation": 1, "Events": events})
	if err != nil {
		panic(err) // cannot happen: the values are the test's own
	}
	return raw
}

func mustRead(t *testing.T, d Document, resource string) notice.Snapshot {
	t.Helper()
	s, err := d.ToSnapshot(resource, readAt)
	must.NoError(t, err)
	return s
}

func TestScaleSetDocumentIsReadForOneInstance(t *testing.T) {
	got := mustRead(t, sample(t, "scale-set.json"), "vm_1")
	want := notice.Snapshot{At: readAt, Notices: []notice.Notice{
		{
			ID: "0A000000-0000-4000-8000-000000000001", Source: "azure", Type: notice.Terminate,
			Status: notice.Scheduled, Resources: []string{"vm_1"},
			NotBefore: time.Date(2016, 9, 19, 18, 39, 47, 0, time.UTC), Duration: -time.Second,
		},
		{
			ID: "F020BA2E-3BC0-4C40-A10B-86575A9EABD5", Source: "azure", Type: notice.Reboot,
			Status: notice.Scheduled, Resources: []string{"vm_10", "VM_1", "vm_11"},
			NotBefore: time.Date(2016, 9, 19, 18, 29, 47, 0, time.UTC), UserInitiated: true,
			Description: "Host server is undergoing maintenance.",
		},
	}, Warnings: []notice.Problem{{
		ID: "0A000000-0000-4000-8000-000000000001", NamesInstance: true,
		Err: errors.New("Events[2].EventSource is missing; assuming Platform"),
	}}}
	sameText := cmp.Comparer(func(a, b error) bool { return a.Error() == b.Error() })
	check.Equal(t, want, got, sameText)
}

func TestPrefixOfAnotherInstanceMatchesNothing(t *testing.T) {
	for _, resource := range []string{"vm_", "vm", "m_1", "vm_100", "vm_1 "} {
		if s := mustRead(t, sample(t, "scale-set.json"), resource); len(s.Notices)+len(s.Unreadable) != 0 {
			t.Errorf("for %q: %+v", resource, s)
		}
	}
}

func TestLiveMigrationIsReadFromDescription(t *testing.T) {
	s := mustRead(t, sample(t, "live-migration.json"), "vm_1")
	n := s.Notices[0]
	if !n.LiveMigration || n.Status != notice.Started || !n.NotBefore.IsZero() || n.Duration != 5*time.Second {
		t.Errorf("notice %+v", n)
	}
	for _, change := range []map[string]any{
		{"Description": "live migration"}, // on a Preempt
		{"EventType": "Freeze", "Description": "Host server is undergoing maintenance."},
		{"EventType": "Freeze", "Description": nil},
	} {
		if n := mustRead(t, preemptOf(change), "vm_1").Notices[0]; n.LiveMigration {
			t.Errorf("%v was read as a live migration", change)
		}
	}
}

func TestNotBeforeIsReadInEveryKnownForm(t *testing.T) {
	want := time.Date(2016, 9, 9, 18, 29, 47, 0, time.UTC)
	for value, want := range map[string]time.Time{
		"Fri, 09 Sep 2016 18:29:47 GMT":   want,
		"Fri, 9 Sep 2016 18:29:47 GMT":    want,
		"Fri, 09 Sep 2016 18:29:47 UTC":   want,
		"Fri, 09 Sep 2016 20:29:47 +0200": want,
		"2016-09-09T18:29:47Z":            want,
		"2016-09-09T20:29:47+02:00":       want,
		"":                                {},
		" ":                               {},
	} {
		s := mustRead(t, preemptOf(map[string]any{"NotBefore": value}), "vm_1")
		if got := s.Notices[0].NotBefore; got != want || len(s.Warnings) != 0 {
			t.Errorf("NotBefore %q read as %v, warnings %v; want %v", value, got, s.Warnings, want)
		}
	}
}

func TestNoticeWithMalformedFieldIsKeptWithWarning(t *testing.T) {
	for _, tc := range []struct {
		field   string
		value   any
		warning string
	}{
		{"NotBefore", "tomorrow", `Events[0].NotBefore: "tomorrow": want an RFC 1123 time such as ` +
			`"Mon, 19 Sep 2016 18:29:47 GMT" or empty`},
		{"NotBefore", 5, `Events[0].NotBefore: 5: want an RFC 1123 time such as ` +
			`"Mon, 19 Sep 2016 18:29:47 GMT" or empty`},
		{"NotBefore", "Mon, 19 Sep 2016 18:29:47 PST", `Events[0].NotBefore: "Mon, 19 Sep 2016 18:29:47 PST": want an ` +
			`RFC 1123 time such as "Mon, 19 Sep 2016 18:29:47 GMT" or empty`},
		{"NotBefore", "Fri, 31 Dec 9999 23:59:59 GMT", `Events[0].NotBefore: "Fri, 31 Dec 9999 23:59:59 GMT": want an ` +
			`RFC 1123 time such as "Mon, 19 Sep 2016 18:29:47 GMT" or empty`},
		{"NotBefore", "9998-12-31T23:59:59-01:00", `Events[0].NotBefore: "9998-12-31T23:59:59-01:00": want an ` +
			`RFC 1123 time such as "Mon, 19 Sep 2016 18:29:47 GMT" or empty`},
		{"NotBefore", "0000-01-01T00:00:00+01:00", `Events[0].NotBefore: "0000-01-01T00:00:00+01:00": want an ` +
			`RFC 1123 time such as "Mon, 19 Sep 2016 18:29:47 GMT" or empty`},
		{"DurationInSeconds", "long", `Events[0].DurationInSeconds: "long": want whole seconds, 0 for no impact, ` +
			`or -1 for unknown`},
		{"DurationInSeconds", json.RawMessage("null"), `Events[0].DurationInSeconds: null: want whole seconds, ` +
			`0 for no impact, or -1 for unknown`},
		{"DurationInSeconds", json.RawMessage("9223372036854775807"), `Events[0].DurationInSeconds: ` +
			`9223372036854775807: want whole seconds, 0 for no impact, or -1 for unknown`},
		{"Description", []int{1}, `Events[0].Description: [1]: want a string`},
		{"EventSource", "Moon", `Events[0].EventSource: "Moon": want one of Platform, User; assuming Platform`},
		{"EventSource", "", `Events[0].EventSource is empty; assuming Platform`},
		{"EventSource", nil, `Events[0].EventSource is missing; assuming Platform`},
		{"EventStatus", "", `Events[0].EventStatus is empty; assuming Scheduled`},
		{"EventStatus", nil, `Events[0].EventStatus is missing; assuming Scheduled`},
		{"EventStatus", []int{1}, `Events[0].EventStatus: [1]: want a string; assuming Scheduled`},
		{"EventStatus", "Completed", `Events[0].EventStatus: "Completed": want one of Scheduled, Started; assuming Scheduled`},
		{"Resources", "vm_1", `Events[0].Resources: "vm_1": want a list of machine names`},
		{"Resources", []any{"vm_1", 1}, `Events[0].Resources[1]: 1: want a machine name`},
		{"Resources", []any{"vm_1", nil}, `Events[0].Resources[1]: null: want a machine name`},
	} {
		t.Run(fmt.Sprint(tc.field, " ", tc.value), func(t *testing.T) {
			s := mustRead(t, preemptOf(map[string]any{tc.field: tc.value}), "vm_1")
			if len(s.Notices) != 1 || s.Notices[0].Type != notice.Preempt || len(s.Unreadable) != 0 {
				t.Fatalf("the Preempt was lost: %+v", s)
			}
			if tc.field == "NotBefore" && !s.Notices[0].NotBefore.IsZero() {
				t.Errorf("NotBefore %v, want none", s.Notices[0].NotBefore)
			}
			if tc.field == "DurationInSeconds" && s.Notices[0].Duration >= 0 {
				t.Errorf("Duration %v, want unknown", s.Notices[0].Duration)
			}
			if len(s.Warnings) != 1 || s.Warnings[0].ID != "E" || s.Warnings[0].Err.Error() != tc.warning {
				t.Errorf("warnings %v, want %s", s.Warnings, tc.warning)
			}
		})
	}
}

func TestI7UnreadableEventEndsNoNotice(t *testing.T) {
	null := json.RawMessage("null")
	good := map[string]any{
		"EventId": "GOOD", "EventType": "Reboot", "EventStatus": "Scheduled", "Resources": []string{"vm_1"},
	}
	for _, tc := range []struct {
		name    string
		event   any
		id      string
		problem string
	}{
		{
			"unknown type",
			map[string]any{"EventType": "Meltdown"},
			"E",
			`Events[0].EventType: "Meltdown": want one of Freeze, Reboot, Redeploy, Preempt, Terminate`,
		},
		{"type missing", map[string]any{"EventType": nil}, "E", `Events[0].EventType is missing`},
		{"type is a number", map[string]any{"EventType": 7}, "E", `Events[0].EventType: 7: want a string`},
		{"resources missing", map[string]any{"Resources": nil}, "E", `Events[0].Resources is missing`},
		{
			"resources null",
			map[string]any{"Resources": null},
			"E",
			`Events[0].Resources: null: want a list of machine names`,
		},
		{
			"resources empty",
			map[string]any{"Resources": []string{}},
			"E",
			`Events[0].Resources: []: want a list of machine names`,
		},
		{
			"resources is a string",
			map[string]any{"Resources": "vm_1,vm_2"},
			"E",
			`Events[0].Resources: "vm_1,vm_2": want a list of machine names`,
		},
		{
			"resources of numbers",
			map[string]any{"Resources": []any{"vm_2", 1}},
			"E",
			`Events[0].Resources[1]: 1: want a machine name`,
		},
		{
			"resources with a null",
			map[string]any{"Resources": []any{"vm_2", nil}},
			"E",
			`Events[0].Resources[1]: null: want a machine name`,
		},
		{"no object", "boo", "", `Events[0]: "boo": want an object`},
		{"null", null, "", `Events[0]: null: want an object`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			event := tc.event
			if changes, ok := event.(map[string]any); ok {
				var d struct{ Events []any }
				must.NoError(t, json.Unmarshal(preemptOf(changes), &d))
				event = d.Events[0]
			}
			s := mustRead(t, documentOf(event, good), "vm_1")
			if len(s.Notices) != 1 || s.Notices[0].ID != "GOOD" {
				t.Errorf("notices %+v, want only GOOD", s.Notices)
			}
			if len(s.Unreadable) != 1 || s.Unreadable[0].ID != tc.id || s.Unreadable[0].Err.Error() != tc.problem {
				t.Errorf("unreadable %v, want %s: %s", s.Unreadable, tc.id, tc.problem)
			}
			named := !strings.Contains(tc.problem, "Resources") && !strings.Contains(tc.problem, "want an object")
			if len(s.Unreadable) == 1 && s.Unreadable[0].NamesInstance != named {
				t.Errorf("Named is %t, want %t", !named, named)
			}
			if s.HasEnded("E") {
				t.Error("E counts as ended")
			}
		})
	}
}

func TestEventWithoutIDIsANoticeAndEndsNone(t *testing.T) {
	long := strings.Repeat("E", poll.MaxIDBytes+1)
	for value, warning := range map[any]string{
		nil: "Events[0].EventId is missing", "": "Events[0].EventId is empty", 12: "Events[0].EventId: 12: want a string",
		long: "Events[0].EventId: has 257 bytes: want at most 256",
	} {
		s := mustRead(t, preemptOf(map[string]any{"EventId": value}), "vm_1")
		if len(s.Notices) != 1 || s.Notices[0].ID != "unnamed-preempt" || !s.Notices[0].HasGeneratedID || len(s.Warnings) != 1 ||
			s.Warnings[0].Err.Error() != warning {
			t.Errorf("EventId %.20v: %+v", value, s)
		}
		if s.HasEnded("E") {
			t.Errorf("EventId %.20v: E counts as ended", value)
		}
	}
	entry := map[string]any{"EventType": "Reboot", "EventStatus": "Scheduled", "Resources": []string{"vm_1"}}
	s := mustRead(t, documentOf(entry, entry), "vm_1")
	if len(s.Notices) != 2 || s.Notices[0].ID != "unnamed-reboot" || s.Notices[1].ID != "unnamed-reboot-2" {
		t.Errorf("two events without ID: %+v", s.Notices)
	}
}

func TestBrokenEventOfAnotherInstanceIsIgnored(t *testing.T) {
	d := preemptOf(map[string]any{
		"Resources": []string{"vm_10"}, "EventId": 5, "EventType": "Meltdown", "EventStatus": nil, "NotBefore": "soon",
	})
	s := mustRead(t, d, "vm_1")
	check.Equal(t, notice.Snapshot{At: readAt}, s, cmpopts.EquateErrors())
}

func TestMostSevereReadableEventOfAnIDWins(t *testing.T) {
	entry := func(kind string, resources ...string) any {
		return map[string]any{
			"EventId": "E", "EventType": kind, "EventStatus": "Scheduled", "EventSource": "Platform", "Resources": resources,
		}
	}
	freeze, preempt, other := entry("Freeze", "vm_1"), entry("Preempt", "vm_1"), entry("Reboot", "vm_2")
	for _, d := range []Document{
		documentOf(freeze, preempt, entry("Meltdown", "vm_1"), other), documentOf(preempt, freeze, entry("Meltdown", "vm_1"), other),
	} {
		s := mustRead(t, d, "vm_1")
		if len(s.Notices) != 1 || s.Notices[0].Type != notice.Preempt || len(s.Unreadable) != 0 || len(s.Warnings) != 2 {
			t.Errorf("snapshot %+v", s)
		}
	}
}

// oddValues are values that no field of an event has, and a missing field.
var oddValues = []any{nil, json.RawMessage("null"), "", " ", "x", 7, -1, 1.5, true, []any{}, []any{"Started"}, map[string]any{"a": 1}, "E-1", strings.Repeat("y", 300)}

// drawEvent draws an event with a readable type for these instances, and any values in the optional fields.
func drawEvent(t *rapid.T, kind notice.Type, machines ...any) map[string]any {
	event := map[string]any{
		"EventType": rapid.SampledFrom([]string{string(kind), strings.ToLower(string(kind)), " " + string(kind) + " "}).Draw(t, "type"),
		"Resources": machines,
	}
	optional := map[string][]any{
		"EventId": {"E-1", "E-2"}, "EventStatus": {"Scheduled", "Started", "Completed"}, "EventSource": {"Platform", "User"},
		"NotBefore":   {"", "Mon, 19 Sep 2016 18:29:47 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "2026-09-01T12:00:00Z"},
		"Description": {"", "Host server is undergoing maintenance"}, "DurationInSeconds": {-1, 0, 9, 1e300},
		"ResourceType": {"VirtualMachine"},
	}
	for _, field := range slices.Sorted(maps.Keys(optional)) {
		if value := rapid.SampledFrom(slices.Concat(optional[field], oddValues)).Draw(t, field); value != nil {
			event[field] = value
		}
	}
	return event
}

// The documents have several events, whole and broken ones, for this instance and others.
func TestOddDetailHidesNoEventOfThisInstance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var events []any
		gravest := notice.Type("")
		for range rapid.IntRange(1, 6).Draw(t, "events") {
			kind := rapid.SampledFrom(notice.Interruptions()).Draw(t, "kind")
			switch rapid.SampledFrom([]string{"own", "own", "another's", "broken"}).Draw(t, "whose") {
			case "own":
				events = append(events, drawEvent(t, kind, "vm_2", rapid.SampledFrom([]any{"vm_3", 7, nil}).Draw(t, "other"), "VM_1"))
				if slices.Index(notice.Interruptions(), kind) > slices.Index(notice.Interruptions(), gravest) {
					gravest = kind
				}
			case "another's":
				events = append(events, drawEvent(t, kind, "vm_10"))
			case "broken":
				events = append(events, rapid.SampledFrom(oddValues).Draw(t, "event"))
			}
		}
		s, err := documentOf(events...).ToSnapshot("vm_1", readAt)
		must.NoError(t, err)
		if found := slices.ContainsFunc(s.Notices, func(n notice.Notice) bool { return n.Type == gravest }); gravest != "" && !found {
			t.Errorf("the %s is missing in %+v", gravest, s.Notices)
		}
		for _, n := range s.Notices {
			if n.ID == "" || n.Status != notice.Scheduled && n.Status != notice.Started || n.Duration < -time.Second || n.NotBefore.Year() > maxYear {
				t.Errorf("notice %+v", n)
			}
		}
	})
}

func TestEventsWithThousandsOfInstancesAreRead(t *testing.T) {
	var events []any
	for i := range 8 {
		machines := []any{"vm_1"}
		for j := range 5000 {
			machines = append(machines, fmt.Sprintf("%s_%04d", strings.Repeat("x", 75), j))
		}
		events = append(events, map[string]any{"EventId": fmt.Sprint("E-", i), "EventType": "Preempt", "EventStatus": "Scheduled", "Resources": machines})
	}
	document := documentOf(events...)
	c := newService(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) { write(w, string(document)) })
	d, err := c.Fetch(t.Context())
	must.NoError(t, err)
	if s := mustRead(t, d, "vm_1"); len(s.Notices) != 8 {
		t.Errorf("%d notices of %d bytes, want 8", len(s.Notices), len(document))
	}
}

func TestI7InvalidDocumentIsAnErrorOfItsClass(t *testing.T) {
	whole := string(sample(t, "scale-set.json"))
	for _, tc := range []struct {
		name, document string
		class          poll.Class
		says           string
	}{
		{"empty", "", poll.NotJSON, "unexpected end"},
		{"web page", "<html><body>Captive portal</body></html>", poll.NotJSON, "<html>"},
		{"half a document", whole[:len(whole)/2], poll.NotJSON, "unexpected end"},
		{"two documents", whole + whole, poll.NotJSON, "after top-level value"},
		{"list", "[]", poll.WrongShape, "want an object"},
		{"text", `"Events"`, poll.WrongShape, "want an object"},
		{"null", "null", poll.WrongShape, "Events is missing"},
		{"error document", `{"error":"Bad request. api-version was not specified"}`, poll.WrongShape, "Events is missing"},
		{"Events missing", `{"DocumentIncarnation":1}`, poll.WrongShape, "Events is missing"},
		{"Events null", `{"DocumentIncarnation":1,"Events":null}`, poll.WrongShape, "Events: null: want a list"},
		{"Events is an object", `{"DocumentIncarnation":1,"Events":{}}`, poll.WrongShape, "Events: {}: want a list"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := Document(tc.document).ToSnapshot("vm_1", readAt)
			var failed *poll.Error
			if !errors.As(err, &failed) || failed.Class != tc.class || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want class %s saying %q", err, tc.class, tc.says)
			}
			check.Equal(t, notice.Snapshot{}, s)
		})
	}
}

func TestDocumentWithoutIncarnationIsReadWithAWarning(t *testing.T) {
	for document, warning := range map[string]string{
		`{"Events":[],"Extra":{"a":[1,2]}}`:         "DocumentIncarnation is missing",
		`{"DocumentIncarnation":"1","Events":[]}`:   `DocumentIncarnation: "1": want an integer`,
		`{"DocumentIncarnation":null,"Events":[]}`:  `DocumentIncarnation: null: want an integer`,
		`{"DocumentIncarnation":[1.5],"Events":[]}`: `DocumentIncarnation: [1.5]: want an integer`,
	} {
		s := mustRead(t, Document(document), "vm_1")
		if len(s.Warnings) != 1 || s.Warnings[0].Err.Error() != warning {
			t.Errorf("%s: warnings %v", document, s.Warnings)
		}
	}
}

func TestExcessProblemsAreCountedNotListed(t *testing.T) {
	d := Document(`{"DocumentIncarnation":1,"Events":[` + strings.TrimSuffix(strings.Repeat("1,", 100_000), ",") + `]}`)
	s := mustRead(t, d, "vm_1")
	last := s.Unreadable[len(s.Unreadable)-1]
	if len(s.Unreadable) != poll.MaxProblems+1 || last.ID != "" || last.Err.Error() != "and 99936 more problems" {
		t.Errorf("%d problems, the last %v", len(s.Unreadable), last)
	}
}

func FuzzDocument(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "documents", "*.json"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no samples: %v", err)
	}
	for _, file := range files {
		f.Add([]byte(sample(f, filepath.Base(file))))
	}
	f.Add([]byte(preemptOf(map[string]any{"NotBefore": "tomorrow", "Resources": []any{"vm_1", 2}})))
	f.Add([]byte(`{"error":"x"}`))
	f.Add([]byte(`<html>`))
	f.Add([]byte(`{"DocumentIncarnation":1,"Events":[{"EventId":"E","Resources":["vm_1"]},null,[],{"eventid":"e"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		const resource = "vm_1"
		s, err := Document(raw).ToSnapshot(resource, readAt)
		if err != nil {
			var failed *poll.Error
			if !errors.As(err, &failed) || !slices.Contains(poll.Classes(), failed.Class) {
				t.Fatalf("error %v has no class", err)
			}
			return
		}
		ids := map[string]bool{}
		for _, n := range s.Notices {
			if !slices.ContainsFunc(n.Resources, func(r string) bool { return strings.EqualFold(r, resource) }) {
				t.Errorf("notice %+v does not name %s", n, resource)
			}
			if n.ID == "" || ids[n.ID] || !slices.Contains(notice.Interruptions(), n.Type) ||
				n.Status != notice.Scheduled && n.Status != notice.Started {
				t.Errorf("notice %+v", n)
			}
			ids[n.ID] = true
		}
		for _, p := range s.Unreadable {
			if ids[p.ID] {
				t.Errorf("%q is both readable and unreadable: %v", p.ID, p.Err)
			}
		}
		if len(s.Unreadable) > poll.MaxProblems+1 || len(s.Warnings) > poll.MaxProblems+1 {
			t.Errorf("%d unreadable, %d warnings", len(s.Unreadable), len(s.Warnings))
		}
	})
}

// FuzzOptionalFields sets each optional field of a Preempt to any JSON value, or removes it.
func FuzzOptionalFields(f *testing.F) {
	f.Add(`"E"`, `"Scheduled"`, `"Platform"`, `"Mon, 19 Sep 2016 18:29:47 GMT"`, `""`, "-1", `"VirtualMachine"`, "1")
	f.Add("", "", "", "", "", "", "", "")
	f.Add(`""`, `""`, `""`, `""`, `""`, `""`, `""`, `""`)
	f.Add("null", "null", "null", "null", "null", "null", "null", "null")
	f.Add("{}", "[]", "7", "true", `[{"a":1}]`, `"5"`, "-7.5e300", `"x"`)
	f.Fuzz(func(t *testing.T, id, status, source, notBefore, description, duration, kind, incarnation string) {
		event := map[string]json.RawMessage{"EventType": []byte(`"Preempt"`), "Resources": []byte(`["vm_2","VM_1"]`)}
		for field, value := range map[string]string{
			"EventId": id, "EventStatus": status, "EventSource": source, "NotBefore": notBefore, "Description": description,
			"DurationInSeconds": duration, "ResourceType": kind,
		} {
			if json.Valid([]byte(value)) {
				event[field] = []byte(value)
			}
		}
		document := map[string]any{"Events": []any{event}}
		if json.Valid([]byte(incarnation)) {
			document["DocumentIncarnation"] = json.RawMessage(incarnation)
		}
		raw, err := json.Marshal(document)
		if err != nil {
			t.Skip(err)
		}
		s, err := Document(raw).ToSnapshot("vm_1", readAt)
		if err != nil || len(s.Notices) != 1 || len(s.Unreadable) != 0 {
			t.Fatalf("%s: %+v, %v", raw, s, err)
		}
		n := s.Notices[0]
		if n.ID == "" || len(n.ID) > poll.MaxIDBytes || n.Type != notice.Preempt || n.Duration < -time.Second ||
			n.Status != notice.Scheduled && n.Status != notice.Started {
			t.Errorf("%s: %+v", raw, n)
		}
	})
}

func BenchmarkDocumentOfThirtyInstances(b *testing.B) {
	var events []any
	for i := range 30 {
		events = append(events, map[string]any{
			"EventId": fmt.Sprintf("C7061BAC-AFDC-4513-B24B-%012d", i), "EventType": "Preempt",
			"EventStatus": "Scheduled", "Resources": []string{fmt.Sprintf("vm_%d", i)},
			"NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT", "DurationInSeconds": -1,
		})
	}
	d := documentOf(events...)
	b.ReportAllocs()
	for b.Loop() {
		if s, err := d.ToSnapshot("vm_1", readAt); err != nil || len(s.Notices) != 1 {
			b.Fatal(s, err)
		}
	}
}
