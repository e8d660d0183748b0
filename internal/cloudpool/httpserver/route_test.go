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

// sent is a pool's server that answers everything, and notes what it is asked.
type sent struct{ uris []string }

// RoundTrip implements http.RoundTripper.
func (s *sent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.uris = append(s.uris, r.Method+" "+r.URL.RequestURI())
	return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// passes sends a request to a pool's front, and gives what reached the pool's server: method and path, or nothing.
func passes(t rapid.TB, base, method, target string) (code int, arrived string) {
	t.Helper()
	u, err := url.Parse("http://backend" + base)
	if err != nil {
		t.Fatal(err)
	}
	requested, err := url.ParseRequestURI(target)
	if err != nil {
		return 0, ""
	}
	backend := &sent{}
	s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler)}, &Front{Name: "workers", URL: u, Transport: backend})
	// A body that none of the actions takes that are more than to pass on: they answer before they ask anybody.
	r := httptest.NewRequest(method, "/", strings.NewReader("{}"))
	r.URL = requested
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if len(backend.uris) == 0 {
		return w.Code, ""
	}
	return w.Code, backend.uris[0]
}

// readers are those who may look for an action in what arrives, each by the segments that it sees.
var readers = map[string]func(escaped string) []string{
	"RFC 3986": func(escaped string) []string {
		var decoded []string
		for s := range strings.SplitSeq(strings.ReplaceAll(strings.ReplaceAll(escaped, "%2e", "."), "%2E", "."), "/") {
			decoded = resolve(decoded, s)
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
			segments = resolve(segments, s)
		}
		return segments
	},
	"whoever decodes first": func(escaped string) []string {
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
			segments = resolve(segments, strings.TrimSpace(s))
		}
		return segments
	},
}

// resolve adds a segment to those before it.
func resolve(segments []string, s string) []string {
	switch s {
	case "", ".":
		return segments
	case "..":
		return segments[:max(0, len(segments)-1)]
	}
	return append(segments, s)
}

// taken is what a reader takes a path for: something below the pool's own path, or, with false, something elsewhere.
func taken(base string, segments []string) (below string, inside bool) {
	own := strings.FieldsFunc(base, func(r rune) bool { return r == '/' })
	if len(segments) < len(own) || !slices.Equal(segments[:len(own)], own) {
		return strings.Join(segments, "/"), false
	}
	return strings.Join(segments[len(own):], "/"), true
}

// looked are the paths of what is looked at before it is carried out, and of the pool itself.
var looked = []string{
	"", "pool/size", "pool/terminate", "pool/detach", "pool/membershipstatus", "terminate", "detach", "membershipstatus",
}

// checkArrival reports what a reader would take for an action, or for another pool's.
func checkArrival(t rapid.TB, base, method, target, arrived string) {
	t.Helper()
	_, uri, _ := strings.Cut(arrived, " ")
	path, _, _ := strings.Cut(uri, "?")
	for who, read := range readers {
		below, inside := taken(base, read(path))
		switch {
		case !inside:
			t.Errorf("%s %s in front of %s: was passed on as %s, which for %s is /%s, outside of the pool", method, target, base, arrived, who, below)
		case !reads(method) && slices.Contains(looked, strings.ToLower(below)):
			t.Errorf("%s %s in front of %s: was passed on as %s, which for %s is %q", method, target, base, arrived, who, below)
		}
	}
}

// bases are where a pool's server may be.
var bases = []string{"", "/cloudpools/workers", "/a/b"}

// roundAbout are paths by which somebody might reach an action past all checks.
var roundAbout = []string{
	"/pool/size;%2F..%2F..%2Fx", "/pool/size;%5C..%5C..%5Cx", "/pool/size;/%2e%2e/%2e%2e/x", "/pool/size/a%2F..%2F..%2Fb/..",
	"/../workers/pool/size", "/%2e%2e/other/terminate", "/../workers", "/../other", "/..%2fother%2fpool%2fsize", "/pool/size%3Fx", "/pool/size%23x",
	"/pool/size%253Fx", "/pool/size%00", "/x/..;/pool/size", "/x/%2e%2e;a/pool/size", "/pool/x/..%20/size", "/..%20/size", "/pool/%C5%BFize", "/pool/siz%C3%A9/..",
	"/pool/size;%2F..%2F..%2Fconfig", "/pool/terminate;%2F..%2F..%2Fstart", "/pool//x/../size", "/cloudpools/workers/../other/terminate",
	"/cloudpools/workers;/../other/pool/size", "/pool/size/%2e", "/pool/size%5C..%5Cx/y", "/a/pool/size%3B/../../..", "/pool%2fsize%2fx",
}

