package gcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// metadataServer is a metadata server in memory. It answers a request that waits as soon as the value changes.
type metadataServer struct {
	mu       sync.Mutex
	values   map[string]string // by key; a missing key is 404
	changed  chan struct{}
	requests map[string]int
}

func newMetadataServer() *metadataServer {
	return &metadataServer{values: map[string]string{"preempted": "FALSE", "maintenance-event": "NONE"}, changed: make(chan struct{}), requests: map[string]int{}}
}

func (m *metadataServer) set(key, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[key] = value
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *metadataServer) remove(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, key)
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *metadataServer) get(key string) (value string, found bool, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests[key]++
	value, found = m.values[key]
	return value, found, m.changed
}

// RoundTrip implements http.RoundTripper.
func (m *metadataServer) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	key := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	value, found, changed := m.get(key)
	if r.URL.Query().Get("last_etag") == "e-"+value {
		select {
		case <-changed:
		case <-time.After(maxWait):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		m.mu.Lock()
		value, found = m.values[key]
		m.mu.Unlock()
	}
	if !found {
		http.NotFound(w, r)
	} else {
		w.Header().Set("ETag", "e-"+value)
		fmt.Fprint(w, value)
	}
	response := w.Result()
	response.Request = r
	return response, nil
}

// guarded is the sources of a VM at work, with the notices of all.
type guarded struct {
	t       *testing.T
	server  *metadataServer
	sources []*Source
	resumed []notice.Notice // by the sources
	stop    func()

	mu        sync.Mutex
	snapshots map[string]notice.Snapshot
}

func guard(t *testing.T, m *metadataServer, resumed ...notice.Notice) *guarded {
	t.Helper()
	g := &guarded{t: t, server: m, resumed: resumed}
	g.start()
	t.Cleanup(func() { g.stop() })
	return g
}

func (g *guarded) start() {
	g.t.Helper()
	sources, err := NewSources(Options{
		Resource: "vm-1", Leads: poll.Leads{Maintenance: 15 * time.Minute}, Wrap: func(http.RoundTripper) http.RoundTripper { return g.server },
	})
	must.NoError(g.t, err)
	g.sources, g.snapshots = sources, map[string]notice.Snapshot{}
	ctx, cancel := context.WithCancel(g.t.Context())
	var group sync.WaitGroup
	for _, s := range sources {
		s.ResumeNotices(slices.DeleteFunc(slices.Clone(g.resumed), func(n notice.Notice) bool { return n.Source != s.Name() }))
		group.Go(func() {
			s.Run(ctx, func(snapshot notice.Snapshot) {
				g.mu.Lock()
				defer g.mu.Unlock()
				g.snapshots[s.Name()] = snapshot
			})
		})
	}
	g.stop = func() { cancel(); group.Wait() }
}

// restart starts the sources again, with the notices that the agent had recorded on the Node.
func (g *guarded) restart() {
	g.t.Helper()
	g.stop()
	for _, s := range g.snapshots {
		for _, n := range s.Notices {
			record, err := json.Marshal(n.TrimForRecord("vm-1"))
			must.NoError(g.t, err)
			var read notice.Notice
			must.NoError(g.t, json.Unmarshal(record, &read))
			g.resumed = append(g.resumed, read)
		}
	}
	g.start()
}

func (g *guarded) snapshot(source string) (notice.Snapshot, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s, ok := g.snapshots[source]
	return s, ok
}

func TestChangeIsReadWithoutDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetadataServer()
		g := guard(t, m)
		for _, after := range []time.Duration{5 * time.Second, 13 * time.Second, time.Hour + 300*time.Millisecond} {
			time.Sleep(after)
			for value, count := range map[string]int{"TRUE": 1} {
				m.set("preempted", value)
				synctest.Wait()
				s, _ := g.snapshot(PreemptionSource)
				check.Is(t, count, len(s.Notices))
			}
			m.set("preempted", "FALSE")
			time.Sleep(2 * time.Second)
		}
	})
}

