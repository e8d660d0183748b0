package httpserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// startOrigin starts a backend server and a proxy in front of it.
func startOrigin(t *testing.T, path string, h http.HandlerFunc) (front *httptest.Server, f *ServedPool) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	f = &ServedPool{Name: "workers", URL: u, Transport: http.DefaultTransport}
	s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler), BackendTimeout: 10 * time.Second, MaxBody: 4096}, f)
	front = httptest.NewServer(s)
	t.Cleanup(front.Close)
	return front, f
}

func TestUnknownWriteIsLoggedAsWarning(t *testing.T) {
	_, f := startOrigin(t, "", func(http.ResponseWriter, *http.Request) {})
	for request, warned := range map[string]bool{
		"POST /pool/metadata": true, "DELETE /x": true, "GET /x": false, "POST /pool/serviceState": false,
	} {
		var log bytes.Buffer
		s := NewServer(ServerOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}, f)
		method, path, _ := strings.Cut(request, " ")
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, path, strings.NewReader("{}")))
		if got := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), path); got != warned {
			t.Errorf("%s: %q, want a warning: %t", request, log.String(), warned)
		}
	}
}

func TestForwardedRequestArrivesUnchanged(t *testing.T) {
	type arrived struct {
		method, uri, body string
		header            http.Header
		length            int64
	}
	var mu sync.Mutex
	var got arrived
	front, _ := startOrigin(t, "/base", func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = arrived{r.Method, r.RequestURI, string(raw), r.Header.Clone(), r.ContentLength}
		w.Header().Set("X-Answer", "yes")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "gone")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, "tea")
	})
	for _, tt := range []struct{ method, path, want, body string }{
		{http.MethodGet, "/pool?x=1&y=a%2Fb;z", "/base/pool?x=1&y=a%2Fb;z", ""},
		{http.MethodGet, "/a%2Fb%3Fc/d%20e?", "/base/a%2Fb%3Fc/d%20e?", ""},
		{http.MethodPost, "/config", "/base/config", `{"a":1}`},
		{http.MethodGet, "/cloudpools/workers/pool", "/base/pool", ""},
		{http.MethodDelete, "/other", "/base/other", ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tt.method, front.URL+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{
			"X-Custom": "kept", "Connection": "X-Secret-Hop", "X-Secret-Hop": "dropped", "X-Forwarded-For": "203.0.113.7",
			"Authorization": "Bearer of the client's", "X-HTTP-Method-Override": "POST", "Accept-Encoding": "br",
		} {
			r.Header.Set(name, value)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode != http.StatusTeapot || string(raw) != "tea" || response.Header.Get("X-Answer") != "yes" || response.Header.Get("X-Hop") != "" {
			t.Errorf("%s: answered %d %q %v", tt.path, response.StatusCode, raw, response.Header)
		}
		mu.Lock()
		if got.method != tt.method || got.uri != tt.want || got.body != tt.body || got.length != int64(len(tt.body)) {
			t.Errorf("%s %s arrived as %+v, want %s", tt.method, tt.path, got, tt.want)
		}
		h := got.header
		if h.Get("X-Custom") != "kept" || h.Get("X-Secret-Hop") != "" || h.Get("Authorization") != "" || h.Get("X-Http-Method-Override") != "" ||
			h.Get("Accept-Encoding") != "br" || h.Get("X-Forwarded-For") != "203.0.113.7, 127.0.0.1" {
			t.Errorf("%s: arrived with %v", tt.path, h)
		}
		mu.Unlock()
	}
}

func TestIPv6ClientIsForwarded(t *testing.T) {
	seen := make(chan string, 1)
	_, f := startOrigin(t, "", func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header.Get("X-Forwarded-For") })
	s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler)}, f)
	r := httptest.NewRequest(http.MethodGet, "/pool", nil)
	r.RemoteAddr = "[2001:db8::1]:4711"
	s.ServeHTTP(httptest.NewRecorder(), r)
	if got := <-seen; got != "2001:db8::1" {
		t.Errorf("X-Forwarded-For is %q", got)
	}
}

func TestAnswerIsStreamedUntilClientDisconnects(t *testing.T) {
	left := make(chan struct{})
	front, _ := startOrigin(t, "", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	})
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, front.URL+"/pool", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(response.Body).ReadString('\n')
	if err != nil || line != "first\n" {
		t.Errorf("%q, %v", line, err)
	}
	leave()
	_ = response.Body.Close()
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Error("the server did not see the disconnect")
	}
}

func TestServerFaultsAreForwardedOrReported(t *testing.T) {
	front, f := startOrigin(t, "", func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "http://203.0.113.9/elsewhere", http.StatusFound)
		case "/half":
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/html":
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, "<html>")
		}
	})
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	type got struct {
		code     int
		location string
		body     string
	}
	get := func(path string) (got, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(r)
		if err != nil {
			return got{}, err
		}
		defer func() { _ = response.Body.Close() }()
		raw, err := io.ReadAll(response.Body)
		return got{response.StatusCode, response.Header.Get("Location"), string(raw)}, err
	}
	if is, err := get("/redirect"); err != nil || is.code != http.StatusFound || is.location != "http://203.0.113.9/elsewhere" {
		t.Errorf("a redirect: %+v, %v", is, err)
	}
	if is, err := get("/html"); err != nil || is.code != http.StatusServiceUnavailable || is.body != "<html>" {
		t.Errorf("a page: %+v, %v", is, err)
	}
	if is, err := get("/half"); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) || strings.Contains(is.body, "message") {
		t.Errorf("half an answer: %+v, %v; want it cut off without an error message", is, err)
	}
	f.URL.Host = "127.0.0.1:1" // no process listens on port 1; a free port could be taken by another process
	if is, err := get("/pool"); err != nil || is.code != http.StatusBadGateway ||
		!strings.Contains(is.body, "failed to forward request to backend: failed to complete backend cloudpool request") {
		t.Errorf("no listener: %+v, %v", is, err)
	}
}

