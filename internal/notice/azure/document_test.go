package azure

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slipway-dev/slipway/internal/notice"
)

var readAt = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

func sample(tb testing.TB, name string) Document {
	tb.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "documents", name))
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// preemptOf is a document of one Preempt of vm_1, with some fields replaced: a nil value removes one.
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
		panic(err) // of the test's own values
	}
	return raw
}

func mustRead(t *testing.T, d Document, resource string) notice.Snapshot {
	t.Helper()
	s, err := d.Snapshot(resource, readAt)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDocumentOfAScaleSetIsReadForOneMachine(t *testing.T) {
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
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

func TestDocumentForAMachineThatIsOnlyAPrefixOfAnotherIsEmpty(t *testing.T) {
	for _, resource := range []string{"vm_", "vm", "m_1", "vm_100", "vm_1 "} {
		if s := mustRead(t, sample(t, "scale-set.json"), resource); len(s.Notices)+len(s.Unreadable) != 0 {
			t.Errorf("for %q: %+v", resource, s)
		}
	}
}

func TestLiveMigrationIsToldFromItsDescription(t *testing.T) {
	s := mustRead(t, sample(t, "live-migration.json"), "vm_1")
	n := s.Notices[0]
	if !n.LiveMigration || n.Status != notice.Started || !n.NotBefore.IsZero() || n.Duration != 5*time.Second {
		t.Errorf("notice %+v", n)
	}
	for _, change := range []map[string]any{
		{"Description": "live migration"}, // but a Preempt
		{"EventType": "Freeze", "Description": "Host server is undergoing maintenance."},
		{"EventType": "Freeze", "Description": nil},
	} {
		if n := mustRead(t, preemptOf(change), "vm_1").Notices[0]; n.LiveMigration {
			t.Errorf("%v taken to be a live migration", change)
		}
	}
}

func TestNotBeforeIsReadInEveryFormInUse(t *testing.T) {
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

func TestAFaultThatOnlyBlursANoticeIsWarnedOfAndTheNoticeStands(t *testing.T) {
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
		{"DurationInSeconds", "long", `Events[0].DurationInSeconds: "long": want whole seconds, 0 for no impact, ` +
			`or -1 for unknown`},
		{"DurationInSeconds", json.RawMessage("null"), `Events[0].DurationInSeconds: null: want whole seconds, ` +
			`0 for no impact, or -1 for unknown`},
		{"DurationInSeconds", json.RawMessage("9223372036854775807"), `Events[0].DurationInSeconds: ` +
			`9223372036854775807: want whole seconds, 0 for no impact, or -1 for unknown`},
		{"Description", []int{1}, `Events[0].Description: [1]: want a string`},
		{"EventSource", "Moon", `Events[0].EventSource: "Moon": want one of Platform, User`},
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

func TestI7AnUnreadableEventSpoilsNoOtherAndIsNotOver(t *testing.T) {
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
		{
			"unknown status",
			map[string]any{"EventStatus": "Completed"},
			"E",
			`Events[0].EventStatus: "Completed": want one of Scheduled, Started`,
		},
		{"ID missing", map[string]any{"EventId": nil}, "", `Events[0].EventId is missing`},
		{"ID null", map[string]any{"EventId": null}, "", `Events[0].EventId is empty`},
		{"ID is a number", map[string]any{"EventId": 12}, "", `Events[0].EventId: 12: want a string`},
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
			map[string]any{"Resources": "vm_1"},
			"E",
			`Events[0].Resources: "vm_1": want a list of machine names`,
		},
		{
			"resources of numbers",
			map[string]any{"Resources": []any{"vm_1", 1}},
			"E",
			`Events[0].Resources: ["vm_1",1]: want a list of machine names`,
		},
		{
			"resources with a null",
			map[string]any{"Resources": []any{"vm_1", nil}},
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
				if err := json.Unmarshal(preemptOf(changes), &d); err != nil {
					t.Fatal(err)
				}
				event = d.Events[0]
			}
			s := mustRead(t, documentOf(event, good), "vm_1")
			if len(s.Notices) != 1 || s.Notices[0].ID != "GOOD" {
				t.Errorf("notices %+v, want GOOD alone", s.Notices)
			}
			if len(s.Unreadable) != 1 || s.Unreadable[0].ID != tc.id || s.Unreadable[0].Err.Error() != tc.problem {
				t.Errorf("unreadable %v, want %s: %s", s.Unreadable, tc.id, tc.problem)
			}
			named := !strings.Contains(tc.problem, "Resources") && !strings.Contains(tc.problem, "want an object")
			if len(s.Unreadable) == 1 && s.Unreadable[0].Named != named {
				t.Errorf("it is known that the event names this machine: %t, want %t", !named, named)
			}
			if s.Over("E") {
				t.Error("E is taken to be over")
			}
		})
	}
}

