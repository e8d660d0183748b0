package cloudpool

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloud/providerid"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// failingServer is a server with one machine that fails to terminate it some times. It records the requests.
type failingServer struct {
	id       string
	failures int
	status   int
	observed time.Time
	frozen   bool // no new observation
	surplus  int  // by how much the machine exceeds the desired size
	idle     bool // the machine is not a member of its pool
	page     bool // answer terminations with a page
	reads    int  // how often the machines were read
	requests []wire.Removal
	// delay, if set, is called before each answer about the machines, and before each answer to a termination.
	delay func(r *http.Request)
}

func (s *failingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/pool/size" {
		fmt.Fprintf(w, `{"timestamp":%q,"desiredSize":%d,"allocated":1,"active":1}`, s.observed.Format(time.RFC3339), 1-s.surplus)
		return
	}
	if r.Method == http.MethodGet {
		s.reads++
		if !s.frozen {
			s.observed = s.observed.Add(time.Second)
		}
		observed := s.observed
		if s.delay != nil {
			s.delay(r)
		}
		fmt.Fprintf(w, `{"timestamp":%q,"machines":[{"id":%q,"machineState":"REQUESTED","membershipStatus":{"active":%t,"evictable":true}}]}`,
			observed.Format(time.RFC3339), s.id, !s.idle)
		return
	}
	var asked struct {
		MachineID string
		Decrement bool `json:"decrementDesiredSize"`
	}
	_ = json.NewDecoder(r.Body).Decode(&asked)
	s.requests = append(s.requests, wire.Removal{MachineID: asked.MachineID, Decrement: asked.Decrement})
	if s.delay != nil {
		s.delay(r)
	}
	switch {
	case s.page:
		fmt.Fprint(w, "<html>")
	case len(s.requests) <= s.failures:
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

// TestI4MachineIsNotTerminatedTwiceWithinSettleTime uses a server that could not observe its cloud for two minutes. Its
// first observation after the termination still has the machine.
func TestI4MachineIsNotTerminatedTwiceWithinSettleTime(t *testing.T) {
	const machine = "aws:///i-0123456789abcdef0"
	for name, restarted := range map[string]bool{"same process": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			s := &failingServer{id: "i-0123456789abcdef0", observed: time.Now().UTC().Truncate(time.Second), frozen: true}
			p := newTestProvider(t, s)
			op, err := p.Delete(t.Context(), machine)
			for err != nil {
				must.Not(t, !cloud.IsThrottled(err), "Delete: %v", err)
				s.observed = s.observed.Add(time.Second)
				op, err = p.Delete(t.Context(), machine)
			}
			if restarted {
				p = newTestProvider(t, s)
				_, err := p.Instances(t.Context(), "workers")
				must.NoError(t, err)
			}
			for _, after := range []time.Duration{2 * time.Minute, 59 * time.Second} {
				s.observed = s.observed.Add(after)
				status, err := p.Status(t.Context(), op)
				check.Not(t, err != nil || status.Done, "%s later: %+v, %v; want it in progress", after, status, err)
				must.NoError(t, check.Err(p.Delete(t.Context(), machine)))
				check.Is(t, 1, len(s.requests))
			}
			s.observed = s.observed.Add(time.Second)
			status, err := p.Status(t.Context(), op)
			check.Not(t, err != nil || status.Err == nil, "%+v, %v; want an error, because the machine is still alive", status, err)
			must.NoError(t, check.Err(p.Delete(t.Context(), machine)))
			check.Is(t, 2, len(s.requests))
		})
	}
}

