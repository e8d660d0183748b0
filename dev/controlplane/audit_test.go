package controlplane

import (
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/check"
)

const auditLines = `{"auditID":"w","stage":"ResponseStarted","verb":"watch","objectRef":{"resource":"pods"},"requestReceivedTimestamp":"2026-01-01T00:00:00.500000Z"}
{"auditID":"e","stage":"ResponseComplete","verb":"create","userAgent":"slipway/1","user":{"username":"a"},"objectRef":{"resource":"pods","subresource":"eviction","namespace":"n","name":"p"},"requestReceivedTimestamp":"2026-01-01T00:00:01.000000Z"}
{"auditID":"h","stage":"ResponseComplete","verb":"get","requestURI":"/healthz","requestReceivedTimestamp":"2026-01-01T00:00:02.000000Z"}
{"auditID":"w","stage":"ResponseComplete","verb":"watch","objectRef":{"resource":"pods"},"requestReceivedTimestamp":"2026-01-01T00:00:00.500000Z"}
`

func TestReadAuditReturnsEachRequestOnce(t *testing.T) {
	for name, test := range map[string]struct {
		filter AuditFilter
		want   []string // audit ID and stage
	}{
		"everything":     {AuditFilter{}, []string{"w ResponseComplete", "e ResponseComplete", "h ResponseComplete"}},
		"a subresource":  {AuditFilter{Resource: "pods/eviction"}, []string{"e ResponseComplete"}},
		"its parent":     {AuditFilter{Resource: "pods"}, []string{"w ResponseComplete"}},
		"a client":       {AuditFilter{UserAgent: "slipway/"}, []string{"e ResponseComplete"}},
		"a user":         {AuditFilter{User: "b"}, nil},
		"an object":      {AuditFilter{Namespace: "n", Name: "p"}, []string{"e ResponseComplete"}},
		"without object": {AuditFilter{Namespace: "n", Verb: "get"}, nil},
		"since": {
			AuditFilter{Since: time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC)}, []string{"h ResponseComplete"},
		},
	} {
		events, err := readAudit(strings.NewReader(auditLines), test.filter)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, event := range events {
			got = append(got, string(event.AuditID)+" "+string(event.Stage))
		}
		if strings.Join(got, ",") != strings.Join(test.want, ",") {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

func TestReadAuditSkipsUnfinishedLine(t *testing.T) {
	half := auditLines[:strings.Index(auditLines, "\n")+40]
	events, err := readAudit(strings.NewReader(half), AuditFilter{})
	if err != nil || len(events) != 1 {
		t.Errorf("a log with an unfinished second line: %d events, %v, want 1", len(events), err)
	}
	_, err = readAudit(strings.NewReader(half+"\n"), AuditFilter{})
	check.ErrorContains(t, err, "line 2")
}

func FuzzReadAudit(f *testing.F) {
	f.Add(auditLines)
	f.Add("{}\n")
	f.Add("null\n{\"user\":null}\n")
	f.Fuzz(func(t *testing.T, log string) {
		events, err := readAudit(strings.NewReader(log), AuditFilter{Resource: "pods", Since: time.Unix(0, 0)})
		if err != nil && events != nil {
			t.Errorf("an error (%v) and %d events", err, len(events))
		}
		for _, event := range events {
			if event.ObjectRef == nil || event.ObjectRef.Resource != "pods" {
				t.Errorf("the filter for pods matches %+v", event.ObjectRef)
			}
		}
	})
}
