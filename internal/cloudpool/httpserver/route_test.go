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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// recordingServer is a pool's server that answers everything and records the requests.
type recordingServer struct{ uris []string }

// RoundTrip implements http.RoundTripper.
func (s *recordingServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.uris = append(s.uris, r.Method+" "+r.URL.RequestURI())
	return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// sendThroughProxy sends a request to a pool and returns the method and path that reached the pool's server, or "".
func sendThroughProxy(t rapid.TB, base, method, target string) (code int, arrived string) {
	t.Helper()
	u, err := url.Parse("http://backend" + base)
	if err != nil {
		t.Fatal(err)
	}
	requested, err := url.ParseRequestURI(target)
	if err != nil {
		return 0, ""
	}
	backend := &recordingServer{}
	s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler)}, &ServedPool{Name: "workers", URL: u, Transport: backend})
	// A body that every checked action rejects before it contacts a server.
	r := httptest.NewRequest(method, "/", strings.NewReader("{}"))
	r.URL = requested
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if len(backend.uris) == 0 {
		return w.Code, ""
	}
	return w.Code, backend.uris[0]
}

// pathReaders are ways in which servers split a path into segments.
var pathReaders = map[string]func(escaped string) []string{
	"RFC 3986": func(escaped string) []string {
		var decoded []string
		for s := range strings.SplitSeq(strings.ReplaceAll(strings.ReplaceAll(escaped, "%2e", "."), "%2E", "."), "/") {
			decoded = appendSegment(decoded, s)
		}
		for i, s := range decoded {
			if plain, err := url.PathUnescape(s); err == nil {
				decoded[i] = plain
			}
		}
		return decoded
	},
	"Jetty": func(escaped string) []string {
		raw := strings.Split(escaped, "/")
		for i, s := range raw {
			raw[i], _, _ = strings.Cut(s, ";")
		}
		path, err := url.PathUnescape(strings.Join(raw, "/"))
		if err != nil {
			return nil
		}
		var segments []string
		for s := range strings.SplitSeq(path, "/") {
			segments = appendSegment(segments, s)
		}
		return segments
	},
	"decodes first": func(escaped string) []string {
		for range 3 {
			if decoded, err := url.PathUnescape(escaped); err == nil {
				escaped = decoded
			}
		}
		escaped, _, _ = strings.Cut(escaped, "?")
		escaped, _, _ = strings.Cut(escaped, "#")
		var segments []string
		for s := range strings.SplitSeq(strings.ReplaceAll(strings.ToLower(escaped), `\`, "/"), "/") {
			s, _, _ = strings.Cut(s, ";")
			segments = appendSegment(segments, strings.TrimSpace(s))
		}
		return segments
	},
}

// appendSegment adds a segment and resolves dot segments.
func appendSegment(segments []string, s string) []string {
	switch s {
	case "", ".":
		return segments
	case "..":
		return segments[:max(0, len(segments)-1)]
	}
	return append(segments, s)
}

// pathBelowPool returns a reader's path below the pool's own path. With inside false the path is outside of the pool.
func pathBelowPool(base string, segments []string) (below string, inside bool) {
	own := strings.FieldsFunc(base, func(r rune) bool { return r == '/' })
	if len(segments) < len(own) || !slices.Equal(segments[:len(own)], own) {
		return strings.Join(segments, "/"), false
	}
	return strings.Join(segments[len(own):], "/"), true
}

// checkedPaths are the paths of the actions that are checked, and of the pool itself.
var checkedPaths = []string{
	"", "pool/size", "pool/terminate", "pool/detach", "pool/membershipstatus", "terminate", "detach", "membershipstatus",
}

// checkArrival fails if a reader finds a checked action, or a path outside of the pool.
func checkArrival(t rapid.TB, base, method, target, arrived string) {
	t.Helper()
	_, uri, _ := strings.Cut(arrived, " ")
	path, _, _ := strings.Cut(uri, "?")
	for reader, read := range pathReaders {
		below, inside := pathBelowPool(base, read(path))
		switch {
		case !inside:
			t.Errorf("%s %s in front of %s: was forwarded as %s, which %s reads as /%s, outside of the pool", method, target, base, arrived, reader, below)
		case !isReadOnly(method) && slices.Contains(checkedPaths, strings.ToLower(below)):
			t.Errorf("%s %s in front of %s: was forwarded as %s, which %s reads as %q", method, target, base, arrived, reader, below)
		}
	}
}

// basePaths are the base paths of a pool's server.
var basePaths = []string{"", "/cloudpools/workers", "/a/b"}

// evasivePaths are paths that try to reach an action and bypass the checks.
var evasivePaths = []string{
	"/pool/size;%2F..%2F..%2Fx", "/pool/size;%5C..%5C..%5Cx", "/pool/size;/%2e%2e/%2e%2e/x", "/pool/size/a%2F..%2F..%2Fb/..",
	"/../workers/pool/size", "/%2e%2e/other/terminate", "/../workers", "/../other", "/..%2fother%2fpool%2fsize", "/pool/size%3Fx", "/pool/size%23x",
	"/pool/size%253Fx", "/pool/size%00", "/x/..;/pool/size", "/x/%2e%2e;a/pool/size", "/pool/x/..%20/size", "/..%20/size", "/pool/%C5%BFize", "/pool/siz%C3%A9/..",
	"/pool/size;%2F..%2F..%2Fconfig", "/pool/terminate;%2F..%2F..%2Fstart", "/pool//x/../size", "/cloudpools/workers/../other/terminate",
	"/cloudpools/workers;/../other/pool/size", "/pool/size/%2e", "/pool/size%5C..%5Cx/y", "/a/pool/size%3B/../../..", "/pool%2fsize%2fx",
}

func TestEvasivePathIsChecked(t *testing.T) {
	for _, base := range basePaths {
		for _, path := range evasivePaths {
			for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodPut, http.MethodGet} {
				if _, arrived := sendThroughProxy(t, base, method, path); arrived != "" {
					checkArrival(t, base, method, path, arrived)
				}
			}
		}
	}
	code, arrived := sendThroughProxy(t, "/cloudpools/workers", http.MethodPost, "/pool/size;%2F..%2F..%2Fx")
	check.Not(t, code != http.StatusBadRequest || arrived != "", "%d, %q; want 400, and nothing forwarded", code, arrived)
}

func TestUnknownPathIsForwardedOnlyIfUnambiguous(t *testing.T) {
	for path, want := range map[string]string{
		"/other": "/base/other", "/other/": "/base/other/", "/a/b%20c?x=%2F": "/base/a/b%20c?x=%2F", "/a:b@c,d=e!$&'()*+": "/base/a:b@c,d=e!$&'()*+",
		"/cloudpools/workers/other": "/base/other", "/cloudpools/WORKERS/other": "/base/other", "/pool/size/x": "/base/pool/size/x",
	} {
		if code, arrived := sendThroughProxy(t, "/base", http.MethodPost, path); arrived != "POST "+want {
			t.Errorf("POST %s: %d, arrived as %q, want %s", path, code, arrived, want)
		}
	}
	for _, path := range []string{"/a%2Fb", "/a%5cb", "/a%2Eb", "/a%25b", "/a%3fb", "/a%23b", "/a%3bb", "/a;b", `/a\b`, "/a//b", "/a/./b", "/a/../b", "/a/%0a", "/%C3%A9"} {
		if code, arrived := sendThroughProxy(t, "/base", http.MethodPost, path); code != http.StatusBadRequest || arrived != "" {
			t.Errorf("POST %s: %d, arrived as %q; want 400", path, code, arrived)
		}
	}
	for path, want := range map[string]string{"/a%2Fb;c//d": "/base/a%2Fb;c//d", "/a/./b": "/base/a/./b", "/cloudpools/workers/a%2Fb": "/base/a%2Fb"} {
		if _, arrived := sendThroughProxy(t, "/base", http.MethodGet, path); arrived != "GET "+want {
			t.Errorf("GET %s: arrived as %q, want %s", path, arrived, want)
		}
	}
}

// TestActionArrivesAtServerPath uses both forms of paths in front of both kinds of servers.
func TestActionArrivesAtServerPath(t *testing.T) {
	for _, tt := range []struct{ method, path, single, several string }{
		{http.MethodPost, "/pool/attach", "/pool/attach", "/attach"},
		{http.MethodPost, "/attach", "/pool/attach", "/attach"},
		{http.MethodPost, "/cloudpools/workers/attach", "/pool/attach", "/attach"},
		{http.MethodPost, "/cloudpools/workers/pool/attach", "/pool/attach", "/attach"},
		{http.MethodPost, "/cloudpools/workers/servicestate", "/pool/serviceState", "/serviceState"},
		{http.MethodPost, "/pool/serviceState?a=b", "/pool/serviceState?a=b", "/serviceState?a=b"},
		{http.MethodPost, "/cloudpools/Workers/config/", "/config", "/config"},
		{http.MethodPost, "/start;x", "/start", "/start"},
		{http.MethodPost, "/pool/size;%2F..%2F..%2Fconfig", "/config", "/config"},
		{http.MethodGet, "/cloudpools/workers/pool/size", "/pool/size", "/pool/size"},
		{http.MethodGet, "/x/../pool", "/pool", "/pool"},
		{http.MethodGet, "/cloudpools/workers", "/", ""},
	} {
		for base, want := range map[string]string{"": tt.single, "/cloudpools/workers": "/cloudpools/workers" + tt.several} {
			if code, arrived := sendThroughProxy(t, base, tt.method, tt.path); arrived != tt.method+" "+want {
				t.Errorf("%s %s in front of %q: %d, arrived as %q, want %s", tt.method, tt.path, base, code, arrived, want)
			}
		}
	}
}

// pathPieces are the pieces of random evasive paths.
var pathPieces = []string{
	"/", "/", "/", "%2f", "%2F", `\`, "%5c", "%255C", ".", "..", "/../", "%2e", "%252e", ";", "%3b", ";x=", "?", "%3f", "#", "%23", "%00", "%20", " ", "%",
	"%zz", "%25", "pool", "size", "SIZE", "%73ize", "terminate", "detach", "membershipStatus", "attach", "config", "start", "cloudpools", "workers",
	"other", "a", "b", "x", "ſize", "%C5%BFize",
}

// TestRandomPathIsChecked checks that no reader finds a checked action, or another pool, in a forwarded request.
func TestRandomPathIsChecked(t *testing.T) {
	path := rapid.Custom(func(t *rapid.T) string {
		return "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(pathPieces), 1, 12).Draw(t, "pieces"), "")
	})
	rapid.Check(t, func(r *rapid.T) {
		base := rapid.SampledFrom(basePaths).Draw(r, "base")
		method := rapid.SampledFrom([]string{http.MethodPost, http.MethodDelete, http.MethodGet}).Draw(r, "method")
		target := path.Draw(r, "path")
		if _, arrived := sendThroughProxy(r, base, method, target); arrived != "" {
			checkArrival(r, base, method, target, arrived)
		}
	})
}

func FuzzEvasivePathIsChecked(f *testing.F) {
	for _, path := range append([]string{"/..#0"}, evasivePaths...) {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		for _, base := range basePaths {
			for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodGet} {
				if _, arrived := sendThroughProxy(t, base, method, path); arrived != "" {
					checkArrival(t, base, method, path, arrived)
				}
			}
		}
	})
}

// startOrigin starts a backend server and a proxy in front of it.
func startOrigin(t *testing.T, path string, h http.HandlerFunc) (front *httptest.Server, f *ServedPool) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	u := must.Get(url.Parse(server.URL + path))(t)
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
		must.NoError(t, err)
		for name, value := range map[string]string{
			"X-Custom": "kept", "Connection": "X-Secret-Hop", "X-Secret-Hop": "dropped", "X-Forwarded-For": "203.0.113.7",
			"Authorization": "Bearer of the client's", "X-HTTP-Method-Override": "POST", "Accept-Encoding": "br",
		} {
			r.Header.Set(name, value)
		}
		response, err := http.DefaultClient.Do(r)
		must.NoError(t, err)
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
	check.Is(t, "2001:db8::1", <-seen)
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
	must.NoError(t, err)
	response, err := http.DefaultClient.Do(r)
	must.NoError(t, err)
	line, err := bufio.NewReader(response.Body).ReadString('\n')
	check.Not(t, err != nil || line != "first\n", "%q, %v", line, err)
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
		must.NoError(t, err)
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
		must.NoError(t, err)
		r.Header.Set("Connection", "Upgrade, HTTP2-Settings")
		r.Header.Set("Upgrade", "h2c")
		r.Header.Set("Http2-Settings", "AAMAAABkAAQAAP__")
		response, err := http.DefaultClient.Do(r)
		must.NoError(t, err)
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
	must.NoError(t, err)
	response, err := http.DefaultClient.Do(r)
	must.NoError(t, err)
	_ = response.Body.Close()
	check.Is(t, http.StatusRequestEntityTooLarge, response.StatusCode)
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
		check.Not(t, w.Code != code, "POST %s: %d %s, want %d", path, w.Code, w.Body, code)
	}
	// With the last three a server of several pools would delete or create this pool.
	for _, request := range []string{
		"PUT /pool/size", "DELETE /pool/size", "TRACE /pool/size", "PURGE /pool/size", "DELETE /cloudpools/workers", "DELETE /", "POST /cloudpools/workers/",
	} {
		method, path, _ := strings.Cut(request, " ")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		check.Is(t, http.StatusMethodNotAllowed, w.Code, request)
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
		check.Is(t, want, parsePath(path), path)
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

// instantTransport answers at once, so that only the proxy's own time is measured.
type instantTransport struct{ body string }

func (a instantTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(a.body)),
		Body: io.NopCloser(strings.NewReader(a.body)),
	}, nil
}

// BenchmarkForwardRead measures the proxy's overhead of a read: check, forward, and copy the answer, for a size and for a
// pool of 1,000 machines.
func BenchmarkForwardRead(b *testing.B) {
	for _, length := range []int{120, 400_000} {
		b.Run(fmt.Sprint(length, " bytes"), func(b *testing.B) {
			f := &ServedPool{Name: "workers", URL: &url.URL{Scheme: "http", Host: "cloudpool", Path: "/"}, Transport: instantTransport{strings.Repeat("x", length)}}
			s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler)}, f)
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				w.Body = nil
				s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/pool/size", nil))
				if w.Code != http.StatusOK {
					b.Fatal(w.Code)
				}
			}
		})
	}
}