// TestI4UnansweredTerminationIsRepeatedAfterSettleTime uses a proxy in front of the server that answers with a page. The
// server may have accepted the termination. The repeated termination fails too, and reading its status again does not delay
// a third one.
func TestI4UnansweredTerminationIsRepeatedAfterSettleTime(t *testing.T) {
	const machine = "aws:///i-0123456789abcdef0"
	s := &failingServer{id: "i-0123456789abcdef0", observed: time.Now().UTC().Truncate(time.Second), page: true}
	p := newTestProvider(t, s)
	_, err := p.Delete(t.Context(), machine)
	check.Not(t, err == nil || cloud.IsThrottled(err), "%v, want an invalid answer", err)
	s.frozen, s.page = true, false
	for _, after := range []time.Duration{0, 2 * time.Minute, 59 * time.Second} {
		s.observed = s.observed.Add(after)
		_, again := p.Delete(t.Context(), machine)
		check.Not(t, !cloud.IsThrottled(again) || !strings.Contains(again.Error(), err.Error()), "%s later: %v, want to wait because of %v", after, again, err)
		i, err := p.Instance(t.Context(), machine)
		check.Not(t, err != nil || i.State != cloud.Pending, "%+v, %v; want the state that the server reports", i, err)
		check.Is(t, 1, len(s.requests))
	}
	s.observed = s.observed.Add(time.Second)
	op, err := p.Delete(t.Context(), machine)
	must.NoError(t, err)
	for _, after := range []time.Duration{time.Second, time.Minute} {
		s.observed = s.observed.Add(after)
		must.NoError(t, check.Err(p.Status(t.Context(), op)))
	}
	for range 2 {
		status, err := p.Status(t.Context(), op)
		check.Not(t, err != nil || status.Err == nil, "%+v, %v; want an error, because the machine is still alive", status, err)
	}
	check.Is(t, 2, len(s.requests))
	must.NoError(t, check.Err(p.Delete(t.Context(), machine)))
	check.Is(t, 3, len(s.requests))
}

// TestI4SettleTimeBeginsAfterSlowTermination has a server that answers a termination after two minutes. Meanwhile other calls
// read the pool. The last of these reads ends after the termination.
func TestI4SettleTimeBeginsAfterSlowTermination(t *testing.T) {
	const machine = "aws:///i-0123456789abcdef0"
	for name, unanswered := range map[string]bool{"accepted": false, "unanswered": true} {
		t.Run(name, func(t *testing.T) {
			s := &failingServer{id: "i-0123456789abcdef0", observed: time.Now().UTC().Truncate(time.Second), page: unanswered}
			p := newTestProvider(t, s)
			readBegan, terminationEnded, readEnded := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			s.delay = func(r *http.Request) {
				if r.Method == http.MethodGet {
					return
				}
				s.frozen = true
				for range 3 {
					s.observed = s.observed.Add(30 * time.Second)
					check.NoError(t, check.Err(p.Instances(t.Context(), "workers")))
				}
				s.observed = s.observed.Add(30 * time.Second)
				s.delay = func(*http.Request) { close(readBegan); <-terminationEnded }
				go func() { readEnded <- check.Err(p.Instances(t.Context(), "workers")) }()
				<-readBegan
				s.delay = nil
			}
			op, err := p.Delete(t.Context(), machine)
			must.Not(t, (err != nil) != unanswered || len(s.requests) != 1, "%v after %d requests, want an error: %t", err, len(s.requests), unanswered)
			close(terminationEnded)
			must.NoError(t, <-readEnded)
			s.page = false
			for _, after := range []time.Duration{time.Minute, 59 * time.Second} {
				s.observed = s.observed.Add(after)
				_, err := p.Delete(t.Context(), machine)
				check.Not(t, unanswered != cloud.IsThrottled(err) || !unanswered && err != nil, "%s later: %v", after, err)
				if !unanswered {
					status, err := p.Status(t.Context(), op)
					check.Not(t, err != nil || status.Done, "%s later: %+v, %v; want it in progress", after, status, err)
				}
				check.Is(t, 1, len(s.requests))
			}
			s.observed = s.observed.Add(time.Second)
			if !unanswered {
				status, err := p.Status(t.Context(), op)
				check.Not(t, err != nil || status.Err == nil, "%+v, %v; want an error, because the machine is still alive", status, err)
			}
			must.NoError(t, check.Err(p.Delete(t.Context(), machine)))
			check.Is(t, 2, len(s.requests))
		})
	}
}

