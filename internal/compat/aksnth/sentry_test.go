package aksnth

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// sentryServer records the requests and answers with a status.
type sentryServer struct {
	*httptest.Server

	mu       sync.Mutex
	status   int
	requests []*http.Request
	bodies   []string
}

func newSentryServer(t *testing.T, status int) *sentryServer {
	s := &sentryServer{status: status}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests, s.bodies = append(s.requests, r), append(s.bodies, string(body))
		w.WriteHeader(s.status)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *sentryServer) dsn() string {
	return strings.Replace(s.URL, "http://", "http://k3y@", 1) + "/sub/42"
}

func TestWarningsAndErrorsReachSentryAndTheLog(t *testing.T) {
	server := newSentryServer(t, http.StatusOK)
	s, err := NewSentry(server.dsn(), "node-1", "v1")
	must.NoError(t, err)
	var written bytes.Buffer
	log := slog.New(s.WrapHandler(slog.NewJSONHandler(&written, nil))).With("node", "node-1")
	log.Info("nothing to see")
	log.Warn("drain is blocked", "blocked", 3)
	log.WithGroup("api").Error("will try again", "err", "503")
	s.Close()
	if n := strings.Count(written.String(), "\n"); n != 3 {
		t.Errorf("%d lines in the log, want all 3:\n%s", n, written.String())
	}
	if len(server.bodies) != 2 {
		t.Fatalf("%d envelopes, want one for the warning and one for the error: %q", len(server.bodies), server.bodies)
	}
	r := server.requests[0]
	if r.Method != http.MethodPost || r.URL.Path != "/sub/api/42/envelope/" ||
		r.Header.Get("Content-Type") != "application/x-sentry-envelope" ||
		!strings.Contains(r.Header.Get("X-Sentry-Auth"), "sentry_version=7") ||
		!strings.Contains(r.Header.Get("X-Sentry-Auth"), "sentry_key=k3y") {
		t.Errorf("%s %s %v", r.Method, r.URL.Path, r.Header)
	}
	for i, want := range []struct {
		level, message string
		extra          map[string]string
	}{
		{"warning", "drain is blocked", map[string]string{"node": "node-1", "blocked": "3"}},
		{"error", "will try again", map[string]string{"node": "node-1", "api.err": "503"}},
	} {
		lines := strings.Split(server.bodies[i], "\n")
		var head struct {
			EventID string `json:"event_id"`
		}
		var item struct {
			Type   string
			Length int
		}
		var event struct {
			EventID    string `json:"event_id"`
			Level      string
			ServerName string `json:"server_name"`
			Timestamp  time.Time
			Message    struct{ Formatted string }
			Extra      map[string]string
		}
		for j, into := range []any{&head, &item, &event} {
			if err := json.Unmarshal([]byte(lines[j]), into); err != nil {
				t.Fatalf("line %d of %q: %v", j, server.bodies[i], err)
			}
		}
		if len(head.EventID) != 32 || head.EventID != event.EventID || item.Type != "event" || item.Length != len(lines[2]) {
			t.Errorf("envelope %+v %+v", head, item)
		}
		if event.Level != want.level || event.Message.Formatted != want.message || event.ServerName != "node-1" || event.Timestamp.IsZero() {
			t.Errorf("event %+v, want %+v", event, want)
		}
		for key, value := range want.extra {
			if event.Extra[key] != value {
				t.Errorf("extra %v, want %s: %s", event.Extra, key, value)
			}
		}
	}
}

func TestRefusingSentryPausesSending(t *testing.T) {
	server := newSentryServer(t, http.StatusTooManyRequests)
	s, err := NewSentry(server.dsn(), "n", "v1")
	must.NoError(t, err)
	log := slog.New(s.WrapHandler(slog.DiscardHandler))
	for range 5 {
		log.Handler().(*sentryHandler).sentry.queueRecord(slog.NewRecord(time.Now(), slog.LevelWarn, "x", 0), nil)
	}
	s.Close()
	if len(server.bodies) != 1 {
		t.Errorf("%d envelopes, want one and then a pause", len(server.bodies))
	}
}

func TestSentryRedirectIsNotFollowed(t *testing.T) {
	other := newSentryServer(t, http.StatusOK)
	moved := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer moved.Close()
	s, err := NewSentry(strings.Replace(moved.URL, "http://", "http://k3y@", 1)+"/42", "node-1", "v1")
	must.NoError(t, err)
	slog.New(s.WrapHandler(slog.NewTextHandler(io.Discard, nil))).Warn("it warns")
	s.Close()
	if len(other.requests) != 0 {
		t.Errorf("another server got %q with the key %q", other.bodies, other.requests[0].Header.Get("X-Sentry-Auth"))
	}
}

func TestHangingSentryBlocksNothing(t *testing.T) {
	release := make(chan struct{})
	hole := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer hole.Close()
	defer close(release)
	s, err := NewSentry(strings.Replace(hole.URL, "http://", "http://k@", 1)+"/1", "n", "v1")
	must.NoError(t, err)
	var written bytes.Buffer
	log := slog.New(s.WrapHandler(slog.NewTextHandler(&written, nil)))
	const lines = 10 * sentryQueueSize
	for range lines { // more than the queue holds: further lines are dropped without waiting
		log.Warn("x")
	}
	check.Is(t, lines, strings.Count(written.String(), "\n"))
	s.Close()
}

func TestI10BadDSNIsRefusedWithoutQuotingIt(t *testing.T) {
	for _, bad := range []string{"https://s3cret", "s3cret@host/1", "https://s3cret@host/one", "https://s3cret@/1", "ftp://s3cret@h/1", "https://h/1", ":s3cret"} {
		_, _, err := parseSentryDSN(bad)
		if err == nil || !strings.Contains(err.Error(), "want https://KEY@HOST/PROJECT") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for dsn, want := range map[string]string{
		"https://k@o1.ingest.sentry.io/7":   "https://o1.ingest.sentry.io/api/7/envelope/",
		"https://k:old@sentry.test:9000/7/": "https://sentry.test:9000/api/7/envelope/",
		"http://k@sentry.test/a/b/7":        "http://sentry.test/a/b/api/7/envelope/",
	} {
		if got, key, err := parseSentryDSN(dsn); err != nil || got != want || key != "k" {
			t.Errorf("%s: %s, %s, %v", dsn, got, key, err)
		}
	}
}

func TestFailedStartGoesToSentryWithTheRelease(t *testing.T) {
	server := newSentryServer(t, http.StatusOK)
	o, err := ParseOptions([]string{"-sentry.dsn=" + server.dsn(), "-taint.effect=Never"}, newEnvironment(), io.Discard)
	if err == nil {
		t.Fatal("an invalid taint effect was accepted")
	}
	SendStartFailure(o, err, "v1.2.3")
	SendStartFailure(nil, err, "v1.2.3")
	if len(server.bodies) != 1 {
		t.Fatalf("%d envelopes, want 1", len(server.bodies))
	}
	var event struct {
		Level, Release string
		ServerName     string `json:"server_name"`
		Message        struct{ Formatted string }
	}
	must.NoError(t, json.Unmarshal([]byte(strings.Split(server.bodies[0], "\n")[2]), &event))
	if event.Level != "fatal" || event.Release != "v1.2.3" || event.ServerName != "n" || !strings.Contains(event.Message.Formatted, "-taint.effect") {
		t.Errorf("%+v", event)
	}
}
