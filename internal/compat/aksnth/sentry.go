package aksnth

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// sentryQueue is how many log lines may wait to be sent; more are dropped.
	sentryQueue   = 64
	sentryTimeout = 10 * time.Second
	// sentryPause is how long nothing is sent after a refusal that names no time.
	sentryPause = time.Minute
	// sentryFlush is for how long the end of the process waits for what is still to be sent.
	sentryFlush = 2 * time.Second
)

// Sentry sends log lines from warning on to a Sentry server, as the tool did, one event each. It is an envelope sent over
// plain HTTP (https://develop.sentry.dev/sdk/data-model/envelopes/), so that nothing of Sentry's is linked. A server that
// is away, slow or refuses costs the lines that it would have had, and nothing else.
type Sentry struct {
	url, key     string
	node, client string
	release      string
	http         *http.Client
	queue        chan []byte
	done         chan struct{}
	stop         context.CancelFunc
	pending      sync.WaitGroup
	quietUntil   atomic.Int64 // Unix nanoseconds
}

// sentryURL takes a DSN apart: https://KEY@HOST/PATH/PROJECT. Errors do not quote it, since the key is half a secret.
func sentryURL(dsn string) (envelopes, key string, err error) {
	u, err := url.Parse(dsn)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" || u.User.Username() == "" {
		return "", "", errors.New("want https://KEY@HOST/PROJECT")
	}
	prefix, project := path.Split(strings.TrimSuffix(u.Path, "/"))
	if _, err := strconv.ParseUint(project, 10, 64); err != nil {
		return "", "", errors.New("want https://KEY@HOST/PROJECT, with a number for PROJECT")
	}
	to := url.URL{Scheme: u.Scheme, Host: u.Host, Path: path.Join("/", prefix, "api", project, "envelope") + "/"}
	return to.String(), u.User.Username(), nil
}

// NewSentry begins to send. The DSN is one that Validate has seen. Version is the program's.
func NewSentry(dsn, node, version string) (*Sentry, error) {
	to, key, err := sentryURL(dsn)
	if err != nil {
		return nil, fmt.Errorf("sentry.dsn: %w", err)
	}
	s := &Sentry{
		url: to, key: key, node: node, client: "slipway/" + version, release: version,
		http:  &http.Client{Timeout: sentryTimeout, CheckRedirect: refuseRedirect},
		queue: make(chan []byte, sentryQueue), done: make(chan struct{}),
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	go s.run(ctx)
	return s, nil
}

// refuseRedirect has a redirect count as a refusal: net/http would show the key to another server.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close waits a moment for what is still to be sent, and sends no more.
func (s *Sentry) Close() {
	sent := make(chan struct{})
	go func() {
		s.pending.Wait()
		close(sent)
	}()
	timer := time.NewTimer(sentryFlush)
	defer timer.Stop()
	select {
	case <-sent:
	case <-timer.C:
	}
	s.stop()
	<-s.done
}

func (s *Sentry) run(ctx context.Context) {
	defer close(s.done)
	for {
		select {
		case <-ctx.Done():
			return
		case envelope := <-s.queue:
			s.send(ctx, envelope)
			s.pending.Done()
		}
	}
}

// send sends one envelope. There is nobody to tell of a failure: the log is what could not be sent.
func (s *Sentry) send(ctx context.Context, envelope []byte) {
	if time.Now().UnixNano() < s.quietUntil.Load() {
		return
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(envelope))
	if err != nil {
		return
	}
	r.Header.Set("Content-Type", "application/x-sentry-envelope")
	r.Header.Set("User-Agent", s.client)
	r.Header.Set("X-Sentry-Auth", "Sentry sentry_version=7, sentry_client="+s.client+", sentry_key="+s.key)
	resp, err := s.http.Do(r)
	if err != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	_ = resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		pause := sentryPause
		if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds >= 0 {
			pause = min(time.Duration(min(seconds, 3600))*time.Second, time.Hour)
		}
		s.quietUntil.Store(time.Now().Add(pause).UnixNano())
	}
}

// Handler passes log lines on to next, and those from warning on to Sentry too. Without a Sentry it is next itself.
func (s *Sentry) Handler(next slog.Handler) slog.Handler {
	if s == nil {
		return next
	}
	return &sentryHandler{Handler: next, to: s}
}

type sentryHandler struct {
	slog.Handler

	to    *Sentry
	attrs []slog.Attr
	group string
}

// Handle implements slog.Handler.
func (h *sentryHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		h.to.take(r, h.extra(r))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *sentryHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.Handler = h.Handler.WithAttrs(attrs)
	c.attrs = append(c.attrs[:len(c.attrs):len(c.attrs)], attrs...)
	return &c
}

// WithGroup implements slog.Handler.
func (h *sentryHandler) WithGroup(name string) slog.Handler {
	c := *h
	c.Handler, c.group = h.Handler.WithGroup(name), h.group+name+"."
	return &c
}

func (h *sentryHandler) extra(r slog.Record) map[string]string {
	extra := map[string]string{}
	for _, a := range h.attrs {
		extra[a.Key] = a.Value.String()
	}
	r.Attrs(func(a slog.Attr) bool {
		extra[h.group+a.Key] = a.Value.String()
		return true
	})
	return extra
}

// take queues a log line as an event, or drops it.
func (s *Sentry) take(r slog.Record, extra map[string]string) {
	level := "warning"
	if r.Level >= slog.LevelError {
		level = "error"
	}
	s.queueUp(level, r.Time, r.Message, extra)
}

// Failed sends why the process ends, as the tool did of a start that failed. Without an error, or a Sentry, it does nothing.
func (s *Sentry) Failed(err error) {
	if s != nil && err != nil {
		s.queueUp("fatal", time.Now(), err.Error(), nil)
	}
}

// TellFailure sends why options were refused, where they say to which Sentry.
func TellFailure(o *Options, err error, version string) {
	if o == nil || o.SentryDSN == "" {
		return
	}
	if s, unreadable := NewSentry(o.SentryDSN, o.Node, version); unreadable == nil {
		s.Failed(err)
		s.Close()
	}
}

// queueUp queues an event, or drops it.
func (s *Sentry) queueUp(level string, at time.Time, message string, extra map[string]string) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it never fails
	event := map[string]any{
		"event_id": hex.EncodeToString(id), "timestamp": at.UTC().Format(time.RFC3339Nano), "platform": "go", "level": level,
		"logger": Tool, "server_name": s.node, "release": s.release, "message": map[string]string{"formatted": message},
	}
	if len(extra) > 0 {
		event["extra"] = maps.Clone(extra)
	}
	payload, err := json.Marshal(event)
	if err != nil {
		return
	}
	envelope := fmt.Appendf(nil, "{\"event_id\":%q}\n{\"type\":\"event\",\"length\":%d}\n%s\n", event["event_id"], len(payload), payload)
	s.pending.Add(1)
	select {
	case s.queue <- envelope:
	default:
		s.pending.Done()
	}
}