// TestI4MachineTerminatedByOtherProcessIsNotTerminatedAgain uses a server with a lower desired size than machines. A
// manager, a client or an earlier process may have terminated the machine.
func TestI4MachineTerminatedByOtherProcessIsNotTerminatedAgain(t *testing.T) {
	const machine = "aws:///i-0123456789abcdef0"
	s := &failingServer{id: "i-0123456789abcdef0", observed: time.Now().UTC().Truncate(time.Second), frozen: true}
	p := newTestProvider(t, s)
	deleteLater := func(after time.Duration, accepted int) {
		t.Helper()
		s.observed = s.observed.Add(after)
		if _, err := p.Delete(t.Context(), machine); (err == nil) != (accepted > 0) || err != nil && !cloud.IsThrottled(err) || len(s.requests) != accepted {
			t.Errorf("%v after %d requests, want %d", err, len(s.requests), accepted)
		}
	}
	deleteLater(0, 0) // the first observation of this provider
	for s.surplus = 1; s.surplus <= 2; s.surplus++ {
		deleteLater(2*time.Minute, 0)
		deleteLater(2*time.Minute, 0) // the first observation after the termination
		deleteLater(59*time.Second, 0)
	}
	must.NoError(t, check.Err(p.DeleteKeepingSize(t.Context(), machine)))
	check.Is(t, 1, len(s.requests), "a termination without decrement does not wait")
	p = newTestProvider(t, s)
	s.requests = nil
	deleteLater(0, 0)
	deleteLater(time.Second, 0)
	deleteLater(time.Second, 0)
	deleteLater(time.Minute, 1) // the pool has more machines than desired
	for name, forget := range map[string]func(pool *pool){
		"the observation showed the other termination": func(*pool) {
			s.idle = true
			must.NoError(t, check.Err(p.Instances(t.Context(), "workers")))
			s.idle = false
		},
		"the surplus was seen long ago": func(pool *pool) { pool.surplus.updated = time.Now().Add(-time.Hour) },
	} {
		t.Log(name)
		p = newTestProvider(t, s)
		s.surplus, s.requests = 1, nil
		deleteLater(0, 0)
		deleteLater(time.Second, 0)
		deleteLater(time.Second, 0)
		s.observed = s.observed.Add(time.Hour)
		forget(p.pools["workers"])
		deleteLater(0, 0)
	}
	p = newTestProvider(t, s)
	s.surplus, s.requests = 0, nil
	deleteLater(0, 0)
	deleteLater(time.Second, 1)
}

// TestLongWaitReadsPoolOnce has waits of a minute. A call that waits for an observation for a second polls the server
// in vain.
func TestLongWaitReadsPoolOnce(t *testing.T) {
	const machine = "aws:///i-0123456789abcdef0"
	for name, begin := range map[string]func(s *failingServer, p *Provider){
		"after an unanswered termination": func(s *failingServer, p *Provider) {
			s.page = true
			if _, err := p.Delete(t.Context(), machine); err == nil || cloud.IsThrottled(err) {
				t.Errorf("%v, want an invalid answer", err)
			}
		},
		"while the pool has more machines than desired": func(s *failingServer, p *Provider) {
			must.NoError(t, check.Err(p.Instances(t.Context(), "workers")))
			s.observed, s.surplus = s.observed.Add(time.Second), 1
		},
	} {
		s := &failingServer{id: "i-0123456789abcdef0", observed: time.Now().UTC().Truncate(time.Second)}
		p := newTestProvider(t, s)
		p.config.ObservationWait = nil
		begin(s, p)
		s.frozen, s.reads = true, 0
		_, err := p.Delete(t.Context(), machine)
		check.Not(t, !cloud.IsThrottled(err) || s.reads != 1, "%s: %v after %d reads, want to wait after one", name, err, s.reads)
	}
}

