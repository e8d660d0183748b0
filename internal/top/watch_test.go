package top

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// apiServer serves one node, no pods, and no types of Slipway. Its connections are in-memory pipes, so that it can
// run with its clients in a testing/synctest bubble.
type apiServer struct {
	waiting chan net.Conn
	closed  chan struct{}

	mu   sync.Mutex
	away bool
	held bool // it accepts connections and does not answer
	busy bool // it answers 429 Too Many Requests
	shy  bool // it forbids /version
	open []net.Conn
	// answered is when it last answered /version.
	answered time.Time
}

// serveInMemory starts a server and returns the configuration of its clients.
func serveInMemory(t *testing.T) (*apiServer, *rest.Config) {
	t.Helper()
	s := &apiServer{waiting: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: s}
	go func() { _ = server.Serve(s) }()
	t.Cleanup(func() { _ = server.Close() })
	return s, &rest.Config{Host: "http://api.test", QPS: -1, Dial: s.dial, Proxy: http.ProxyFromEnvironment}
}

// dial connects to the server, or fails as if nothing listened.
func (s *apiServer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	client, server := net.Pipe()
	s.open = append(s.open, server)
	select {
	case s.waiting <- server:
		return client, nil
	case <-s.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// disconnect stops the server like a crash. reconnect starts it again.
func (s *apiServer) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = true
	for _, c := range s.open {
		_ = c.Close()
	}
	s.open = nil
}

func (s *apiServer) reconnect() { s.update(func() { s.away, s.held, s.busy = false, false, false }) }

func (s *apiServer) update(what func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	what()
}

// Accept implements [net.Listener].
func (s *apiServer) Accept() (net.Conn, error) {
	select {
	case c := <-s.waiting:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (s *apiServer) Close() error {
	close(s.closed)
	return nil
}

// Addr implements [net.Listener].
func (s *apiServer) Addr() net.Addr { return &net.TCPAddr{} }

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	held, busy, shy := s.held, s.busy, s.shy
	if r.URL.Path == "/version" && !held && !busy {
		s.answered = time.Now()
	}
	s.mu.Unlock()
	switch {
	case held:
		<-r.Context().Done()
		return
	case busy:
		writeStatus(w, metav1.StatusReasonTooManyRequests, http.StatusTooManyRequests)
	case shy && r.URL.Path == "/version":
		writeStatus(w, metav1.StatusReasonForbidden, http.StatusForbidden)
	default:
		s.serve(w, r)
	}
}

func writeStatus(w http.ResponseWriter, reason metav1.StatusReason, code int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"refused: %s","reason":%q,"code":%d}`, reason, reason, code)
}

func (*apiServer) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	kind, node := "Pod", ""
	if strings.HasSuffix(r.URL.Path, "/nodes") {
		kind, node = "Node", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-1","uid":"u","resourceVersion":"1"}}`
	}
	switch {
	case r.URL.Path == "/version":
		fmt.Fprint(w, `{"major":"1","minor":"36"}`)
	case r.URL.Path == "/api":
		fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
	case r.URL.Path == "/apis":
		fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
	case r.URL.Path == "/api/v1":
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[
			{"name":"nodes","kind":"Node","verbs":["list","watch"]},{"name":"pods","kind":"Pod","namespaced":true,"verbs":["list","watch"]}]}`)
	case r.URL.Path != "/api/v1/nodes" && r.URL.Path != "/api/v1/pods":
		http.NotFound(w, r)
	case r.URL.Query().Get("watch") == "":
		fmt.Fprintf(w, `{"kind":"%sList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[%s]}`, kind, node)
	default:
		if node != "" && r.URL.Query().Get("sendInitialEvents") != "" {
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}`, node)
		}
		fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":%q,"apiVersion":"v1","metadata":{"resourceVersion":"1",
			"annotations":{"k8s.io/initial-events-end":"true"}}}}`, kind)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

// recordedStates holds the last State of a watch.
type recordedStates struct {
	mu    sync.Mutex
	state State
	shown bool
}

func (v *recordedStates) show(s State) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state, v.shown = s, true
}

