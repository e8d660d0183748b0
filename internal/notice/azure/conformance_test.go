package azure

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/noticetest"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestSourcePassesTheConformanceSuite(t *testing.T) {
	noticetest.Run(t, noticetest.Adapter{
		New: func(t testing.TB, transport http.RoundTripper) noticetest.Source {
			client, err := NewClient(Options{Wrap: func(http.RoundTripper) http.RoundTripper { return transport }})
			must.NoError(t, err)
			source, err := NewSource(SourceOptions{Fetcher: client, Resource: "vm_1", ClockAhead: client.ClockAhead})
			must.NoError(t, err)
			return source
		},
		Serve: serveEvents,
		Announcements: []noticetest.Announcement{
			{Name: "Freeze", Type: notice.Freeze, Timed: true},
			{Name: "Preempt", Type: notice.Preempt, Timed: true},
			{Name: "Reboot", Type: notice.Reboot, Timed: true},
			{Name: "Redeploy", Type: notice.Redeploy, Timed: true},
			{Name: "Terminate", Type: notice.Terminate, Timed: true},
		},
		Within:    3 * time.Second,
		Several:   true,
		Essential: []string{"Events", "Events[0]", "Events[0].EventType", "Events[0].Resources", "Events[0].Resources[0]"},
	})
}

func serveEvents(w http.ResponseWriter, _ *http.Request, s noticetest.Situation) {
	events := []map[string]any{}
	for _, a := range s.Active() {
		events = append(events, map[string]any{
			"EventId": "id-of-" + strings.ToLower(a.Name), "EventType": a.Type, "EventStatus": "Scheduled", "ResourceType": "VirtualMachine",
			"Resources": []string{"vm_1"}, "NotBefore": a.NotBefore.UTC().Format(http.TimeFormat), "Description": "", "EventSource": "Platform",
			"DurationInSeconds": 30,
		})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"DocumentIncarnation": 1, "Events": events}) // to a recorder
}
