package faultproxy_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/dev/faultproxy"
)

// startProxiedServer starts a server that counts its requests, with a proxy in front.
func startProxiedServer(t *testing.T, p *faultproxy.Proxy, handler http.HandlerFunc) (address string, served *atomic.Int32) {
	t.Helper()
	served = new(atomic.Int32)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		handler(w, r)
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	front, err := p.Serve("server", u, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return front.String(), served
}

func byMethod(r faultproxy.Request) string { return r.Method }

func get(t *testing.T, address string) error {
	t.Helper()
	// One connection per request, because net/http retries when a reused connection is cut.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(address)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func TestOnlyNthRequestIsInterrupted(t *testing.T) {
	for _, tc := range []struct {
		moment faultproxy.Moment
		served int32
	}{{faultproxy.Before, 2}, {faultproxy.After, 3}} {
		t.Run(string(tc.moment), func(t *testing.T) {
			p := faultproxy.New(byMethod)
			steppedIn := make(chan faultproxy.Request, 3)
			p.InterruptAt(faultproxy.RequestID{Kind: "GET", Nth: 2}, tc.moment, func(r faultproxy.Request) { steppedIn <- r })
			address, served := startProxiedServer(t, p, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Forwarded-For") != "" {
					t.Error("the request has an X-Forwarded-For header")
				}
				_, _ = w.Write([]byte("fine"))
			})
			for n, want := range []bool{true, false, true} {
				if err := get(t, address+"/thing?q=1"); (err == nil) != want {
					t.Errorf("request %d: %v", n+1, err)
				}
			}
			if served.Load() != tc.served {
				t.Errorf("the server was asked %d times, want %d", served.Load(), tc.served)
			}
			want := faultproxy.Request{
				Server: "server", Method: "GET", Path: "/thing", Query: "q=1", RequestID: faultproxy.RequestID{Kind: "GET", Nth: 2},
			}
			if r := <-steppedIn; r != want || len(steppedIn) != 0 {
				t.Errorf("interrupted %v and %d more, want only %v", r, len(steppedIn), want)
			}
			if len(p.Requests()) != 3 {
				t.Errorf("requests %v, want 3", p.Requests())
			}
		})
	}
}

func TestWatchIsForwardedLineByLine(t *testing.T) {
	p := faultproxy.New(byMethod)
	read := make(chan bool)
	address, _ := startProxiedServer(t, p, func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = w.Write([]byte("line\n"))
			_ = http.NewResponseController(w).Flush()
			<-read // a line that is held back blocks until the end of the test
		}
	})
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := 0
	for s := bufio.NewScanner(resp.Body); s.Scan(); lines++ {
		read <- true
	}
	if lines != 3 {
		t.Errorf("%d lines, want 3", lines)
	}
}

func TestAnswersReportsOnlyDeliveredResponses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		moment faultproxy.Moment
		fault  faultproxy.Fault
		want   []int
	}{
		{name: "delivered", want: []int{http.StatusOK}},
		{name: "refused", fault: faultproxy.Fault{Status: http.StatusTooManyRequests}, want: []int{http.StatusTooManyRequests}},
		{name: "lost", fault: faultproxy.Fault{LoseResponse: true}},
		{name: "stopped before", moment: faultproxy.Before},
		{name: "stopped after", moment: faultproxy.After},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := faultproxy.New(byMethod)
			p.SetFaults(func(faultproxy.Request) faultproxy.Fault { return tc.fault })
			if tc.moment != "" {
				p.InterruptAt(faultproxy.RequestID{Kind: "GET", Nth: 1}, tc.moment, func(faultproxy.Request) {})
			}
			var mu sync.Mutex
			var statuses []int
			began := time.Now()
			p.OnResponse(func(r faultproxy.Request, asked time.Time, status int) {
				mu.Lock()
				defer mu.Unlock()
				if r.Path != "/thing" || asked.Before(began) {
					t.Errorf("reported %v, arrived at %s", r, asked)
				}
				statuses = append(statuses, status)
			})
			address, _ := startProxiedServer(t, p, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte("fine"))
				_ = http.NewResponseController(w).Flush()
			})
			_ = get(t, address+"/thing") // other tests check the client's view
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(statuses, tc.want) {
				t.Errorf("reported %v, want %v", statuses, tc.want)
			}
		})
	}
}

func TestRequestLifeIsThatOfConnection(t *testing.T) {
	p := faultproxy.New(byMethod)
	address, _ := startProxiedServer(t, p, func(http.ResponseWriter, *http.Request) {})
	first := &http.Client{Transport: &http.Transport{}}
	ask := func(c *http.Client) {
		t.Helper()
		resp, err := c.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	ask(first)
	p.StartNextLife()
	ask(first) // as a request that a dead process had sent
	ask(&http.Client{Transport: &http.Transport{}})
	var lives []int
	for _, r := range p.Requests() {
		lives = append(lives, r.Life)
	}
	if !slices.Equal(lives, []int{0, 0, 1}) {
		t.Errorf("lives %v, want the connection's: 0, 0, 1", lives)
	}
}

func TestCloseDuringConnectDoesNotDeadlock(t *testing.T) {
	for range 100 {
		p := faultproxy.New(byMethod)
		front, err := p.Serve("server", &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		closed, connected := make(chan struct{}), make(chan struct{}, 1)
		var dialing sync.WaitGroup
		for range 4 {
			dialing.Go(func() {
				for {
					c, err := net.Dial("tcp", front.Host)
					if err != nil {
						return // the proxy no longer listens
					}
					_ = c.Close()
					select {
					case connected <- struct{}{}:
					default:
					}
				}
			})
		}
		<-connected
		go func() {
			defer close(closed)
			_ = p.Close()
		}()
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Fatal("deadlock: Close waits for a connection that waits for Close")
		}
		dialing.Wait()
	}
}
