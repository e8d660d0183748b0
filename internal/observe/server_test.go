package observe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// start runs a server on loopback until the test ends, and returns its URL.
func start(t *testing.T, o ServerOptions) string {
	t.Helper()
	o.Address = "127.0.0.1:0"
	s, err := Listen(t.Context(), o)
	must.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	return "http://" + s.Addr().String()
}

func ask(t *testing.T, method, url string, body io.Reader) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	must.NoError(t, err)
	resp, err := http.DefaultTransport.RoundTrip(r) // follows no redirect
	must.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	must.NoError(t, err)
	return resp.StatusCode, string(raw), resp.Header
}

func TestWhatIsServed(t *testing.T) {
	r := NewRegistry()
	r.AddStandardMetrics(Build{"v1", "abc"})
	fine := func() error { return nil }
	bad := func() error { return errors.New("notice loop: no sign of life") }
	worse := func() error { return errors.New("queue: full") }
	url := start(t, ServerOptions{Metrics: r, Live: []Check{fine}, Ready: []Check{bad, fine, worse}})
	withPprof := start(t, ServerOptions{Metrics: r, Pprof: true})

	tests := []struct {
		method, url string
		code        int
		contains    string
	}{
		{"GET", url + "/healthz", 200, "ok\n"},
		{"HEAD", url + "/healthz", 200, ""},
		{"GET", url + "/readyz", 503, "notice loop: no sign of life\nqueue: full\n"},
		{"GET", url + "/metrics", 200, "\ngo_goroutines "},
		{"GET", url + "/metrics?x=y", 200, "\ngo_goroutines "},
		{"HEAD", url + "/metrics", 200, ""},
		{"POST", url + "/metrics", 405, "want GET or HEAD"},
		{"DELETE", url + "/healthz", 405, "want GET or HEAD"},
		{"OPTIONS", url + "/readyz", 405, "want GET or HEAD"},
		{"GET", url + "/", 404, ""},
		{"GET", url + "/metrics/", 404, ""},
		{"GET", url + "//metrics", 404, ""},
		{"GET", url + "/metrics/../healthz", 404, ""},
		{"POST", url + "/elsewhere", 404, ""},
		{"GET", url + "/debug/pprof/", 404, ""},
		{"GET", url + "/debug/pprof/heap", 404, ""},
		{"GET", url + "/debug/pprof/cmdline", 404, ""},
		{"GET", withPprof + "/healthz", 200, "ok\n"},
		{"GET", withPprof + "/readyz", 200, "ok\n"},
		{"GET", withPprof + "/debug/pprof/", 200, "goroutine"},
		{"GET", withPprof + "/debug/pprof/goroutine?debug=1", 200, "goroutine profile: total"},
		{"GET", withPprof + "/debug/pprof/cmdline", 200, "observe"},
		{"GET", withPprof + "/debug/pprof/nothing", 404, "Unknown profile"},
		{"POST", withPprof + "/debug/pprof/symbol", 405, ""},
	}
	for _, tt := range tests {
		code, body, header := ask(t, tt.method, tt.url, nil)
		if code != tt.code || !strings.Contains(body, tt.contains) || (tt.method == "HEAD") != (body == "") {
			t.Errorf("%s %s: %d %q, want %d with %q", tt.method, tt.url, code, body, tt.code, tt.contains)
		}
		if code == 405 && header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow: %q", tt.method, tt.url, header.Get("Allow"))
		}
	}
}

func TestABodyIsRefused(t *testing.T) {
	url := start(t, ServerOptions{})
	for name, body := range map[string]io.Reader{"of known size": strings.NewReader("x"), "in chunks": io.MultiReader(strings.NewReader("x"))} {
		if code, _, _ := ask(t, "GET", url+"/healthz", body); code != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: %d", name, code)
		}
	}
}

func TestHeadersBeyondTheLimitAreRefused(t *testing.T) {
	url := start(t, ServerOptions{Log: slog.New(slog.DiscardHandler)})
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	must.NoError(t, err)
	defer func() { _ = c.Close() }()
	// Package net/http reads 4 KiB more than the limit.
	_, _ = fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("x", maxHeaderBytes+8<<10))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	must.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %s", resp.Status)
	}
}

func TestProfileMayOutlastTheWriteTimeout(t *testing.T) {
	srv := httptest.NewUnstartedServer(newHandler(ServerOptions{Pprof: true}))
	srv.Config.WriteTimeout = 500 * time.Millisecond
	srv.Start()
	defer srv.Close()
	code, body, _ := ask(t, "GET", srv.URL+"/debug/pprof/trace?seconds=1", nil)
	if code != 200 || len(body) == 0 {
		t.Errorf("%d with %d bytes", code, len(body))
	}
}

func TestAnAddressThatCannotBeHadIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer func() { _ = l.Close() }()
	for _, address := range []string{l.Addr().String(), "nonsense", "127.0.0.1:99999"} {
		if _, err := Listen(t.Context(), ServerOptions{Address: address}); err == nil || !strings.Contains(err.Error(), `"`+address+`"`) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestWhatIsUnderWayFinishesBeforeRunReturns(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	slow := func() error { close(entered); <-release; return nil }
	s, err := Listen(t.Context(), ServerOptions{Address: "127.0.0.1:0", Live: []Check{slow}})
	must.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	answered := make(chan error, 1)
	go func() {
		resp, err := http.Get("http://" + s.Addr().String() + "/healthz")
		if err == nil {
			err = resp.Body.Close()
		}
		answered <- err
	}()
	<-entered
	cancel()
	select {
	case err := <-done:
		t.Fatalf("Run returned %v with a request under way", err)
	default:
	}
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the request under way: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("Run returned %v", err)
	}
	isClosed(t, s)
}

// isClosed checks that a server does not listen any more. It asks the listener: another process may listen on the port by now.
func isClosed(t *testing.T, s *Server) {
	t.Helper()
	if c, err := s.listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is not closed: %v, %v", c, err)
	}
}

func TestRunSaysWhyItEndedBeforeItsContext(t *testing.T) {
	s, err := Listen(t.Context(), ServerOptions{Address: "127.0.0.1:0"})
	must.NoError(t, err)
	_ = s.listener.Close()
	if err := s.Run(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestRunWithAnEndedContextClosesTheListener(t *testing.T) {
	s, err := Listen(t.Context(), ServerOptions{Address: "127.0.0.1:0"})
	must.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.NoError(t, s.Run(ctx))
	isClosed(t, s)
}

func TestAHeartbeatThatStopsIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHeartbeat("notice loop", time.Minute)
		expect := func(situation, want string) {
			t.Helper()
			if err := h.Check(); fmt.Sprint(err) != want {
				t.Errorf("%s: %v, want %s", situation, err, want)
			}
		}
		expect("at the start", "<nil>")
		time.Sleep(time.Minute)
		expect("at the limit without a beat", "<nil>")
		time.Sleep(time.Millisecond)
		expect("past it", "notice loop: no sign of life for 1m0.001s, want one within 1m0s")
		h.Beat()
		expect("after a beat", "<nil>")
		time.Sleep(30 * time.Second)
		h.Beat()
		time.Sleep(time.Minute)
		expect("a minute after the last beat", "<nil>")
		time.Sleep(time.Hour)
		expect("later", "notice loop: no sign of life for 1h1m0s, want one within 1m0s")
	})
}