func TestOwnTerminationKeepsASettledSurplus(t *testing.T) {
	var s surplus
	at := time.Now()
	check.Not(t, s.hasSettled(at, 7, 6, time.Minute), "a new surplus has settled")
	s.recordObservation(at.Add(time.Second), 7)
	check.Not(t, !s.hasSettled(at.Add(time.Minute+time.Second), 7, 6, time.Minute), "the surplus has not settled")
	s.recordDecrement()
	s.recordObservation(at.Add(2*time.Minute), 6)
	check.Not(t, !s.hasSettled(at.Add(2*time.Minute), 6, 5, time.Minute), "the own termination looks like another one")
	check.Not(t, s.hasSettled(at.Add(2*time.Minute), 6, 4, time.Minute), "the termination of another process has settled at once")
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
		want := []wire.Removal{{MachineID: s.id, Decrement: !keep}}
		check.Not(t, err != nil || !slices.Equal(s.requests, want), "keep the size %t: %+v, %v; want %+v", keep, s.requests, err, want)
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

func TestI10BadConfigurationIsRefusedByFieldAndRange(t *testing.T) {
	long := cloud.Duration(time.Hour)
	good := func() Config {
		return Config{Pools: []PoolConfig{{Name: "workers", URL: "https://h:1/cloudpools/workers/"}}}
	}
	for want, change := range map[string]func(*Config){
		"":                             func(*Config) {},
		"pools: is empty":              func(c *Config) { c.Pools = nil },
		"pools[0].url":                 func(c *Config) { c.Pools[0].URL = "ftp://h" },
		"want them in auth":            func(c *Config) { c.Pools[0].URL = "https://u:secret@h" },
		"without query":                func(c *Config) { c.Pools[0].URL = "https://h?x" },
		"pools[0].name: \"a/b\"":       func(c *Config) { c.Pools[0].Name = "a/b" },
		"pools[1].name: \"workers\"":   func(c *Config) { c.Pools = append(c.Pools, c.Pools[0]) },
		"want none":                    func(c *Config) { c.Pools[0].Multi = true },
		"nodes.cost":                   func(c *Config) { c.Pools[0].Nodes.Cost = -1 },
		"requestTimeout: 1h0m0s":       func(c *Config) { c.RequestTimeout = long },
		"settleTime: 1h0m0s":           func(c *Config) { c.SettleTime = &long },
		"observationWait: 1h0m0s":      func(c *Config) { c.ObservationWait = &long },
		"pollInterval: 1h0m0s":         func(c *Config) { c.PollInterval = long },
		"username and passwordFile":    func(c *Config) { c.Auth.Username = "u" },
		"username or tokenFile":        func(c *Config) { c.Auth = Auth{Username: "u", PasswordFile: "p", TokenFile: "t"} },
		"certFile and keyFile require": func(c *Config) { c.Auth.CertFile = "c" },
	} {
		c := good()
		change(&c)
		err := c.Validate()
		check.Not(t, (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want), "%v, want %q", err, want)
		check.Not(t, err != nil && strings.Contains(err.Error(), "secret"), "the error contains the password: %v", err)
	}
}

func TestTrailingSlashOfURLIsIgnored(t *testing.T) {
	for text, want := range map[string]string{
		"http://h": "http://h/pool", "http://h/": "http://h/pool", "https://h:1/a/cloudpools/x/": "https://h:1/a/cloudpools/x/pool",
	} {
		u, err := ParseURL(text)
		check.Not(t, err != nil || u.JoinPath("pool").String() != want, "%s: %v, %v; want %s", text, u, err, want)
	}
}

func TestNonEvictableMachineIsProtected(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		const head = `{"machineState": "RUNNING", "cloudProvider": "OpenStack", "id": "`
		_, _ = io.WriteString(w, `{"timestamp": "2026-01-02T03:04:05.000Z", "machines": [`+
			head+`blessed", "membershipStatus": {"active": true, "evictable": false}}, `+
			head+`awaited", "membershipStatus": {"active": false, "evictable": false}}, `+
			head+`plain", "membershipStatus": {"active": true, "evictable": true}}, `+
			head+`silent"}]}`)
	}))
	defer server.Close()
	p, err := New(Config{Pools: []PoolConfig{{Name: "workers", URL: server.URL}}}, Options{})
	must.NoError(t, err)
	instances, err := p.Instances(t.Context(), "workers")
	must.Not(t, err != nil || len(instances) != 4, "%+v, %v", instances, err)
	for i, want := range []bool{true, true, false, false} {
		check.Not(t, instances[i].DeletionProtected != want, "%+v: want protected: %t", instances[i], want)
	}
}

// TestCreationTimeStaysWhenTheMachineRuns has servers that set launchTime when the machine runs.
func TestCreationTimeStaysWhenTheMachineRuns(t *testing.T) {
	requested, launched := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC), time.Date(2026, 1, 2, 3, 10, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		machine wire.Machine
		want    time.Time
	}{
		"requested":                  {wire.Machine{RequestTime: &requested}, requested},
		"requested and launched":     {wire.Machine{RequestTime: &requested, LaunchTime: &launched}, requested},
		"without a time of requests": {wire.Machine{LaunchTime: &launched}, launched},
		"without times":              {},
	} {
		p := newTestProvider(t, &failingServer{})
		i := p.toInstance(&observation{pool: &pool{name: "workers", config: PoolConfig{Name: "workers"}}}, &c.machine)
		check.Not(t, !i.Created.Equal(c.want), "%s: created %s, want %s", name, i.Created, c.want)
	}
}

