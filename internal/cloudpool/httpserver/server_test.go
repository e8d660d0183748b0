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

func TestPoolsAreListedHoweverManyThereAre(t *testing.T) {
	for want, fronts := range map[string][]*Front{
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
			t.Errorf("POST: %d, want 405: pools are made elsewhere", w.Code)
		}
	}
}

// TestAPageOfAnotherSiteChangesNoPool has what browsers send for pages of a stranger's, and what other clients send.
func TestAPageOfAnotherSiteChangesNoPool(t *testing.T) {
	type header = map[string]string
	for name, tt := range map[string]struct {
		method, host string
		header       header
		local        bool
		code         int
	}{
		"a client that is no browser":                {"POST", "pool.example", nil, true, 200},
		"a page's simple request":                    {"POST", "127.0.0.1:8080", header{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, true, 403},
		"one of an older browser":                    {"POST", "127.0.0.1:8080", header{"Origin": "https://evil.example"}, true, 403},
		"of a page that may not say whose it is":     {"POST", "127.0.0.1:8080", header{"Origin": "null"}, true, 403},
		"of a neighbour's page, beyond this machine": {"PUT", "pool.example", header{"Sec-Fetch-Site": "same-site"}, false, 403},
		"a page's read, which it is not shown":       {"GET", "127.0.0.1:8080", header{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, true, 200},
		"a page of its own":                          {"POST", "127.0.0.1:8080", header{"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}, true, 200},
		"a page of its own, by another name":         {"POST", "localhost:8080", header{"Origin": "http://localhost:8080"}, true, 200},
		"and in IPv6":                                {"POST", "[::1]:8080", header{"Origin": "http://[::1]:8080"}, true, 200},
		"a name that was made to lead here":          {"POST", "evil.example:8080", header{"Origin": "http://evil.example:8080"}, true, 403},
		"a name that does, beyond this machine":      {"POST", "pool.example", header{"Origin": "http://pool.example"}, false, 200},
		"what a proxy on this machine has let pass":  {"POST", "pool.example", header{"Origin": "https://pool.example", "Sec-Fetch-Site": "same-origin"}, true, 200},
	} {
		asked := 0
		_, f := origin(t, "", func(http.ResponseWriter, *http.Request) { asked++ })
		s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler), Local: tt.local}, f)
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
