package report

import (
	"strings"
	"testing"
	"time"
)

const preempt = `{"owner":"azure-e1","reason":"r","since":"2026-01-01T00:00:00Z","state":{"notice":{"ID":"e1","Source":"azure",` +
	`"Type":"Preempt","Status":"Scheduled"},"seen":{"first":"2026-01-01T00:00:00Z"},"decision":{"action":"drain","forced":true,` +
	`"deadline":"2026-01-01T00:00:30Z"},"phase":"draining","later":"version"}}`

func TestReportIsReadFromAgentRecord(t *testing.T) {
	reports, problems := ReadReports(map[string]string{
		"cordon.slipway.dev/azure-e1":     preempt,
		"cordon.slipway.dev/retirement-7": `{"owner":"retirement-7","since":"2026-01-01T00:00:00Z"}`,
		"cordon.slipway.dev/azure-E2":     strings.NewReplacer(`"azure-e1"`, `"azure-E2"`, `"e1"`, `"e2"`).Replace(preempt), // the agent skips it, too
		"cordon.slipway.dev/other":        `{"owner":"other","since":"2026-01-01T00:00:00Z","state":{"some":"thing"}}`,
		"example.com/note":                "mine",
	})
	if len(problems) != 0 || len(reports) != 1 {
		t.Fatalf("%v, %v", reports, problems)
	}
	r := reports[0]
	if r.ID != "e1" || r.Type != "Preempt" || r.Phase != "draining" || !r.Forced || r.Deadline.Sub(r.Seen) != 30*time.Second {
		t.Errorf("%+v", r)
	}
}

func TestI7NoticeBehindAnUnreadableRecordStays(t *testing.T) {
	for what, tt := range map[string]struct {
		annotations     map[string]string
		stands, remains bool
	}{
		"its record is there": {map[string]string{"cordon.slipway.dev/azure-e1": preempt}, true, true},
		"its record is gone":  {map[string]string{}, false, false},
		"another record is there": {
			map[string]string{"cordon.slipway.dev/request-manual": `{"owner":"request-manual","since":"2026-01-01T00:00:00Z"}`}, false, false,
		},
		"its record is unreadable":     {map[string]string{"cordon.slipway.dev/azure-e1": "{"}, true, true},
		"its state is unreadable":      {map[string]string{"cordon.slipway.dev/azure-e1": `{"owner":"azure-e1","state":[1]}`}, true, true},
		"another record is unreadable": {map[string]string{"cordon.slipway.dev/x": "{"}, true, false},
		"its owner is wrong":           {map[string]string{"cordon.slipway.dev/azure-e1": `{"owner":"azure-e2"}`}, true, true},
	} {
		if got := HasRecord(tt.annotations, "azure", "e1"); got != tt.remains {
			t.Errorf("%s: remains: %t, want %t", what, got, tt.remains)
		}
		if got := MayBeActive(tt.annotations, "azure", "e1"); got != tt.stands {
			t.Errorf("%s: %t, want %t", what, got, tt.stands)
		}
	}
}

func FuzzOf(f *testing.F) {
	f.Add("azure-e1", preempt)
	f.Add("x", "{}")
	f.Fuzz(func(t *testing.T, key, value string) {
		reports, problems := ReadReports(map[string]string{"cordon.slipway.dev/" + key: value})
		for _, r := range reports {
			if r.ID == "" || r.Type == "" {
				t.Errorf("%+v", r)
			}
		}
		if len(reports)+len(problems) > 1 {
			t.Errorf("%v, %v for one record", reports, problems)
		}
	})
}