func TestFulfilledSpotRequestNamesItsEarlierID(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		const head = `{"machineState": "RUNNING", "cloudProvider": "AWS-SPOT", "region": "eu-west-1", "id": "`
		_, _ = io.WriteString(w, `{"timestamp": "2026-01-02T03:04:05.000Z", "machines": [`+
			head+`sir-1"}, `+
			head+`sir-2", "metadata": {"InstanceId": "i-0123456789abcdef0"}}, `+
			head+`i-0123456789abcdef1"}]}`)
	}))
	defer server.Close()
	p, err := New(Config{Pools: []PoolConfig{{Name: "workers", URL: server.URL}}}, Options{})
	must.NoError(t, err)
	instances, err := p.Instances(t.Context(), "workers")
	must.NoError(t, err)
	var got []string
	for _, i := range instances {
		got = append(got, i.ProviderID+" "+i.PreviousProviderID)
	}
	want := []string{
		"cloudpool://workers/sir-1 ", "aws:///i-0123456789abcdef0 cloudpool://workers/sir-2", "aws:///i-0123456789abcdef1 ",
	}
	check.Equal(t, want, got)
}

// TestRemovedPoolHidesNoInstanceOfAnother has a server with two pools and deletes one.
func TestRemovedPoolHidesNoInstanceOfAnother(t *testing.T) {
	var mu sync.Mutex
	pools := map[string][]string{"kept": {"a", "b"}, "dropped": {"c"}}
	answer, at := http.StatusNotFound, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	change := func(do func()) { mu.Lock(); defer mu.Unlock(); do() }
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		at = at.Add(time.Second)
		if r.URL.Path == "/cloudpools" {
			urls := []string{}
			for name := range pools {
				urls = append(urls, `"/cloudpools/`+name+`"`)
			}
			_, _ = io.WriteString(w, "["+strings.Join(urls, ",")+"]")
			return
		}
		ids, there := pools[strings.Split(r.URL.Path, "/")[2]]
		if !there {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(answer)
			_, _ = io.WriteString(w, `{"message": "no such pool"}`)
			return
		}
		machines := make([]string, len(ids))
		for i, id := range ids {
			machines[i] = `{"machineState": "RUNNING", "cloudProvider": "OpenStack", "id": "00000000-0000-0000-0000-00000000000` + id + `"}`
		}
		_, _ = io.WriteString(w, `{"timestamp": "`+at.Format(time.RFC3339)+`", "machines": [`+strings.Join(machines, ",")+`]}`)
	}))
	defer server.Close()
	wait := cloud.Duration(0)
	p, err := New(Config{Pools: []PoolConfig{{Multi: true, URL: server.URL}}, ObservationWait: &wait}, Options{})
	must.NoError(t, err)
	id := func(last string) string { return "openstack:///00000000-0000-0000-0000-00000000000" + last }
	for _, one := range []string{"a", "b", "c"} {
		if _, err := p.Instance(t.Context(), id(one)); err != nil {
			t.Fatalf("%s: %v", one, err)
		}
	}
	change(func() {
		delete(pools, "dropped")
		pools["kept"], answer = []string{"a"}, http.StatusInternalServerError
	})
	if _, err := p.Instance(t.Context(), id("b")); err == nil || cloud.IsNotFound(err) {
		t.Errorf("unlisted pool that cannot be read: %v", err)
	}
	change(func() { answer = http.StatusNotFound })
	if _, err := p.Instance(t.Context(), id("b")); !cloud.IsNotFound(err) {
		t.Errorf("machine of the remaining pool: %v; want it gone", err)
	}
	for range 3 {
		for what, one := range map[string]string{"was observed in the deleted pool": "c", "was never observed": "d"} {
			if _, err := p.Instance(t.Context(), id(one)); err == nil || cloud.IsNotFound(err) {
				t.Errorf("I7: machine that %s: %v; want an unknown result", what, err)
			}
		}
	}
	change(func() { pools["kept"] = []string{"a", "c"} })
	if i, err := p.Instance(t.Context(), id("c")); err != nil || i.Group != "kept" {
		t.Errorf("moved to another pool: %+v, %v", i, err)
	}
	change(func() { pools["kept"] = []string{"a"} })
	if _, err := p.Instance(t.Context(), id("c")); !cloud.IsNotFound(err) {
		t.Errorf("removed from that pool: %v; want it gone", err)
	}
}

// TestI7MachineListedAgainIsNotMissing has a machine that two observations lack. An observation between them lists it.
func TestI7MachineListedAgainIsNotMissing(t *testing.T) {
	const machine = "aws:///i-0123456789abcdef0"
	s := &failingServer{id: "i-1111111111111111", observed: time.Now().UTC().Truncate(time.Second), frozen: true}
	p := newTestProvider(t, s)
	readMissing := func() {
		t.Helper()
		if _, err := p.Instance(t.Context(), machine); !cloud.IsThrottled(err) {
			t.Errorf("missing in one observation: %v; want Throttled", err)
		}
	}
	readMissing()
	s.id, s.observed = "i-0123456789abcdef0", s.observed.Add(time.Second)
	must.NoError(t, check.Err(p.Instances(t.Context(), "workers")))
	s.id, s.observed = "i-1111111111111111", s.observed.Add(time.Second)
	readMissing()
	s.observed = s.observed.Add(time.Second)
	if _, err := p.Instance(t.Context(), machine); !cloud.IsNotFound(err) {
		t.Errorf("missing in two observations: %v; want it gone", err)
	}
}

