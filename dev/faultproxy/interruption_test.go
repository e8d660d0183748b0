package faultproxy_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/dev/faultproxy"
)

func byPath(r faultproxy.Request) string { return r.Path }

func TestRequestsAreInterruptedTogether(t *testing.T) {
	p := faultproxy.New(byPath)
	interrupted := make(chan []faultproxy.Request, 2)
	first := func(path string) faultproxy.RequestID { return faultproxy.RequestID{Kind: path, Nth: 1} }
	var mu sync.Mutex
	served := map[string]bool{}
	p.InterruptTogether(map[faultproxy.RequestID]faultproxy.Moment{first("/before"): faultproxy.Before, first("/after"): faultproxy.After},
		time.Hour, func(stopped []faultproxy.Request) { interrupted <- stopped })
	address, _ := startProxiedServer(t, p, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		served[r.URL.Path] = true
	})
	var clients sync.WaitGroup
	for _, path := range []string{"/before", "/after"} {
		clients.Go(func() {
			if err := get(t, address+path); err == nil {
				t.Errorf("%s was answered", path)
			}
		})
	}
	if err := get(t, address+"/other"); err != nil {
		t.Errorf("a request that is not interrupted: %v", err)
	}
	clients.Wait()
	if all := <-interrupted; len(all) != 2 || len(interrupted) != 0 {
		t.Errorf("interrupted %v and %d more times, want both requests once", all, len(interrupted))
	}
	mu.Lock()
	defer mu.Unlock()
	if served["/before"] || !served["/after"] {
		t.Errorf("the server received %v, want /after and not /before", served)
	}
}

// TestInterruptionDoesNotAwaitMissingRequest has a process that sends only one of two requests before the kill. The next process sends
// the other.
func TestInterruptionDoesNotAwaitMissingRequest(t *testing.T) {
	p := faultproxy.New(byPath)
	interrupted := make(chan []faultproxy.Request, 2)
	sent, missing := faultproxy.RequestID{Kind: "/sent", Nth: 1}, faultproxy.RequestID{Kind: "/missing", Nth: 1}
	p.InterruptTogether(map[faultproxy.RequestID]faultproxy.Moment{sent: faultproxy.Before, missing: faultproxy.Before},
		time.Millisecond, func(stopped []faultproxy.Request) { interrupted <- stopped })
	address, _ := startProxiedServer(t, p, func(http.ResponseWriter, *http.Request) {})
	if err := get(t, address+"/sent"); err == nil {
		t.Error("/sent was answered")
	}
	if err := get(t, address+"/missing"); err != nil {
		t.Errorf("after the interruption: %v", err)
	}
	if all := <-interrupted; len(all) != 1 || all[0].RequestID != sent || len(interrupted) != 0 {
		t.Errorf("interrupted %v and %d more times, want /sent once", all, len(interrupted))
	}
}

func TestInterruptionSetsTheNextOne(t *testing.T) {
	p := faultproxy.New(byPath)
	var all []int
	var interrupt func(nth int)
	interrupt = func(nth int) {
		p.InterruptAt(faultproxy.RequestID{Kind: "/thing", Nth: nth}, faultproxy.Before, func(r faultproxy.Request) {
			all = append(all, r.Nth) // the requests follow one another
			if r.Nth < 3 {
				interrupt(r.Nth + 2)
			}
		})
	}
	interrupt(1)
	address, _ := startProxiedServer(t, p, func(http.ResponseWriter, *http.Request) {})
	for nth := 1; nth <= 4; nth++ {
		if err := get(t, address+"/thing"); (err != nil) != (nth%2 == 1) {
			t.Errorf("request %d: %v", nth, err)
		}
	}
	if len(all) != 2 {
		t.Errorf("interrupted %v, want 1 and 3", all)
	}
}
