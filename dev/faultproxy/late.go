package faultproxy

import (
	"bytes"
	"maps"
	"net/http"
	"sync"
	"time"
)

// maxRemembered is the maximum size of a remembered response in bytes. Longer responses are not remembered.
const maxRemembered = 1 << 20

// memory holds the last response to each GET of one server.
type memory struct {
	mu   sync.Mutex
	last map[string]remembered // by request URI and Accept header
}

type remembered struct {
	at     time.Time
	header http.Header
	body   []byte
}

func newMemory() *memory { return &memory{last: map[string]remembered{}} }

// key identifies a GET. Another encoding is another response.
func (*memory) key(r *http.Request) string { return r.URL.RequestURI() + " " + r.Header.Get("Accept") }

// serve returns a remembered response, and reports false if there is none or it is older than within.
func (m *memory) serve(w http.ResponseWriter, r *http.Request, within time.Duration) bool {
	if r.Method != http.MethodGet {
		return false
	}
	m.mu.Lock()
	old, ok := m.last[m.key(r)]
	m.mu.Unlock()
	if !ok || time.Since(old.at) > within {
		return false
	}
	maps.Copy(w.Header(), old.header)
	_, _ = w.Write(old.body)
	return true
}

// remembering forwards requests, and remembers complete responses to GETs.
func (m *memory) remembering(forward http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || isWatch(r) {
			forward.ServeHTTP(w, r)
			return
		}
		at := time.Now() // the response may be as old as this
		listening := &listener{ResponseWriter: w, status: http.StatusOK}
		forward.ServeHTTP(listening, r) // it panics if the response is incomplete
		if listening.status != http.StatusOK || listening.body.Len() > maxRemembered {
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.last[m.key(r)] = remembered{at, w.Header().Clone(), listening.body.Bytes()}
	})
}

type listener struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// Unwrap gives http.ResponseController access to Flush.
func (l *listener) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func (l *listener) WriteHeader(status int) {
	l.status = status
	l.ResponseWriter.WriteHeader(status)
}

func (l *listener) Write(b []byte) (int, error) {
	if l.body.Len() <= maxRemembered {
		l.body.Write(b)
	}
	return l.ResponseWriter.Write(b)
}

// lagging delivers writes after a delay, in order.
type lagging struct {
	lag  time.Duration
	done <-chan struct{} // closed when the client has disconnected
	late chan lateBytes
	over sync.WaitGroup

	mu sync.Mutex // guards to
	to http.ResponseWriter
}

type lateBytes struct {
	due time.Time
	b   []byte
}

// maxLate is the maximum number of delayed writes. More writes block.
const maxLate = 1024

func newLagging(to http.ResponseWriter, r *http.Request, lag time.Duration) *lagging {
	l := &lagging{lag: lag, done: r.Context().Done(), late: make(chan lateBytes, maxLate), to: to}
	l.over.Go(l.deliver)
	return l
}

func (l *lagging) deliver() {
	for next := range l.late {
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
func (l *lagging) close() {
	close(l.late)
	l.over.Wait()
}

func (l *lagging) Header() http.Header { return l.to.Header() }

func (l *lagging) WriteHeader(status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to.WriteHeader(status)
}

// Flush sends the header before the first event.
func (l *lagging) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = http.NewResponseController(l.to).Flush()
}

func (l *lagging) Write(b []byte) (int, error) {
	l.late <- lateBytes{time.Now().Add(l.lag), bytes.Clone(b)}
	return len(b), nil
}