func TestProtocolUpgradeIsRefused(t *testing.T) {
	for _, unasked := range []bool{false, true} {
		front, _ := startOrigin(t, "", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") == "" && r.Header.Get("Connection") == "" && r.Header.Get("Http2-Settings") == "" && !unasked {
				return
			}
			if r.Header.Get("Upgrade") != "" {
				w.Header().Set("Upgrade", r.Header.Get("Upgrade"))
				w.Header().Set("Connection", "Upgrade")
			}
			w.WriteHeader(http.StatusSwitchingProtocols)
		})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/pool", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Connection", "Upgrade, HTTP2-Settings")
		r.Header.Set("Upgrade", "h2c")
		r.Header.Set("Http2-Settings", "AAMAAABkAAQAAP__")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if want := map[bool]int{false: http.StatusOK, true: http.StatusBadGateway}[unasked]; response.StatusCode != want {
			t.Errorf("a server that switches, unasked %t: %d, want %d", unasked, response.StatusCode, want)
		}
	}
}

func TestServerDenialIsNotAttributedToClient(t *testing.T) {
	for _, tt := range []struct {
		o    ServerOptions
		want int
	}{
		{ServerOptions{}, http.StatusBadGateway},
		{ServerOptions{StrictCompat: true}, http.StatusForbidden},
		{ServerOptions{ForwardCredentials: true}, http.StatusForbidden}, // the client's own credentials
	} {
		_, f := startOrigin(t, "", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
		tt.o.Log = slog.New(slog.DiscardHandler)
		w := httptest.NewRecorder()
		NewServer(tt.o, f).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/pool", nil))
		if w.Code != tt.want || tt.want == http.StatusBadGateway && !strings.Contains(w.Body.String(), "403 Forbidden to this process's own credentials") {
			t.Errorf("%+v: %d %s, want %d", tt.o, w.Code, w.Body, tt.want)
		}
	}
}

func TestTooLargeBodyIsRefused(t *testing.T) {
	front, _ := startOrigin(t, "", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL+"/config", strings.NewReader(strings.Repeat("x", 5000)))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("%d", response.StatusCode)
	}
}

func TestRefusedActionIsNotForwarded(t *testing.T) {
	_, f := startOrigin(t, "", func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s was passed on", r.Method, r.URL.Path) })
	s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler), RefusedActions: []string{"attach", "config", "start", "stop", "detach"}}, f)
	for path, code := range map[string]int{
		"/pool/attach": 403, "/config": 403, "/start/": 403, "/STOP": 403, "/pool/detach;x": 403, "/cloudpools/other/pool": 404,
		"/cloudpools/workers/attach": 403, "/slipway/v1/x": 404,
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader("{}")))
		if w.Code != code {
			t.Errorf("POST %s: %d %s, want %d", path, w.Code, w.Body, code)
		}
	}
	// With the last three a server of several pools would delete or create this pool.
	for _, request := range []string{
		"PUT /pool/size", "DELETE /pool/size", "TRACE /pool/size", "PURGE /pool/size", "DELETE /cloudpools/workers", "DELETE /", "POST /cloudpools/workers/",
	} {
		method, path, _ := strings.Cut(request, " ")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", request, w.Code)
		}
	}
}

func TestAmbiguousPathsMapToActions(t *testing.T) {
	for path, want := range map[string]target{
		"/pool/size": {"", actSize}, "/pool/size/": {"", actSize}, "/pool/%73ize": {"", actSize}, "/%2e/pool/size": {"", actSize},
		"/cloudpools/A/pool/size": {"a", actSize}, "/cloudpools/a/terminate": {"a", actTerminate}, "/cloudpools/a/pool/terminate": {"a", actTerminate},
		"/pool/terminate": {"", actTerminate}, "/pool": {"", actPool}, "/pools": {"", actUnknown}, "/pool/size/x": {"", actUnknown}, "/": {"", actPoolRoot},
		"/cloudpools/a": {"a", actPoolRoot}, "/cloudpools/a/%2e/": {"a", actPoolRoot}, "/cloudpools": {"", actUnknown}, "/a/../cloudpools/b/../c/stop": {"c", actStop}, "/../../pool/size": {"", actSize},
		"/pool/membershipStatus": {"", actMembership}, "/pool;v=1/detach;": {"", actDetach}, "/%": {"", actUnknown},
	} {
		if got := parsePath(path); got != want {
			t.Errorf("%s: %+v, want %+v", path, got, want)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	for _, path := range []string{"/pool/size", "/pool/%2573ize/", "//x/../pool;a=b/size", "/cloudpools/a/terminate", "/%zz"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		got := parsePath(path)
		// Another slash does not change the target.
		if slashed := parsePath(path + "/"); slashed != got && !strings.HasSuffix(path, "%") && !strings.Contains(path, "%") {
			t.Errorf("%q: %+v, with a slash %+v", path, got, slashed)
		}
	})
}