func TestNoPathLeadsPastTheChecks(t *testing.T) {
	for _, base := range bases {
		for _, path := range roundAbout {
			for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodPut, http.MethodGet} {
				if _, arrived := passes(t, base, method, path); arrived != "" {
					checkArrival(t, base, method, path, arrived)
				}
			}
		}
	}
	code, arrived := passes(t, "/cloudpools/workers", http.MethodPost, "/pool/size;%2F..%2F..%2Fx")
	if code != http.StatusBadRequest || arrived != "" {
		t.Errorf("%d, %q; want 400, and nothing passed on", code, arrived)
	}
}

func TestWhatIsNoActionPassesByAPathThatAllReadAlike(t *testing.T) {
	for path, want := range map[string]string{
		"/other": "/base/other", "/other/": "/base/other/", "/a/b%20c?x=%2F": "/base/a/b%20c?x=%2F", "/a:b@c,d=e!$&'()*+": "/base/a:b@c,d=e!$&'()*+",
		"/cloudpools/workers/other": "/base/other", "/cloudpools/WORKERS/other": "/base/other", "/pool/size/x": "/base/pool/size/x",
	} {
		if code, arrived := passes(t, "/base", http.MethodPost, path); arrived != "POST "+want {
			t.Errorf("POST %s: %d, arrived as %q, want %s", path, code, arrived, want)
		}
	}
	for _, path := range []string{"/a%2Fb", "/a%5cb", "/a%2Eb", "/a%25b", "/a%3fb", "/a%23b", "/a%3bb", "/a;b", `/a\b`, "/a//b", "/a/./b", "/a/../b", "/a/%0a", "/%C3%A9"} {
		if code, arrived := passes(t, "/base", http.MethodPost, path); code != http.StatusBadRequest || arrived != "" {
			t.Errorf("POST %s: %d, arrived as %q; want 400", path, code, arrived)
		}
	}
	for path, want := range map[string]string{"/a%2Fb;c//d": "/base/a%2Fb;c//d", "/a/./b": "/base/a/./b", "/cloudpools/workers/a%2Fb": "/base/a%2Fb"} {
		if _, arrived := passes(t, "/base", http.MethodGet, path); arrived != "GET "+want {
			t.Errorf("GET %s: arrived as %q, want %s", path, arrived, want)
		}
	}
}

// TestAnActionArrivesAtThePathThatItsServerHas has clients use either form of the paths in front of either kind of server.
func TestAnActionArrivesAtThePathThatItsServerHas(t *testing.T) {
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
			if code, arrived := passes(t, base, tt.method, tt.path); arrived != tt.method+" "+want {
				t.Errorf("%s %s in front of %q: %d, arrived as %q, want %s", tt.method, tt.path, base, code, arrived, want)
			}
		}
	}
}

// pieces are what paths are made of that try to lead past the checks.
var pieces = []string{
	"/", "/", "/", "%2f", "%2F", `\`, "%5c", "%255C", ".", "..", "/../", "%2e", "%252e", ";", "%3b", ";x=", "?", "%3f", "#", "%23", "%00", "%20", " ", "%",
	"%zz", "%25", "pool", "size", "SIZE", "%73ize", "terminate", "detach", "membershipStatus", "attach", "config", "start", "cloudpools", "workers",
	"other", "a", "b", "x", "ſize", "%C5%BFize",
}

// TestNoPathOfManyLeadsPastTheChecks holds for every request that passes: nobody takes it for an action that is looked at
// first, nor for one of another pool's.
func TestNoPathOfManyLeadsPastTheChecks(t *testing.T) {
	path := rapid.Custom(func(t *rapid.T) string {
		return "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 12).Draw(t, "pieces"), "")
	})
	rapid.Check(t, func(r *rapid.T) {
		base := rapid.SampledFrom(bases).Draw(r, "base")
		method := rapid.SampledFrom([]string{http.MethodPost, http.MethodDelete, http.MethodGet}).Draw(r, "method")
		target := path.Draw(r, "path")
		if _, arrived := passes(r, base, method, target); arrived != "" {
			checkArrival(r, base, method, target, arrived)
		}
	})
}

func FuzzNoPathLeadsPastTheChecks(f *testing.F) {
	for _, path := range append([]string{"/..#0"}, roundAbout...) {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		for _, base := range bases {
			for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodGet} {
				if _, arrived := passes(t, base, method, path); arrived != "" {
					checkArrival(t, base, method, path, arrived)
				}
			}
		}
	})
}