// TestQuietVMNeedsFewRequests compares with Azure's 600 polls in ten minutes.
func TestQuietVMNeedsFewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetadataServer()
		g := guard(t, m)
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, key := range []string{"preempted", "maintenance-event", "upcoming-maintenance"} {
			if n := m.requests[key]; n < 60 || n > 63 {
				t.Errorf("%d requests for %s, want one in each 10 s", n, key)
			}
		}
		for _, s := range g.sources {
			if age := time.Since(s.LastRead()); age > maxWait+time.Second {
				t.Errorf("%s was read %v ago", s.Name(), age)
			}
		}
	})
}

// TestVMWithoutPlannedMaintenanceIsReady covers most VMs: the server has no information about the key, in several ways.
func TestVMWithoutPlannedMaintenanceIsReady(t *testing.T) {
	for name, value := range map[string]string{"404": "", "error": `{ "error": "no notifications have been received yet, try again later" }`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMetadataServer()
				if value != "" {
					m.set("upcoming-maintenance", value)
				}
				g := guard(t, m)
				time.Sleep(maxWait + time.Second)
				check.Is(t, false, g.sources[2].LastRead().IsZero())
				if s, emitted := g.snapshot(PlannedSource); emitted {
					t.Errorf("a missing value proves something: %+v", s)
				}
				start := time.Now().Add(10 * time.Minute)
				m.set("upcoming-maintenance", planned(start, "PENDING"))
				time.Sleep(2 * maxWait)
				s, _ := g.snapshot(PlannedSource)
				check.Is(t, 1, len(s.Notices))
				m.set("upcoming-maintenance", `{"error":"x"}`)
				time.Sleep(time.Hour)
				s, _ = g.snapshot(PlannedSource)
				check.Is(t, 1, len(s.Notices)) // it stays
			})
		})
	}
}

// TestForgottenMaintenanceEndsAnHourAfterItsWindow covers a server that never says COMPLETE. A restart of the agent changes
// nothing.
func TestForgottenMaintenanceEndsAnHourAfterItsWindow(t *testing.T) {
	for name, tt := range map[string]struct {
		status string
		end    time.Duration // of the window, after its start; 0 is unknown
		want   time.Duration // after the start
	}{
		"window with an end":     {"PENDING", 2 * time.Hour, 3 * time.Hour},
		"window without an end":  {"PENDING", 0, time.Hour},
		"window that has begun":  {"ONGOING", 2 * time.Hour, 3 * time.Hour},
		"record without the end": {"", 0, time.Hour}, // of an older agent; the server forgot the maintenance before this one read it
	} {
		for _, restarts := range []int{0, 1, 2} {
			t.Run(fmt.Sprintf("%s, %d restarts", name, restarts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newMetadataServer()
					start := time.Now().Add(10 * time.Minute)
					var resumed []notice.Notice
					if tt.status == "" {
						resumed = append(resumed, notice.Notice{ID: plannedID, Source: PlannedSource, Type: notice.Redeploy, NotBefore: start})
					} else {
						value := planned(start, tt.status)
						if tt.end > 0 {
							value = strings.Replace(value, "{", fmt.Sprintf(`{"window_end_time":%q,`, start.Add(tt.end).UTC().Format(time.RFC3339)), 1)
						}
						m.set("upcoming-maintenance", value)
					}
					g := guard(t, m, resumed...)
					time.Sleep(2 * maxWait)
					m.remove("upcoming-maintenance")
					for range restarts {
						time.Sleep(2 * maxWait)
						g.restart()
					}
					time.Sleep(time.Until(start.Add(tt.want)) - time.Second)
					if s, emitted := g.snapshot(PlannedSource); emitted && s.HasEnded(plannedID) {
						t.Errorf("ended too early: %+v", s)
					}
					time.Sleep(2*maxWait + time.Second)
					if s, emitted := g.snapshot(PlannedSource); !emitted || !s.HasEnded(plannedID) {
						t.Errorf("not ended: %+v", s)
					}
					m.set("upcoming-maintenance", planned(time.Now().Add(10*time.Minute), "PENDING"))
					time.Sleep(2 * maxWait)
					s, _ := g.snapshot(PlannedSource)
					check.Is(t, 1, len(s.Notices)) // the next one counts
				})
			})
		}
	}
}