func TestAnotherMachinesEventIsIgnoredHoweverBroken(t *testing.T) {
	d := preemptOf(map[string]any{
		"Resources": []string{"vm_10"}, "EventId": 5, "EventType": "Meltdown", "EventStatus": nil, "NotBefore": "soon",
	})
	s := mustRead(t, d, "vm_1")
	if diff := cmp.Diff(notice.Snapshot{At: readAt}, s, cmpopts.EquateErrors()); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

func TestOfEventsWithOneIDTheLastReadableIsTaken(t *testing.T) {
	entry := func(kind string, resources ...string) any {
		return map[string]any{"EventId": "E", "EventType": kind, "EventStatus": "Scheduled", "Resources": resources}
	}
	s := mustRead(t, documentOf(entry("Freeze", "vm_1"), entry("Preempt", "vm_1"), entry("Meltdown", "vm_1"),
		entry("Reboot", "vm_2")), "vm_1")
	if len(s.Notices) != 1 || s.Notices[0].Type != notice.Preempt || len(s.Unreadable) != 0 || len(s.Warnings) != 2 {
		t.Errorf("snapshot %+v", s)
	}
}

func TestI7ADocumentThatIsNoneIsAnErrorOfItsClass(t *testing.T) {
	whole := string(sample(t, "scale-set.json"))
	for _, tc := range []struct {
		name, document string
		class          Class
		says           string
	}{
		{"empty", "", NotJSON, "unexpected end"},
		{"web page", "<html><body>Captive portal</body></html>", NotJSON, "<html>"},
		{"half a document", whole[:len(whole)/2], NotJSON, "unexpected end"},
		{"two documents", whole + whole, NotJSON, "after top-level value"},
		{"list", "[]", WrongShape, "want an object"},
		{"text", `"Events"`, WrongShape, "want an object"},
		{"null", "null", WrongShape, "Events is missing"},
		{"error document", `{"error":"Bad request. api-version was not specified"}`, WrongShape, "Events is missing"},
		{"Events missing", `{"DocumentIncarnation":1}`, WrongShape, "Events is missing"},
		{"Events null", `{"DocumentIncarnation":1,"Events":null}`, WrongShape, "Events: null: want a list"},
		{"Events is an object", `{"DocumentIncarnation":1,"Events":{}}`, WrongShape, "Events: {}: want a list"},
		{
			"incarnation is text", `{"DocumentIncarnation":"1","Events":[]}`, WrongShape,
			`DocumentIncarnation: "1": want an integer`,
		},
		{
			"incarnation is null", `{"DocumentIncarnation":null,"Events":[]}`, WrongShape,
			`DocumentIncarnation: null: want an integer`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := Document(tc.document).Snapshot("vm_1", readAt)
			var failed *Error
			if !errors.As(err, &failed) || failed.Class != tc.class || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want class %s saying %q", err, tc.class, tc.says)
			}
			if diff := cmp.Diff(notice.Snapshot{}, s); diff != "" {
				t.Errorf("a snapshot came with the error: %s", diff)
			}
		})
	}
}

func TestADocumentWithoutIncarnationIsReadAndWarnedOf(t *testing.T) {
	s := mustRead(t, Document(`{"Events":[],"Extra":{"a":[1,2]}}`), "vm_1")
	if len(s.Warnings) != 1 || s.Warnings[0].Err.Error() != "DocumentIncarnation is missing" {
		t.Errorf("warnings %v", s.Warnings)
	}
}

func TestProblemsWithoutEndAreCountedNotListed(t *testing.T) {
	d := Document(`{"DocumentIncarnation":1,"Events":[` + strings.TrimSuffix(strings.Repeat("1,", 100_000), ",") + `]}`)
	s := mustRead(t, d, "vm_1")
	last := s.Unreadable[len(s.Unreadable)-1]
	if len(s.Unreadable) != maxProblems+1 || last.ID != "" || last.Err.Error() != "and 99936 more problems" {
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
		s, err := Document(raw).Snapshot(resource, readAt)
		if err != nil {
			var failed *Error
			if !errors.As(err, &failed) || !slices.Contains(Classes(), failed.Class) {
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
		if len(s.Unreadable) > maxProblems+1 || len(s.Warnings) > maxProblems+1 {
			t.Errorf("%d unreadable, %d warnings", len(s.Unreadable), len(s.Warnings))
		}
	})
}

func BenchmarkDocumentOfThirtyMachines(b *testing.B) {
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
		if s, err := d.Snapshot("vm_1", readAt); err != nil || len(s.Notices) != 1 {
			b.Fatal(s, err)
		}
	}
}
