package kubeapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// serve starts an API server over TLS and HTTP/2 on loopback, and returns a client that trusts it.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	base, err := url.Parse(s.URL)
	must.NoError(t, err)
	return NewClient(base, s.Client(), "slipway-test")
}

// pipeListener is a listener for pipes within the process. With it an HTTP server and a client can run in a bubble of
// testing/synctest, in virtual time.
type pipeListener struct {
	waiting chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{waiting: make(chan net.Conn), closed: make(chan struct{})}
}

func (p *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.waiting <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.waiting:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// serveInBubble starts an API server over HTTP/1.1 inside the bubble of t. The client has the settings of Config.
func serveInBubble(t *testing.T, h http.Handler) *Client {
	t.Helper()
	listener := newPipeListener()
	server := &http.Server{Handler: h}
	go func() { _ = server.Serve(listener) }()
	config := Config{Server: &url.URL{Scheme: "http", Host: "api.test"}}
	hc, err := config.NewHTTPClient()
	must.NoError(t, err)
	transport := hc.Transport.(*http.Transport)
	transport.Proxy, transport.DialContext = nil, listener.dial
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
	})
	return NewClient(config.Server, hc, "slipway-test")
}

// script answers each request with its next step. After the last one it does not answer.
type script struct {
	mu    sync.Mutex
	steps []http.HandlerFunc
	asked []recordedRequest
}

// recordedRequest is a request that a script received.
type recordedRequest struct {
	query url.Values
	at    time.Time
}

func (q recordedRequest) String() string {
	if q.query.Get("watch") == "" {
		return "list"
	}
	return "watch from " + q.query.Get("resourceVersion")
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, recordedRequest{r.URL.Query(), time.Now()})
	step := neverAnswer
	if len(s.steps) > 0 {
		step, s.steps = s.steps[0], s.steps[1:]
	}
	s.mu.Unlock()
	step(w, r)
}

func (s *script) receivedRequests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, q := range s.asked {
		out = append(out, q.String())
	}
	return out
}

// neverAnswer begins a watch and sends no event.
func neverAnswer(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// answer responds with a code and a body.
func answer(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// podList responds with a complete list of pods at a version.
func podList(version string, names ...string) http.HandlerFunc {
	return answer(http.StatusOK, podPage(version, "", names...))
}

func podPage(version, next string, names ...string) string {
	var items []string
	for _, n := range names {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":%q}}`, n, version))
	}
	return fmt.Sprintf(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":%q,"continue":%q},"items":[%s]}`,
		version, next, strings.Join(items, ","))
}

// event returns one line of a watch.
func event(kind, name, version string) string {
	return fmt.Sprintf(`{"type":%q,"object":{"metadata":{"name":%q,"resourceVersion":%q}}}`, kind, name, version) + "\n"
}

func status(code int, reason, message string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":%q,"code":%d}`,
		reason, message, code)
}

// stream sends the lines of a watch and ends it normally.
func stream(lines ...string) http.HandlerFunc { return answer(http.StatusOK, strings.Join(lines, "")) }

// brokenStream sends the lines of a watch, and then breaks the connection.
func brokenStream(lines ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Join(lines, ""))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}