// TestWaitsStartAgainIfServersClockIsSetBack has a server that is read with a wrong clock first. Its clock is then set back.
func TestWaitsStartAgainIfServersClockIsSetBack(t *testing.T) {
	const listed, missing = "aws:///i-0123456789abcdef0", "aws:///i-1111111111111111"
	right := time.Now().UTC().Truncate(time.Second)
	s := &failingServer{id: "i-0123456789abcdef0", observed: right.Add(2 * time.Hour), frozen: true}
	p := newTestProvider(t, s)
	readMissing := func(at time.Time, gone bool) {
		t.Helper()
		s.observed = at
		_, err := p.Instance(t.Context(), missing)
		check.Not(t, cloud.IsNotFound(err) != gone || cloud.IsThrottled(err) == gone, "missing machine: %v, want it gone: %t", err, gone)
	}
	deleteListed := func(at time.Time, accepted int) {
		t.Helper()
		s.observed = at
		_, err := p.Delete(t.Context(), listed)
		check.Not(t, (err != nil) != cloud.IsThrottled(err) || len(s.requests) != accepted, "%v after %d requests, want %d", err, len(s.requests), accepted)
	}
	readMissing(s.observed, false)
	deleteListed(s.observed, 0)
	readMissing(right, false)
	deleteListed(right, 0)
	readMissing(right.Add(-maxObservationAge), false) // an old observation
	readMissing(right, false)
	deleteListed(right, 0)
	readMissing(right.Add(time.Second), true)
	s.surplus = 1
	deleteListed(right.Add(time.Second), 0)
	deleteListed(right.Add(2*time.Second), 0)
	right = right.Add(-time.Hour) // a second time
	deleteListed(right, 0)
	deleteListed(right.Add(time.Second), 0)
	deleteListed(right.Add(time.Minute), 0)
	deleteListed(right.Add(time.Minute+time.Second), 1)
	s.surplus = 0
	right = right.Add(-time.Hour) // a third time, with a termination
	deleteListed(right, 1)
	deleteListed(right.Add(time.Second), 1)
	deleteListed(right.Add(time.Minute), 1)
	op, err := p.Delete(t.Context(), listed)
	must.NoError(t, err)
	s.observed = right.Add(time.Minute + time.Second)
	status, err := p.Status(t.Context(), op)
	check.Not(t, err != nil || status.Err == nil, "%+v, %v; want an error, because the machine is still alive", status, err)
}

// TestI7EmptyPoolListProvesNothing has a server with several pools that lists none with a valid name, next to a server with one pool.
func TestI7EmptyPoolListProvesNothing(t *testing.T) {
	const one, never = "00000000-0000-0000-0000-00000000000a", "openstack:///00000000-0000-0000-0000-00000000000b"
	pools, machines := "[]", `[{"machineState": "RUNNING", "cloudProvider": "OpenStack", "id": "`+one+`"}]`
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at = at.Add(time.Second)
		if r.URL.Path == "/cloudpools" {
			_, _ = io.WriteString(w, pools)
			return
		}
		_, _ = io.WriteString(w, `{"timestamp": "`+at.Format(time.RFC3339)+`", "machines": `+machines+`}`)
	}))
	defer server.Close()
	wait := cloud.Duration(0)
	multi, single := PoolConfig{Multi: true, URL: server.URL}, PoolConfig{Name: "single", URL: server.URL + "/single"}
	for _, pools = range []string{`["/"]`, `["/cloudpools/%20"]`, "[]"} {
		for name, configured := range map[string][]PoolConfig{"alone": {multi}, "with another pool": {single, multi}} {
			p, err := New(Config{Pools: configured, ObservationWait: &wait}, Options{})
			must.NoError(t, err)
			for range 3 {
				if _, err := p.Instance(t.Context(), never); err == nil || cloud.IsNotFound(err) {
					t.Errorf("%s, %s: machine that was never observed: %v; want an unknown result", pools, name, err)
				}
			}
		}
	}
	p, err := New(Config{Pools: []PoolConfig{single, multi}, ObservationWait: &wait}, Options{})
	must.NoError(t, err)
	if i, err := p.Instance(t.Context(), "openstack:///"+one); err != nil || i.Group != "single" {
		t.Errorf("listed machine: %+v, %v", i, err)
	}
	machines = "[]"
	if _, err := p.Instance(t.Context(), "openstack:///"+one); !cloud.IsNotFound(err) {
		t.Errorf("machine that its pool no longer lists: %v; want it gone", err)
	}
	pools = `["/cloudpools/workers/"]`
	names, err := p.Groups(t.Context())
	must.NoError(t, err)
	check.Equal(t, []string{"single", "workers"}, names)
	if _, err := p.Instance(t.Context(), never); !cloud.IsNotFound(err) {
		t.Errorf("machine that no pool lists: %v; want it gone", err)
	}
}