// TestI7ShortOutageEndsNoLongMaintenance covers a maintenance that takes longer than its window.
func TestI7ShortOutageEndsNoLongMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetadataServer()
		m.set("upcoming-maintenance", planned(time.Now().Add(-5*time.Hour), "ONGOING"))
		g := guard(t, m)
		time.Sleep(2 * maxWait)
		m.remove("upcoming-maintenance")
		time.Sleep(minLostTime - 2*maxWait)
		m.set("upcoming-maintenance", planned(time.Now().Add(-5*time.Hour), "ONGOING"))
		time.Sleep(2 * maxWait)
		m.remove("upcoming-maintenance")
		time.Sleep(minLostTime - 2*maxWait)
		s, _ := g.snapshot(PlannedSource)
		check.Is(t, 1, len(s.Notices))
	})
}

func planned(start time.Time, status string) string {
	return fmt.Sprintf(`{"can_reschedule":"true","maintenance_status":%q,"window_start_time":%q}`, status, start.UTC().Format(time.RFC3339))
}

func TestPlannedMaintenanceIsEmittedAtItsLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetadataServer()
		m.set("upcoming-maintenance", planned(time.Now().Add(14*24*time.Hour), "PENDING"))
		g := guard(t, m)
		time.Sleep(time.Hour)
		start := time.Now().Add(time.Hour) // a user moves it
		m.set("upcoming-maintenance", planned(start, "PENDING"))
		time.Sleep(time.Until(start) - 15*time.Minute - time.Second)
		synctest.Wait()
		s, _ := g.snapshot(PlannedSource)
		if len(s.Notices) != 0 || len(s.Planned) != 1 || !s.Planned[0].NotBefore.Equal(start) {
			t.Errorf("before the lead: %+v", s)
		}
		time.Sleep(maxWait + 2*time.Second)
		if s, _ = g.snapshot(PlannedSource); len(s.Notices) != 1 || s.Notices[0].Type != notice.Redeploy {
			t.Errorf("after the lead: %+v", s)
		}
		m.set("upcoming-maintenance", planned(start, "COMPLETE"))
		time.Sleep(2 * time.Second)
		s, _ = g.snapshot(PlannedSource)
		check.Is(t, true, s.HasEnded(plannedID))
	})
}

func TestMaintenanceOfGPUHasItsPlannedTime(t *testing.T) {
	for _, tc := range []struct {
		name      string
		startsIn  time.Duration
		status    string
		value     string
		kind      notice.Type
		hasTime   bool
		migration bool
	}{
		{"GPU", 58 * time.Minute, "PENDING", "TERMINATE_ON_HOST_MAINTENANCE", notice.Redeploy, true, false},
		{"another maintenance in a week", 7 * 24 * time.Hour, "PENDING", "TERMINATE_ON_HOST_MAINTENANCE", notice.Redeploy, false, false},
		{"plan of the past", -time.Hour, "PENDING", "TERMINATE_ON_HOST_MAINTENANCE", notice.Redeploy, false, false},
		{"live migration", 58 * time.Minute, "PENDING", "MIGRATE_ON_HOST_MAINTENANCE", notice.Freeze, false, true},
		{"begun early", 58 * time.Minute, "ONGOING", "TERMINATE_ON_HOST_MAINTENANCE", notice.Redeploy, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMetadataServer()
				start := time.Now().Add(tc.startsIn)
				m.set("upcoming-maintenance", planned(start, tc.status))
				g := guard(t, m)
				time.Sleep(2 * time.Second)
				m.set("maintenance-event", tc.value)
				synctest.Wait()
				s, _ := g.snapshot(MaintenanceSource)
				if len(s.Notices) != 1 {
					t.Fatalf("got %+v", s)
				}
				n := s.Notices[0]
				if n.Type != tc.kind || n.LiveMigration != tc.migration || n.NoticePeriod != time.Minute || n.NotBefore.Equal(start) != tc.hasTime || n.NotBefore.IsZero() == tc.hasTime {
					t.Errorf("got %+v, planned for %v", n, start)
				}
			})
		})
	}
}

