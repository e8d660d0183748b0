package observe

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestOnlyLoopbackAndTokenBearersArePrivate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	must.NoError(t, os.WriteFile(file, []byte("s3cret\n"), 0o600))
	for _, c := range []struct {
		name, remote, header, value, file string
		want                              bool
	}{
		{"from here", "127.0.0.1:5", "", "", "", true},
		{"from here, IPv6", "[::1]:5", "", "", "", true},
		{"from elsewhere", "10.1.2.3:5", "", "", file, false},
		{"from elsewhere with the token", "10.1.2.3:5", "Authorization", "Bearer s3cret", file, true},
		{"with another token", "10.1.2.3:5", "Authorization", "Bearer s3cre", file, false},
		{"with another scheme", "10.1.2.3:5", "Authorization", "Basic s3cret", file, false},
		{"with an empty token and no file", "10.1.2.3:5", "Authorization", "Bearer ", "", false},
		{"through a proxy on this machine", "127.0.0.1:5", "X-Forwarded-For", "10.1.2.3", file, false},
		{"from nowhere", "", "", "", file, false},
	} {
		private, err := NewLoopbackOrTokenCheck(c.file)
		must.NoError(t, err)
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.RemoteAddr = c.remote
		if c.header != "" {
			r.Header.Set(c.header, c.value)
		}
		if err := private(r); (err == nil) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestI10TokenFileMustHoldAToken(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	must.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	for _, file := range []string{empty, empty + "-missing"} {
		if _, err := NewLoopbackOrTokenCheck(file); err == nil {
			t.Errorf("%s was taken", file)
		}
	}
}

func TestRoutesComeFirstAndProfilesNeedAccess(t *testing.T) {
	private, err := NewLoopbackOrTokenCheck("")
	must.NoError(t, err)
	h := newHandler(ServerOptions{Pprof: true, Private: private, Routes: map[string]http.Handler{
		"/healthz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("LIVE")) }),
	}})
	for _, c := range []struct {
		remote, path string
		want         int
	}{
		{"10.0.0.1:1", "/healthz", 200},
		{"10.0.0.1:1", "/debug/pprof/", 403},
		{"10.0.0.1:1", "/debug/pprof/cmdline", 403},
		{"127.0.0.1:1", "/debug/pprof/cmdline", 200},
		{"10.0.0.1:1", "/debug/other", 404},
	} {
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		r.RemoteAddr = c.remote
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		if answer.Code != c.want || c.path == "/healthz" && answer.Body.String() != "LIVE" {
			t.Errorf("%s from %s: %d %s, want %d", c.path, c.remote, answer.Code, answer.Body, c.want)
		}
	}
}

func TestProfilesAreForTheLoopbackInterfaceByDefault(t *testing.T) {
	h := newHandler(ServerOptions{Pprof: true, Metrics: NewRegistry()})
	for _, c := range []struct {
		remote, path string
		want         int
	}{
		{"10.0.0.1:1", "/metrics", 200},
		{"10.0.0.1:1", "/debug/pprof/", 403},
		{"10.0.0.1:1", "/debug/pprof/heap", 403},
		{"10.0.0.1:1", "/debug/pprof/cmdline", 403},
		{"127.0.0.1:1", "/debug/pprof/cmdline", 200},
		{"[::1]:1", "/debug/pprof/", 200},
	} {
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		r.RemoteAddr = c.remote
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		if answer.Code != c.want {
			t.Errorf("%s from %s: %d %s, want %d", c.path, c.remote, answer.Code, answer.Body, c.want)
		}
	}
}