const serverID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"

func TestMachineAndNodeHaveTheSameID(t *testing.T) {
	for name, tt := range map[string]struct {
		machine    wire.Machine
		providerID string
		want       string
		computer   string
	}{
		"EC2": {
			wire.Machine{ID: "i-0123456789abcdef0", Region: "eu-west-1", PrivateIPs: []string{"10.0.1.2"}},
			"aws:///eu-west-1a/i-0123456789abcdef0", "aws:///i-0123456789abcdef0", "ip-10-0-1-2.eu-west-1.compute.internal",
		},
		"EC2 without a zone": {
			wire.Machine{ID: "i-0123456789abcdef0", Metadata: json.RawMessage(`{"privateDnsName":"a.b"}`)},
			"aws:///i-0123456789abcdef0", "aws:///i-0123456789abcdef0", "a.b",
		},
		"EC2 in a local zone, of the first region": {
			wire.Machine{ID: "i-01234567", Region: "us-east-1", PrivateIPs: []string{"10.0.1.2"}},
			"aws:///us-east-1-bos-1a/i-01234567", "aws:///i-01234567", "ip-10-0-1-2.ec2.internal",
		},
		"a fulfilled Spot request": {
			wire.Machine{ID: "sir-abcd", Metadata: json.RawMessage(`{"instanceId":"i-01234567"}`)},
			"aws:///eu-west-1a/i-01234567", "aws:///i-01234567", "",
		},
		"GCE": {
			wire.Machine{ID: "https://www.googleapis.com/compute/v1/projects/p/zones/z-b/instances/node-1"},
			"gce://p/z-b/node-1", "gce://p/z-b/node-1", "node-1",
		},
		"Azure, in two letter cases": {
			wire.Machine{ID: "/subscriptions/S/resourceGroups/RG/providers/Microsoft.Compute/virtualMachines/Node-1"},
			"azure:///subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/node-1",
			"azure:///subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/node-1", "Node-1",
		},
		"OpenStack": {
			wire.Machine{ID: serverID, Metadata: json.RawMessage(`{"name":"node-1"}`)}, "openstack:///" + serverID, "openstack:///" + serverID, "node-1",
		},
		"OpenStack with a region": {
			wire.Machine{ID: serverID, Region: "R"}, "openstack://R/" + serverID, "openstack:///" + serverID, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			of, ok := ParseMachineID(&tt.machine)
			check.Not(t, !ok || of.String() != tt.want, "machine ID %s, %t; want %s", of, ok, tt.want)
			is, err := providerid.Parse(tt.providerID)
			check.Not(t, err != nil || is.String() != tt.want, "node ID %s, %v; want %s", is, err, tt.want)
			if again, err := providerid.Parse(is.String()); err != nil || again.String() != tt.want {
				t.Errorf("%s parses as %s, %v", is, again, err)
			}
			check.Is(t, tt.computer, ComputerName(&tt.machine, ""))
		})
	}
}

func TestI10InvalidInstanceIDIsRefused(t *testing.T) {
	for _, id := range []string{
		"", "x", "kwok://node-1", "aws://i-01234567", "aws:///somewhere/i-01234567", "aws:///eu-west-1a/01234567", "gce://p/z",
		"gce://p/z/N_1", "openstack:///", "openstack:///node-1", "openstack://" + serverID, "azure:///subscriptions/s", serverID,
	} {
		if got, err := providerid.Parse(id); err == nil {
			t.Errorf("%q parses as %s", id, got)
		}
	}
	for _, m := range []wire.Machine{
		{ID: "i-requested1"},
		{ID: "sir-abcd"},
		{ID: "sir-abcd", Metadata: json.RawMessage(`{"instanceId":""}`)},
		{ID: "pod-1"},
		{ID: "https://example.com/x"},
		{ID: "/subscriptions/s/x"},
	} {
		if got, ok := ParseMachineID(&m); ok {
			t.Errorf("%s has the ID %s", m.ID, got)
		}
	}
}

