package faultproxy

import (
	"bytes"
	"maps"
	"net/http"
	"sync"
	"time"
)

// maxCachedSize is the maximum size of a remembered response in bytes. Longer responses are not remembered.
const maxCachedSize = 1 << 20

// responseCache holds the last response to each GET of one server.
type responseCache struct {
	mu        sync.Mutex
	responses map[string]cachedResponse // by request URI and Accept header
}

type cachedResponse struct {
	at     time.Time
	header http.Header
	body   []byte
}

func newResponseCache() *responseCache { return &responseCache{responses: map[string]cachedResponse{}} }

// cacheKey identifies a GET. Another encoding is another response.
func (*responseCache) cacheKey(r *http.Request) string {
	return r.URL.RequestURI() + " " + r.Header.Get("Accept")
}

// serveCached returns a remembered response, and reports false if there is none or it is older than within.
func (m *responseCache) serveCached(w http.ResponseWriter, r *http.Request, within time.Duration) (served bool) {
	if r.Method != http.MethodGet {
		return false
	}
	m.mu.Lock()
	old, ok := m.responses[m.cacheKey(r)]
	m.mu.Unlock()
	if !ok || time.Since(old.at) > within {
		return false
	}
	maps.Copy(w.Header(), old.header)
	_, _ = w.Write(old.body)
	return true
}

// cacheResponses forwards requests, and remembers complete responses to GETs.
func (m *responseCache) cacheResponses(forward http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || isWatch(r) {
			forward.ServeHTTP(w, r)
			return
		}
		at := time.Now() // the response may be as old as this
		listening := &recordingWriter{ResponseWriter: w, status: http.StatusOK}
		forward.ServeHTTP(listening, r) // it panics if the response is incomplete
		if listening.status != http.StatusOK || listening.body.Len() > maxCachedSize {
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.responses[m.cacheKey(r)] = cachedResponse{at, w.Header().Clone(), listening.body.Bytes()}
	})
}

type recordingWriter struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// Unwrap gives http.ResponseController access to Flush.
func (l *recordingWriter) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func (l *recordingWriter) WriteHeader(status int) {
	l.status = status
	l.ResponseWriter.WriteHeader(status)
}

func (l *recordingWriter) Write(b []byte) (int, error) {
	if l.body.Len() <= maxCachedSize {
		l.body.Write(b)
	}
	return l.ResponseWriter.Write(b)
}

// delayedWriter delivers writes after a delay, in order.
type delayedWriter struct {
	lag        time.Duration
	done       <-chan struct{} // closed when the client has disconnected
	pending    chan delayedBytes
	delivering sync.WaitGroup

	mu sync.Mutex // guards to
	to http.ResponseWriter
}

type delayedBytes struct {
	due time.Time
	b   []byte
}

// maxPendingWrites is the maximum number of delayed writes. More writes block.
const maxPendingWrites = 1024

func newDelayedWriter(to http.ResponseWriter, r *http.Request, lag time.Duration) *delayedWriter {
	l := &delayedWriter{lag: lag, done: r.Context().Done(), pending: make(chan delayedBytes, maxPendingWrites), to: to}
	l.delivering.Go(l.writeWhenDue)
	return l
}

func (l *delayedWriter) writeWhenDue() {
	for next := range l.pending {
		select {
		case <-time.After(time.Until(next.due)):
		case <-l.done:
			continue
		}
		l.mu.Lock()
		_, _ = l.to.Write(next.b)
		_ = http.NewResponseController(l.to).Flush()
		l.mu.Unlock()
	}
}

// close delivers the delayed writes.
func (l *delayedWriter) close() {
	close(l.pending)
	l.delivering.Wait()
}

func (l *delayedWriter) Header() http.Header { return l.to.Header() }

func (l *delayedWriter) WriteHeader(status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to.WriteHeader(status)
}

// Flush sends the header before the first event.
func (l *delayedWriter) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = http.NewResponseController(l.to).Flush()
}

func (l *delayedWriter) Write(b []byte) (int, error) {
	l.pending <- delayedBytes{time.Now().Add(l.lag), bytes.Clone(b)}
	return len(b), nil
}
