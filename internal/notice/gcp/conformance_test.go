package gcp

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/noticetest"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// serveKey returns a metadata server whose key has the value that value returns.
func serveKey(key string, value func(active []noticetest.Announcement) string) func(http.ResponseWriter, *http.Request, noticetest.Situation) {
	return func(w http.ResponseWriter, r *http.Request, s noticetest.Situation) {
		if r.Header.Get("Metadata-Flavor") != "Google" || r.Header.Get("X-Forwarded-For") != "" {
			http.Error(w, "want Metadata-Flavor: Google", http.StatusForbidden)
			return
		}
		if !strings.HasSuffix(r.URL.Path, "/computeMetadata/v1/instance/"+key) {
			http.NotFound(w, r)
			return
		}
		etag := func() string { return fmt.Sprintf("%.8x", sha256.Sum256([]byte(value(s.Active())))) }
		query := r.URL.Query()
		if query.Get("wait_for_change") == "true" && query.Get("last_etag") == etag() {
			seconds, err := strconv.Atoi(query.Get("timeout_sec"))
			if err != nil {
				http.Error(w, "timeout_sec", http.StatusBadRequest)
				return
			}
			select {
			case <-s.Changed:
			case <-time.After(time.Duration(seconds) * time.Second):
			case <-r.Context().Done():
				return
			}
		}
		w.Header().Set("ETag", etag())
		_, _ = w.Write([]byte(value(s.Active()))) // to a recorder
	}
}

func testKey(t *testing.T, index int, a noticetest.Adapter) {
	a.New = func(t testing.TB, transport http.RoundTripper) noticetest.Source {
		sources, err := NewSources(Options{Resource: "vm-1", Wrap: func(http.RoundTripper) http.RoundTripper { return transport }})
		must.NoError(t, err)
		return sources[index]
	}
	noticetest.Run(t, a)
}

func TestPreemptionPassesTheConformanceSuite(t *testing.T) {
	testKey(t, 0, noticetest.Adapter{
		Announcements: []noticetest.Announcement{{Name: "Preempt", Type: notice.Preempt}},
		Serve: serveKey("preempted", func(active []noticetest.Announcement) string {
			return strings.ToUpper(strconv.FormatBool(len(active) > 0)) + "\n"
		}),
	})
}

func TestMaintenanceEventPassesTheConformanceSuite(t *testing.T) {
	testKey(t, 1, noticetest.Adapter{
		Announcements: []noticetest.Announcement{
			{Name: "MIGRATE_ON_HOST_MAINTENANCE", Type: notice.Freeze},
			{Name: "TERMINATE_ON_HOST_MAINTENANCE", Type: notice.Redeploy},
			{Name: "SHUTDOWN_ON_HOST_MAINTENANCE", Type: notice.Redeploy},
			{Name: "REPAIR_ON_HOST_MAINTENANCE", Type: notice.Redeploy}, // not documented
		},
		Serve: serveKey("maintenance-event", func(active []noticetest.Announcement) string {
			for _, a := range active {
				return a.Name
			}
			return "NONE"
		}),
	})
}

func TestUpcomingMaintenancePassesTheConformanceSuite(t *testing.T) {
	for _, none := range []string{"{ }", "NONE", `"NONE"`} {
		t.Run(none, func(t *testing.T) {
			testKey(t, 2, noticetest.Adapter{
				Announcements: []noticetest.Announcement{{Name: "Maintenance", Type: notice.Redeploy, Timed: true}},
				Serve: serveKey("upcoming-maintenance", func(active []noticetest.Announcement) string {
					for _, a := range active {
						at := a.NotBefore.UTC().Format(time.RFC3339)
						return `{"can_reschedule":"true","latest_window_start_time":"` + at + `","maintenance_reasons":["PLANNED_UPDATE"],` +
							`"maintenance_status":"PENDING","type":"SCHEDULED","window_end_time":"` + at + `","window_start_time":"` + at + `"}`
					}
					return none
				}),
			})
		})
	}
}
