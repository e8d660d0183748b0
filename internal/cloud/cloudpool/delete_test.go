package cloudpool

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// failingServer is a server with one machine that fails to terminate it some times. It records the requests.
type failingServer struct {
	id       string
	failures int
	status   int
	observed time.Time
	frozen   bool // no new observation
	requests []wire.Removal
}

func (s *failingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		if !s.frozen {
			s.observed = s.observed.Add(time.Second)
		}
		fmt.Fprintf(w, `{"timestamp":%q,"machines":[{"id":%q,"machineState":"REQUESTED","membershipStatus":{"active":true,"evictable":true}}]}`,
			s.observed.Format(time.RFC3339), s.id)
		return
	}
	var asked struct {
		MachineID string
		Decrement bool `json:"decrementDesiredSize"`
	}
	_ = json.NewDecoder(r.Body).Decode(&asked)
	s.requests = append(s.requests, wire.Removal{MachineID: asked.MachineID, Decrement: asked.Decrement})
	if len(s.requests) <= s.failures {
		w.WriteHeader(s.status)
		fmt.Fprint(w, `{"message":"the spot market is closed","detail":""}`)
	}
}

func newTestProvider(t *testing.T, s *failingServer) *Provider {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	wait := cloud.Duration(0)
	p, err := New(Config{Pools: []PoolConfig{{Name: "workers", URL: server.URL}}, ObservationWait: &wait}, Options{})
	must.NoError(t, err)
	return p
}

func TestFailedTerminationIsAnError(t *testing.T) {
	for _, id := range []string{"i-requested1", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"} {
		s := &failingServer{id: id, failures: 2, status: http.StatusInternalServerError, observed: time.Now().UTC().Truncate(time.Second)}
		p := newTestProvider(t, s)
		for i := range 2 {
			op, err := p.DeleteMember(t.Context(), "workers", id, cloud.DeleteOptions{})
			if err == nil || op.ID != "" || !strings.Contains(err.Error(), "the spot market is closed") {
				t.Fatalf("%s, attempt %d: %+v, %v; want the server's error", id, i, op, err)
			}
		}
		s.failures = 3
		_, err := p.DeleteMember(t.Context(), "workers", id, cloud.DeleteOptions{})
		s.frozen = true // no new request before the next observation
		_, again := p.DeleteMember(t.Context(), "workers", id, cloud.DeleteOptions{})
		if err == nil || again == nil || again.Error() != err.Error() || len(s.requests) != 3 {
			t.Errorf("%s: %v and %v after %d requests, want the first error again", id, err, again, len(s.requests))
		}
		s.frozen = false
		if op, err := p.DeleteMember(t.Context(), "workers", id, cloud.DeleteOptions{}); err != nil || op.ID == "" || len(s.requests) != 4 {
			t.Errorf("%s: %+v, %v after %d requests; want it accepted", id, op, err, len(s.requests))
		}
	}
}

func TestTerminationDecrementsUnlessSizeIsKept(t *testing.T) {
	for _, keep := range []bool{false, true} {
		s := &failingServer{id: "i-0123456789abcdef0", observed: time.Now().UTC().Truncate(time.Second)}
		_, err := cloud.Delete(t.Context(), newTestProvider(t, s), "aws:///eu-west-1a/"+s.id, cloud.DeleteOptions{KeepSize: keep})
		if want := []wire.Removal{{MachineID: s.id, Decrement: !keep}}; err != nil || !slices.Equal(s.requests, want) {
			t.Errorf("keep the size %t: %+v, %v; want %+v", keep, s.requests, err, want)
		}
	}
}

func TestUnansweredLaunchMayHaveBeenAccepted(t *testing.T) {
	for status, wants := range map[int]bool{http.StatusServiceUnavailable: false, http.StatusTooManyRequests: true} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				_, _ = fmt.Fprint(w, `{"timestamp": "2026-01-02T03:04:05.000Z", "desiredSize": 7, "allocated": 7, "active": 7}`)
				return
			}
			w.Header().Set("Retry-After", "5")
			w.WriteHeader(status)
		}))
		p, err := New(Config{Pools: []PoolConfig{{Name: "workers", URL: server.URL}}}, Options{})
		must.NoError(t, err)
		if _, err := p.Grow(t.Context(), "workers", cloud.LaunchRequest{Count: 1}); err == nil || cloud.IsThrottled(err) != wants {
			t.Errorf("%d: %v; want throttled: %t", status, err, wants)
		}
		server.Close()
	}
}
