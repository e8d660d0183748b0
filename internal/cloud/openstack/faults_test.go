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

// The tests of this file are named after those faults of the OpenStack cluster autoscaler that lie in how it spoke to
// OpenStack.

// services are a Keystone, and a Nova in each of two regions, without servers unless a test lists some. They say no more than is asked here; what the
// real ones say is tested against them.
type services struct {
	t       *testing.T
	address string
	mux     *http.ServeMux

	mu      sync.Mutex
	tokens  int // that were given out, of which the last is good
	revoked bool
	secret  string // of the user, if it is to be right
	refused int    // sign-ins with another
	project string
	regions []string                             // that were asked
	order   http.HandlerFunc                     // answers the request for a server in the place of create; nil is none
	create  func()                               // is called with each server that is asked for, before the answer
	list    func(marker string) []map[string]any // answers a page of servers, never with a next
}

func newServices(t *testing.T) *services {
	t.Helper()
	s := &services{t: t, create: func() {}, list: func(string) []map[string]any { return []map[string]any{} }}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v3/auth/tokens", s.signIn)
	mux.HandleFunc("GET /{region}/v2.1/{$}", func(w http.ResponseWriter, _ *http.Request) {
		s.answer(w, http.StatusOK, map[string]any{"version": map[string]string{"version": "2.90"}})
	})
	mux.HandleFunc("GET /{region}/v2.1/servers/detail", s.known(func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, http.StatusOK, map[string]any{"servers": s.list(r.URL.Query().Get("marker"))})
	}))
	mux.HandleFunc("POST /{region}/v2.1/servers", s.known(func(w http.ResponseWriter, r *http.Request) {
		if s.order != nil {
			s.order(w, r)
			return
		}
		s.create()
		s.answer(w, http.StatusAccepted, map[string]any{"server": map[string]string{"id": someID}})
	}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.mux = mux
	s.address = server.URL
	return s
}

func (s *services) answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		s.t.Error(err)
	}
}

func (s *services) token() string { return fmt.Sprint("token-", s.tokens) }

func (s *services) signIn(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	if s.secret != "" && !strings.Contains(string(body), s.secret) {
		s.refused++
		s.mu.Unlock()
		s.answer(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"code": http.StatusUnauthorized, "message": "no"}})
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
	s.answer(w, http.StatusCreated, map[string]any{"token": map[string]any{
		"catalog": catalog, "project": map[string]string{"id": project}, "expires_at": time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z"),
	}})
}

// known is a handler of Nova's for those with the token that is good now.
func (s *services) known(answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		good := !s.revoked && r.Header.Get("X-Auth-Token") == s.token()
		s.regions = append(s.regions, r.PathValue("region"))
		s.mu.Unlock()
		if !good {
			s.answer(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"code": http.StatusUnauthorized, "message": "no"}})
			return
		}
		answer(w, r)
	}
}

func (s *services) provider(region string) *Provider {
	s.t.Helper()
	c := good()
	c.Auth.URL, c.Region = s.address+"/v3", region
	p, err := New(c, Options{})
	must.NoError(s.t, err)
	return p
}

func TestFaultEachCallHasItsOwnToken(t *testing.T) {
	s := newServices(t)
	p := s.provider("south")
	ask := func(times int) {
		t.Helper()
		var all sync.WaitGroup
		for range times {
			all.Go(func() {
				p.servers.Outdate() // each has to ask
				if _, err := p.Instances(t.Context(), "workers"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	ask(1)
	ask(5)
	if s.tokens != 1 {
		t.Errorf("6 calls have had %d tokens, want one for all", s.tokens)
	}
	s.revoked = true
	ask(5)
	ask(1)
	if s.tokens != 2 {
		t.Errorf("after a token was revoked there are %d, want one more", s.tokens)
	}
}

func TestFaultRegionIsHardcoded(t *testing.T) {
	for want, ask := range map[string]func(s *services) *Provider{
		"south": func(s *services) *Provider { return s.provider("south") },
		"north": func(s *services) *Provider {
			t.Setenv("OS_REGION_NAME", "north")
			return s.provider("")
		},
	} {
		s := newServices(t)
		if _, err := ask(s).Instances(t.Context(), "workers"); err != nil {
			t.Error(err)
		}
		if !slices.Equal(s.regions, []string{want}) {
			t.Errorf("asked was %v, want %s", s.regions, want)
		}
	}
	check.ErrorContains(t, newServices(t).provider("LK").Check(t.Context()), "want one of north, south")
}

func TestFaultServersAreLaunchedOneByOne(t *testing.T) {
	const servers = 5
	s := newServices(t)
	var asked sync.WaitGroup
	asked.Add(servers)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	together := make(chan struct{})
	go func() { asked.Wait(); close(together) }()
	s.create = func() { // answers once all are asked for
		asked.Done()
		select {
		case <-together:
		case <-ctx.Done():
			t.Error("not all servers are asked for before the first is answered")
		}
	}
	p := s.provider("south")
	r := &resolved{image: someID, networks: []string{someID}}
	ids, err := p.launchAll(t.Context(), p.groups[0], r, &flavors.Flavor{ID: "1", Name: "m.2c4g"}, make([]string, servers))
	if err != nil || len(ids) != servers {
		t.Errorf("%v, %v, want %d servers", ids, err, servers)
	}
}

// TestUnansweredNovaLaunchMayHaveBeenAccepted has a proxy answer in Nova's place.
func TestUnansweredNovaLaunchMayHaveBeenAccepted(t *testing.T) {
	for status, wants := range map[int]bool{http.StatusServiceUnavailable: false, http.StatusTooManyRequests: true} {
		s := newServices(t)
		p := s.provider("south")
		s.order = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "5")
			s.answer(w, status, map[string]any{"overLimit": map[string]any{"message": "later"}})
		}
		if _, err := p.launch(t.Context(), p.groups[0], &resolved{}, &flavors.Flavor{ID: "1", Name: "small"}, ""); err == nil || cloud.IsThrottled(err) != wants {
			t.Errorf("%d: %v; want a wish to be left alone: %t", status, err, wants)
		}
	}
}
