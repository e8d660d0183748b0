package httpserver

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
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
	if code != http.StatusBadRequest || arrived != "" {
		t.Errorf("%d, %q; want 400, and nothing forwarded", code, arrived)
	}
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
