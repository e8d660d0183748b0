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
	// sentryQueueSize is the maximum number of waiting log lines. Further lines are dropped.
	sentryQueueSize = 64
	sentryTimeout   = 10 * time.Second
	// defaultSentryPause is the pause after a refusal without Retry-After.
	defaultSentryPause = time.Minute
	// sentryFlushTimeout limits the sending of waiting lines at the end of the process.
	sentryFlushTimeout = 2 * time.Second
)

// Sentry sends log lines of level warning and above to a Sentry server, one event per line, as the tool did. It sends
// envelopes over plain HTTP (https://develop.sentry.dev/sdk/data-model/envelopes/), so that Sentry's library is not
// linked. If the server is slow, unavailable or refuses an event, only these log lines are lost.
type Sentry struct {
	url, key     string
	node, client string
	release      string
	http         *http.Client
	queue        chan []byte
	done         chan struct{}
	stop         context.CancelFunc
	pending      sync.WaitGroup
	pausedUntil  atomic.Int64 // Unix nanoseconds
}

// parseSentryDSN parses a DSN: https://KEY@HOST/PATH/PROJECT. It returns the URL for envelopes and the key. An error
// does not quote the DSN, because the key is confidential.
func parseSentryDSN(dsn string) (envelopes, key string, err error) {
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

// NewSentry starts a Sentry for a DSN that Validate has accepted. version is the version of this program.
func NewSentry(dsn, node, version string) (*Sentry, error) {
	to, key, err := parseSentryDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("sentry.dsn: %w", err)
	}
	s := &Sentry{
		url: to, key: key, node: node, client: "slipway/" + version, release: version,
		http:  &http.Client{Timeout: sentryTimeout, CheckRedirect: refuseRedirect},
		queue: make(chan []byte, sentryQueueSize), done: make(chan struct{}),
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	go s.sendQueuedUntilDone(ctx)
	return s, nil
}

// refuseRedirect makes a client follow no redirect. net/http would send the key to another server.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close sends the queued events, for at most sentryFlushTimeout, and stops.
func (s *Sentry) Close() {
	sent := make(chan struct{})
	go func() {
		s.pending.Wait()
		close(sent)
	}()
	timer := time.NewTimer(sentryFlushTimeout)
	defer timer.Stop()
	select {
	case <-sent:
	case <-timer.C:
	}
	s.stop()
	<-s.done
}

func (s *Sentry) sendQueuedUntilDone(ctx context.Context) {
	defer close(s.done)
	for {
		select {
		case <-ctx.Done():
			return
		case envelope := <-s.queue:
			s.sendEnvelope(ctx, envelope)
			s.pending.Done()
		}
	}
}

// sendEnvelope sends one envelope. It does not log a failure, because it sends the log itself.
func (s *Sentry) sendEnvelope(ctx context.Context, envelope []byte) {
	if time.Now().UnixNano() < s.pausedUntil.Load() {
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
		pause := defaultSentryPause
		if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds >= 0 {
			pause = min(time.Duration(min(seconds, 3600))*time.Second, time.Hour)
		}
		s.pausedUntil.Store(time.Now().Add(pause).UnixNano())
	}
}

// WrapHandler returns a log handler that passes all lines to next. It also sends lines of level warning and above to
// Sentry. If s is nil, it returns next.
func (s *Sentry) WrapHandler(next slog.Handler) slog.Handler {
	if s == nil {
		return next
	}
	return &sentryHandler{Handler: next, sentry: s}
}

type sentryHandler struct {
	slog.Handler

	sentry *Sentry
	attrs  []slog.Attr
	group  string
}

// Handle implements slog.Handler.
func (h *sentryHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		h.sentry.queueRecord(r, h.collectAttrs(r))
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

func (h *sentryHandler) collectAttrs(r slog.Record) map[string]string {
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

// queueRecord queues a log line as a Sentry event. It drops the line if the queue is full.
func (s *Sentry) queueRecord(r slog.Record, extra map[string]string) {
	level := "warning"
	if r.Level >= slog.LevelError {
		level = "error"
	}
	s.queueEvent(level, r.Time, r.Message, extra)
}

// SendFailure sends the error that ends the process, as the tool did after a failed start. It does nothing if err or s
// is nil.
func (s *Sentry) SendFailure(err error) {
	if s != nil && err != nil {
		s.queueEvent("fatal", time.Now(), err.Error(), nil)
	}
}

// SendStartFailure sends the error of invalid options to Sentry, if the options contain a DSN.
func SendStartFailure(o *Options, err error, version string) {
	if o == nil || o.SentryDSN == "" {
		return
	}
	if s, dsnErr := NewSentry(o.SentryDSN, o.Node, version); dsnErr == nil {
		s.SendFailure(err)
		s.Close()
	}
}

// queueEvent queues an event, or drops it if the queue is full.
func (s *Sentry) queueEvent(level string, at time.Time, message string, extra map[string]string) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
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