func TestComputerNameIsReadFromConfiguredPath(t *testing.T) {
	m := wire.Machine{ID: serverID, Metadata: json.RawMessage(`{"name":"a","os":{"host":"b","n":1}}`)}
	for path, want := range map[string]string{"": "a", "os.host": "b", "os.n": "", "os": "", "x.y": ""} {
		check.Is(t, want, ComputerName(&m, path), path)
	}
}

func TestRedirectsOfReadsAreFollowed(t *testing.T) {
	shown := map[string]bool{} // whether credentials were sent, by path
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown["other"] = r.Header.Get("Authorization") != ""
		_, _ = io.WriteString(w, `{"timestamp": "2026-01-02T03:04:05.000Z", "desiredSize": 7, "allocated": 7, "active": 7}`)
	}))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown[r.URL.Path] = r.Header.Get("Authorization") != ""
		switch {
		case r.URL.Path == "/pool/size" && r.Method == http.MethodGet:
			http.Redirect(w, r, "/moved", http.StatusFound)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, other.URL, http.StatusPermanentRedirect)
		default:
			http.Redirect(w, r, "/pool", http.StatusFound)
		}
	}))
	defer server.Close()
	password := "secret"
	for _, follows := range []bool{true, false} {
		p, err := New(Config{
			Pools: []PoolConfig{{Name: "workers", URL: server.URL}}, FollowRedirects: follows,
			Auth: Auth{Username: "u", Password: &password}, RequestTimeout: cloud.Duration(10 * time.Second),
		}, Options{})
		must.NoError(t, err)
		group, err := p.Group(t.Context(), "workers")
		check.Not(t, follows != (err == nil && group.Size == 7), "follows %t: %+v, %v", follows, group, err)
		client, err := p.Client(t.Context(), "workers")
		must.NoError(t, err)
		if err := client.SetDesiredSize(t.Context(), 3); err == nil || !strings.Contains(err.Error(), "302") {
			t.Errorf("follows %t: a change was redirected: %v", follows, err)
		}
		_, err = p.Instances(t.Context(), "workers")
		check.Not(t, follows && (err == nil || !strings.Contains(err.Error(), "stopped after 10 redirects")), "endless redirects: %v", err)
	}
	check.Not(t, !shown["/moved"] || shown["other"], "credentials sent to %v; want only the same server", shown)
}

func TestRedirectToAnotherServerGetsNoCredentials(t *testing.T) {
	names := []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Auth-Token"}
	var shown []string
	note := func(r *http.Request) {
		shown = nil
		for _, name := range names {
			if r.Header.Get(name) != "" {
				shown = append(shown, name)
			}
		}
		if len(r.TLS.PeerCertificates) > 0 {
			shown = append(shown, "certificate")
		}
	}
	serve := func(h http.HandlerFunc) *httptest.Server {
		server := httptest.NewUnstartedServer(h)
		server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
		server.StartTLS()
		t.Cleanup(server.Close)
		return server
	}
	other := serve(func(_ http.ResponseWriter, r *http.Request) { note(r) })
	server := serve(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/here":
			http.Redirect(w, r, "/moved", http.StatusFound)
		default:
			note(r)
		}
	})
	certFile, keyFile := writeKeyPair(t, server.TLS.Certificates[0])
	c := Config{FollowRedirects: true, CAFile: certFile, Auth: Auth{CertFile: certFile, KeyFile: keyFile}}
	transport, err := c.Transport()
	must.NoError(t, err)
	for path, want := range map[string]string{"/here": strings.Join(names, " ") + " certificate", "/away": ""} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		must.NoError(t, err)
		for _, name := range names {
			r.Header.Set(name, "secret")
		}
		answer, err := transport.RoundTrip(r)
		must.NoError(t, err)
		_ = answer.Body.Close()
		check.Is(t, want, strings.Join(shown, " "), path)
	}
}

// writeKeyPair writes a certificate and its key to files.
func writeKeyPair(t *testing.T, pair tls.Certificate) (certFile, keyFile string) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	must.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, keyFile: {Type: "PRIVATE KEY", Bytes: key},
	} {
		must.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	return certFile, keyFile
}
