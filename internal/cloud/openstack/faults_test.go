package openstack

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// These tests are named after faults of the OpenStack cluster autoscaler in its communication with OpenStack.

// fakeOpenStack fakes Keystone, and Nova in two regions. It has no servers unless a test sets list. The end-to-end tests run
// against real services.
type fakeOpenStack struct {
	t       *testing.T
	address string
	mux     *http.ServeMux

	mu             sync.Mutex
	tokens         int // number of tokens; only the last one is valid
	revoked        bool
	secret         string // the valid password; empty accepts any
	refusals       int    // refused authentications
	project        string
	requestRegions []string                             // regions of the requests
	createHandler  http.HandlerFunc                     // replaces the handler of create requests
	onCreate       func()                               // called before each create response
	list           func(marker string) []map[string]any // returns a page of servers without a next link
}

func newFakeOpenStack(t *testing.T) *fakeOpenStack {
	t.Helper()
	s := &fakeOpenStack{t: t, onCreate: func() {}, list: func(string) []map[string]any { return []map[string]any{} }}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v3/auth/tokens", s.authenticate)
	mux.HandleFunc("GET /{region}/v2.1/{$}", func(w http.ResponseWriter, _ *http.Request) {
		s.respond(w, http.StatusOK, map[string]any{"version": map[string]string{"version": "2.90"}})
	})
	mux.HandleFunc("GET /{region}/v2.1/servers/detail", s.withToken(func(w http.ResponseWriter, r *http.Request) {
		s.respond(w, http.StatusOK, map[string]any{"servers": s.list(r.URL.Query().Get("marker"))})
	}))
	mux.HandleFunc("POST /{region}/v2.1/servers", s.withToken(func(w http.ResponseWriter, r *http.Request) {
		if s.createHandler != nil {
			s.createHandler(w, r)
			return
		}
		s.onCreate()
		s.respond(w, http.StatusAccepted, map[string]any{"server": map[string]string{"id": someID}})
	}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.mux = mux
	s.address = server.URL
	return s
}

func (s *fakeOpenStack) respond(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	check.NoError(s.t, json.NewEncoder(w).Encode(body))
}

func (s *fakeOpenStack) token() string { return fmt.Sprint("token-", s.tokens) }

func (s *fakeOpenStack) authenticate(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	if s.secret != "" && !strings.Contains(string(body), s.secret) {
		s.refusals++
		s.mu.Unlock()
		s.respond(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"code": http.StatusUnauthorized, "message": "no"}})
		return
	}
	project := s.project
	s.tokens++
	s.revoked = false
	w.Header().Set("X-Subject-Token", s.token())
	s.mu.Unlock()
	var catalog []any
	for kind, path := range map[string]string{"compute": "/v2.1", "image": "", "network": ""} {
		var endpoints []any
		for _, region := range []string{"north", "south"} {
			endpoints = append(endpoints, map[string]string{"interface": "public", "region_id": region, "url": s.address + "/" + region + path})
		}
		catalog = append(catalog, map[string]any{"type": kind, "endpoints": endpoints})
	}
	s.respond(w, http.StatusCreated, map[string]any{"token": map[string]any{
		"catalog": catalog, "project": map[string]string{"id": project}, "expires_at": time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z"),
	}})
}

// withToken returns a handler that requires the valid token.
func (s *fakeOpenStack) withToken(answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		good := !s.revoked && r.Header.Get("X-Auth-Token") == s.token()
		s.requestRegions = append(s.requestRegions, r.PathValue("region"))
		s.mu.Unlock()
		if !good {
			s.respond(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"code": http.StatusUnauthorized, "message": "no"}})
			return
		}
		answer(w, r)
	}
}

func (s *fakeOpenStack) newProvider(region string) *Provider {
	s.t.Helper()
	c := validConfig()
	c.Auth.URL, c.Region = s.address+"/v3", region
	p, err := New(c, Options{})
	must.NoError(s.t, err)
	return p
}

func TestFaultEachCallHasItsOwnToken(t *testing.T) {
	s := newFakeOpenStack(t)
	p := s.newProvider("south")
	ask := func(times int) {
		t.Helper()
		var all sync.WaitGroup
		for range times {
			all.Go(func() {
				p.servers.Outdate() // force a request
				check.NoError(t, check.Err(p.Instances(t.Context(), "workers")))
			})
		}
		all.Wait()
	}
	ask(1)
	ask(5)
	check.Is(t, 1, s.tokens)
	s.revoked = true
	ask(5)
	ask(1)
	check.Is(t, 2, s.tokens)
}

func TestFaultRegionIsHardcoded(t *testing.T) {
	for want, ask := range map[string]func(s *fakeOpenStack) *Provider{
		"south": func(s *fakeOpenStack) *Provider { return s.newProvider("south") },
		"north": func(s *fakeOpenStack) *Provider {
			t.Setenv("OS_REGION_NAME", "north")
			return s.newProvider("")
		},
	} {
		s := newFakeOpenStack(t)
		check.NoError(t, check.Err(ask(s).Instances(t.Context(), "workers")))
		check.Not(t, !slices.Equal(s.requestRegions, []string{want}), "requests went to %v, want %s", s.requestRegions, want)
	}
	check.ErrorContains(t, newFakeOpenStack(t).newProvider("LK").CheckConfiguredNames(t.Context()), "want one of north, south")
}

func TestFaultServersAreLaunchedOneByOne(t *testing.T) {
	const servers = 5
	s := newFakeOpenStack(t)
	var asked sync.WaitGroup
	asked.Add(servers)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	together := make(chan struct{})
	go func() { asked.Wait(); close(together) }()
	s.onCreate = func() { // waits until all are requested
		asked.Done()
		select {
		case <-together:
		case <-ctx.Done():
			t.Error("not all create requests are concurrent")
		}
	}
	p := s.newProvider("south")
	r := &resolvedNames{image: someID, networks: []string{someID}}
	ids, err := p.createServers(t.Context(), p.groups[0], r, &flavors.Flavor{ID: "1", Name: "m.2c4g"}, make([]string, servers))
	check.Not(t, err != nil || len(ids) != servers, "%v, %v, want %d servers", ids, err, servers)
}

// TestUnansweredNovaLaunchMayHaveBeenAccepted lets a proxy respond instead of Nova.
func TestUnansweredNovaLaunchMayHaveBeenAccepted(t *testing.T) {
	for status, wants := range map[int]bool{http.StatusServiceUnavailable: false, http.StatusTooManyRequests: true} {
		s := newFakeOpenStack(t)
		p := s.newProvider("south")
		s.createHandler = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "5")
			s.respond(w, status, map[string]any{"overLimit": map[string]any{"message": "later"}})
		}
		_, err := p.createServer(t.Context(), p.groups[0], &resolvedNames{}, &flavors.Flavor{ID: "1", Name: "small"}, "")
		check.Not(t, err == nil || cloud.IsThrottled(err) != wants, "%d: %v; want throttled: %t", status, err, wants)
	}
}
