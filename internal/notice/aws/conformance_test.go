package aws

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/noticetest"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestSourcePassesTheConformanceSuite(t *testing.T) {
	noticetest.Run(t, noticetest.Adapter{
		New: func(t testing.TB, transport http.RoundTripper) noticetest.Source {
			client, err := NewClient(ClientOptions{Wrap: func(http.RoundTripper) http.RoundTripper { return transport }})
			must.NoError(t, err)
			source, err := NewSource(SourceOptions{
				Client: client, Instance: "i-0123456789abcdef0", Leads: poll.Leads{Retirement: 24 * time.Hour, Maintenance: 15 * time.Minute},
			})
			must.NoError(t, err)
			return source
		},
		Serve: serveMetadata,
		Announcements: []noticetest.Announcement{
			{Name: "terminate", Type: notice.Preempt, Timed: true, Path: spotPath},
			{Name: "instance-retirement", Type: notice.Terminate, Timed: true, Path: eventsPath},
			{Name: "system-reboot", Type: notice.Reboot, Timed: true, Path: eventsPath},
			{Name: "system-maintenance", Type: notice.Reboot, Timed: true, Path: eventsPath},
			{Name: "recommendation", Type: notice.Rebalance, Path: rebalancePath},
			{Name: "Terminated", Type: notice.Terminate, Path: asgPath},
		},
		Several:      true,
		Essential:    []string{"[0]", "[0].Code"}, // an unknown code counts as a reboot
		AbsentIsNone: true,
		Within:       time.Minute + time.Second,
	})
}

// serveMetadata serves the announcements, each at its path.
func serveMetadata(w http.ResponseWriter, r *http.Request, s noticetest.Situation) {
	if r.Method == http.MethodPut && r.URL.Path == tokenPath {
		w.Header().Set(tokenTTLHeader, "21600")
		fmt.Fprint(w, "AQAEAM7-token==")
		return
	}
	if r.Header.Get(tokenHeader) != "AQAEAM7-token==" {
		http.Error(w, "unauthorized", http.StatusUnauthorized)
		return
	}
	events := []map[string]string{}
	body := ""
	for _, a := range s.Active() {
		at := a.NotBefore.UTC()
		switch {
		case a.Path != r.URL.Path:
		case a.Path == eventsPath:
			events = append(events, map[string]string{
				"NotBefore": at.Format("2 Jan 2006 15:04:05 GMT"), "NotAfter": at.Add(time.Hour).Format("2 Jan 2006 15:04:05 GMT"), "Code": a.Name,
				"Description": "scheduled " + a.Name, "EventId": "instance-event-" + a.Name, "State": "active",
			})
		case a.Path == spotPath:
			body = fmt.Sprintf(`{"action": %q, "time": %q}`, a.Name, at.Format(time.RFC3339))
		case a.Path == rebalancePath:
			body = `{"noticeTime": "1999-12-31T23:59:00Z"}`
		case a.Path == asgPath:
			body = a.Name
		}
	}
	switch {
	case r.URL.Path == eventsPath || r.URL.Path == historyPath:
		_ = json.NewEncoder(w).Encode(events) // to a recorder
	case body == "" && r.URL.Path == asgPath:
		fmt.Fprint(w, "InService")
	case body == "":
		http.NotFound(w, r)
	default:
		fmt.Fprint(w, body)
	}
}