func TestMaintenanceOfGPUThatBeginsEarlyHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetadataServer()
		start := time.Now().Add(time.Hour)
		m.set("upcoming-maintenance", planned(start, "PENDING"))
		g := guard(t, m)
		time.Sleep(2 * time.Second)
		for _, step := range []struct {
			event, status string
			hasBegun      bool
		}{
			{"TERMINATE_ON_HOST_MAINTENANCE", "PENDING", false},
			{"TERMINATE_ON_HOST_MAINTENANCE", "ONGOING", true},
			{"MIGRATE_ON_HOST_MAINTENANCE", "ONGOING", false},
		} {
			m.set("maintenance-event", step.event)
			m.set("upcoming-maintenance", planned(start, step.status))
			time.Sleep(maxWait + 2*time.Second)
			s, _ := g.snapshot(MaintenanceSource)
			if len(s.Notices) != 1 || s.Notices[0].HasBegun != step.hasBegun {
				t.Errorf("%s while %s: %+v, want begun %t", step.event, step.status, s.Notices, step.hasBegun)
			}
		}
	})
}

func TestI10BadOptionsAreNamedWithTheirValue(t *testing.T) {
	for says, o := range map[string]Options{
		"resource name: is empty": {},
		"timeout: -1s":            {Resource: "vm-1", Timeout: -time.Second},
		"poll interval: -1s":      {Resource: "vm-1", Interval: -time.Second},
		`endpoint: "ftp://x"`:     {Resource: "vm-1", Endpoint: "ftp://x"},
		`endpoint: "http://x?y"`:  {Resource: "vm-1", Endpoint: "http://x?y"},
		`endpoint: "http://"`:     {Resource: "vm-1", Endpoint: "http://"},
	} {
		check.ErrorContains(t, check.Err(NewSources(o)), says)
	}
}

func TestPlannedMaintenanceIsReadInEverySpelling(t *testing.T) {
	at := time.Date(2026, 12, 1, 19, 0, 1, 0, time.UTC)
	for body, want := range map[string]*plannedMaintenance{
		`{ }`:    nil,
		`NONE`:   nil,
		`"NONE"`: nil,
		`{"maintenance_status":"COMPLETE","window_start_time":"2026-12-01T19:00:01Z"}`:                                             nil,
		`{"maintenance_status":"PENDING","window_start_time":"2026-12-01T19:00:01Z"}`:                                              {Start: at},
		`{"Upcoming maintenance": {"maintenance_status":"PENDING","window_start_time":"2026-12-01T19:00:01Z"}}`:                    {Start: at},
		`{"canReschedule":false,"maintenanceStatus":"PENDING","windowStartTime":"2026-12-01T20:00:01+01:00"}`:                      {Start: at, Fixed: true},
		`{"can_reschedule":"FALSE","maintenance_status":"ONGOING","window_start_time":"1796151601","maintenance_reasons":["A",7]}`: {Start: at, Fixed: true, Ongoing: true, Reasons: "A"},
	} {
		got, err := parsePlannedMaintenance("key", body)
		must.NoError(t, err)
		check.Equal(t, want, got)
	}
	for body, says := range map[string]string{
		``: `want JSON`, `[]`: "want an object", `{"a":"b"}`: "want an object with window_start_time", `7`: "want an object",
		`{ "error": "no notifications have been received yet, try again later" }`: "no information",
	} {
		check.ErrorContains(t, check.Err(parsePlannedMaintenance("key", body)), says)
	}
}

func FuzzValueIsReadOrRefused(f *testing.F) {
	for _, seed := range []string{
		"TRUE", "NONE", "TERMINATE_ON_HOST_MAINTENANCE", `{"a":{"b":{}}}`, `{"window_start_time":1e308}`,
		planned(time.Unix(1796151601, 0), "ONGOING"), `{"error":"no"}`, "\x00", `{"maintenanceStatus":null,"canReschedule":[]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		s := &sources{Options: Options{Resource: "vm-1"}, client: poll.NewClient(poll.ClientOptions{}), planner: poll.NewPlanner(poll.Leads{})}
		for _, parse := range []func(string, time.Time) (notice.Snapshot, error){s.parsePreemption, s.parseMaintenance, s.parsePlanned} {
			snapshot, err := parse(value, time.Unix(1796151601, 0))
			if len(snapshot.Notices)+len(snapshot.Planned) > 1 || err != nil && len(snapshot.Notices) > 0 {
				t.Errorf("%+v, %v", snapshot, err)
			}
		}
	})
}