// problems returns the problems that do not concern Slipway's types, which the server does not serve.
func (v *recordedStates) problems(t *testing.T) []string {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.shown {
		t.Fatal("nothing is shown")
	}
	return slices.DeleteFunc(slices.Clone(v.state.Problems), func(p string) bool { return strings.Contains(p, "the CRDs of Slipway") })
}

func (v *recordedStates) nodes() (names []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, g := range v.state.Groups {
		for _, n := range g.Nodes {
			names = append(names, n.Name)
		}
	}
	return names
}

// startWatch runs a Watch until the end of the test. It calls before ahead of the first list.
func startWatch(t *testing.T, cfg *rest.Config, before ...func()) *recordedStates {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w, err := NewWatcher(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, happens := range before {
		happens()
	}
	v := &recordedStates{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.Run(ctx, v.show)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return v
}

func TestUnreachableAPIServerIsShown(t *testing.T) {
	for name, tt := range map[string]struct {
		begin func(*apiServer)
		want  string
	}{
		"gone":     {(*apiServer).disconnect, "connection refused"},
		"silent":   {func(s *apiServer) { s.update(func() { s.held = true }) }, "no answer within 5s"},
		"too busy": {func(s *apiServer) { s.update(func() { s.busy = true }) }, "refused: TooManyRequests"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, cfg := serveInMemory(t)
				v := startWatch(t, cfg)
				time.Sleep(2 * time.Minute)
				if p := v.problems(t); len(p) != 0 || !slices.Equal(v.nodes(), []string{"node-1"}) {
					t.Fatalf("nodes %v with problems %q while all is well", v.nodes(), p)
				}
				tt.begin(server)
				var since string
				server.update(func() { since = server.answered.UTC().Format("15:04:05Z") })
				var first []string
				for _, after := range []time.Duration{pingInterval + pingTimeout + rebuildInterval, time.Minute, time.Hour} {
					time.Sleep(after)
					p := v.problems(t)
					if len(p) != 1 || !strings.HasSuffix(p[0], tt.want) || !strings.Contains(p[0], "no connection to the API server since "+since) {
						t.Fatalf("problems %q after %v, want one about the connection since %s: %s", p, after, since, tt.want)
					}
					if first == nil {
						first = p
					}
					if !slices.Equal(first, p) { // another text would be a new line of slipway top --plain
						t.Errorf("problems %q, and then %q", first, p)
					}
					server.disconnect() // the error is different from here on
				}
				server.reconnect()
				time.Sleep(pingInterval + pingTimeout + rebuildInterval)
				if p := v.problems(t); len(p) != 0 || !slices.Equal(v.nodes(), []string{"node-1"}) {
					t.Errorf("nodes %v with problems %q after it has come back", v.nodes(), p)
				}
			})
		})
	}
}

func TestAPIServerLostBeforeFirstReadIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, cfg := serveInMemory(t)
		// client-go also waits silently before its first list.
		v := startWatch(t, cfg, func() { server.update(func() { server.busy = true }) })
		time.Sleep(pingInterval + rebuildInterval)
		if p := v.problems(t); len(p) != 1 || !strings.Contains(p[0], "no connection to the API server since ") {
			t.Errorf("problems %q, want one about the connection", p)
		}
		server.reconnect()
		time.Sleep(2 * time.Minute) // longer than the longest retry pause of client-go
		if p := v.problems(t); len(p) != 0 || !slices.Equal(v.nodes(), []string{"node-1"}) {
			t.Errorf("nodes %v with problems %q after it has come back", v.nodes(), p)
		}
	})
}

func TestForbiddenVersionCountsAsReachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, cfg := serveInMemory(t)
		server.shy = true
		v := startWatch(t, cfg)
		time.Sleep(time.Minute)
		if p := v.problems(t); len(p) != 0 || !slices.Equal(v.nodes(), []string{"node-1"}) {
			t.Errorf("nodes %v with problems %q, want none", v.nodes(), p)
		}
	})
}
