package httpserver

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

func TestPoolsAreListed(t *testing.T) {
	for want, fronts := range map[string][]*ServedPool{
		"[\n  \"http://example.com/cloudpools/a\"\n]":                                         {{Name: "a"}},
		"[\n  \"http://example.com/cloudpools/a\",\n  \"http://example.com/cloudpools/b\"\n]": {{Name: "a"}, {Name: "b"}},
	} {
		s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler)}, fronts...)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/cloudpools", nil))
		if w.Code != http.StatusOK || w.Body.String() != want {
			t.Errorf("%d %s, want %s", w.Code, w.Body, want)
		}
		w = httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/cloudpools", strings.NewReader("{}")))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST: %d, want 405: pools cannot be created here", w.Code)
		}
	}
}

// TestCrossSiteRequestIsRefused sends requests as browsers do for pages of other sites, and as other clients do.
func TestCrossSiteRequestIsRefused(t *testing.T) {
	type header = map[string]string
	for name, tt := range map[string]struct {
		method, host string
		header       header
		local        bool
		code         int
	}{
		"not a browser":                  {"POST", "pool.example", nil, true, 200},
		"simple request of a page":       {"POST", "127.0.0.1:8080", header{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, true, 403},
		"older browser":                  {"POST", "127.0.0.1:8080", header{"Origin": "https://evil.example"}, true, 403},
		"opaque origin":                  {"POST", "127.0.0.1:8080", header{"Origin": "null"}, true, 403},
		"same site, beyond this machine": {"PUT", "pool.example", header{"Sec-Fetch-Site": "same-site"}, false, 403},
		"read of a page":                 {"GET", "127.0.0.1:8080", header{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, true, 200},
		"own page":                       {"POST", "127.0.0.1:8080", header{"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}, true, 200},
		"own page with another name":     {"POST", "localhost:8080", header{"Origin": "http://localhost:8080"}, true, 200},
		"own page over IPv6":             {"POST", "[::1]:8080", header{"Origin": "http://[::1]:8080"}, true, 200},
		"DNS rebinding":                  {"POST", "evil.example:8080", header{"Origin": "http://evil.example:8080"}, true, 403},
		"own name, beyond this machine":  {"POST", "pool.example", header{"Origin": "http://pool.example"}, false, 200},
		"own name behind a local proxy":  {"POST", "pool.example", header{"Origin": "https://pool.example", "Sec-Fetch-Site": "same-origin"}, true, 200},
	} {
		asked := 0
		_, f := startOrigin(t, "", func(http.ResponseWriter, *http.Request) { asked++ })
		s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler), LoopbackOnly: tt.local}, f)
		path := "/pool/attach"
		if tt.method == http.MethodPut {
			path = "/pool/other"
		}
		w, r := httptest.NewRecorder(), httptest.NewRequest(tt.method, path, strings.NewReader("{}"))
		r.Host = tt.host
		for k, v := range tt.header {
			r.Header.Set(k, v)
		}
		s.ServeHTTP(w, r)
		var said api.ErrorMessage
		if w.Code != tt.code || (asked > 0) != (tt.code == http.StatusOK) {
			t.Errorf("%s: %d %s, and the pool's server was asked %d times; want %d", name, w.Code, w.Body, asked, tt.code)
		} else if tt.code == http.StatusForbidden && (json.Unmarshal(w.Body.Bytes(), &said) != nil || said.Message == "" || said.Detail == "") {
			t.Errorf("%s: answered %s", name, w.Body)
		}
	}
}
