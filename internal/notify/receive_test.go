package notify

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// received is a request that a receiver got.
type received struct {
	method, path, body string
	header             http.Header
}

// inbox is a receiver that stores its requests.
type inbox struct {
	*httptest.Server

	mu  sync.Mutex
	got []received
	// answer, if set, answers the n-th request, counted from 0.
	answer func(n int, w http.ResponseWriter, r *http.Request)
}

func (b *inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	n := len(b.got)
	b.got = append(b.got, received{r.Method, r.URL.RequestURI(), string(body), r.Header})
	b.mu.Unlock()
	if b.answer != nil {
		b.answer(n, w, r)
	}
}

func (b *inbox) all() []received {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]received(nil), b.got...)
}

func newInbox(t testing.TB, answer func(n int, w http.ResponseWriter, r *http.Request)) *inbox {
	t.Helper()
	b := &inbox{answer: answer}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

// webhook returns a receiver with a short template.
func webhook(url string) Receiver {
	return Receiver{Name: "hook", Webhook: &Webhook{URL: url, Body: Body{Template: "{{ .Moment }} {{ .NodeName }}"}}}
}

// logged is a logger and its output.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// newNotifier returns a Notifier for valid receivers.
func newNotifier(t testing.TB, o Options, receivers ...Receiver) *Notifier {
	t.Helper()
	n, err := NewNotifier(receivers, o)
	must.NoError(t, err)
	return n
}

// sendOnce sends a sample without retries.
func sendOnce(t testing.TB, r Receiver) error {
	t.Helper()
	none := 0
	if r.Webhook != nil {
		r.Webhook.Retries = &none
	} else {
		r.Telegram.Retries = &none
	}
	return newNotifier(t, Options{UserAgent: "slipway/test"}, r).SendToAllNow(t.Context(), NewSampleMessage(Detected, time.Now()))
}

// writeTempFile writes a temporary file.
func writeTempFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
