package httpserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestPoolsAreListed(t *testing.T) {
	for want, fronts := range map[string][]*ServedPool{
		"[\n  \"http://example.com/cloudpools/a\"\n]":                                         {{Name: "a"}},
		"[\n  \"http://example.com/cloudpools/a\",\n  \"http://example.com/cloudpools/b\"\n]": {{Name: "a"}, {Name: "b"}},
	} {
		s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler)}, fronts...)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/cloudpools", nil))
		check.Not(t, w.Code != http.StatusOK || w.Body.String() != want, "%d %s, want %s", w.Code, w.Body, want)
		w = httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/cloudpools", strings.NewReader("{}")))
		check.Is(t, http.StatusMethodNotAllowed, w.Code)
	}
}

// TestCrossSiteRequestIsRefused sends requests as browsers do for pages of other sites, and as other clients do.
func TestCrossSiteRequestIsRefused(t *testing.T) {
	type header = map[string]string
	for name, tt := range map[string]struct {
		method, host string
		header       header
		local        bool
		code         int
	}{
		"not a browser":                  {"POST", "pool.example", nil, true, 200},
		"simple request of a page":       {"POST", "127.0.0.1:8080", header{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, true, 403},
		"older browser":                  {"POST", "127.0.0.1:8080", header{"Origin": "https://evil.example"}, true, 403},
		"opaque origin":                  {"POST", "127.0.0.1:8080", header{"Origin": "null"}, true, 403},
		"same site, beyond this machine": {"PUT", "pool.example", header{"Sec-Fetch-Site": "same-site"}, false, 403},
		"read of a page":                 {"GET", "127.0.0.1:8080", header{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, true, 200},
		"own page":                       {"POST", "127.0.0.1:8080", header{"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}, true, 200},
		"own page with another name":     {"POST", "localhost:8080", header{"Origin": "http://localhost:8080"}, true, 200},
		"own page over IPv6":             {"POST", "[::1]:8080", header{"Origin": "http://[::1]:8080"}, true, 200},
		"DNS rebinding":                  {"POST", "evil.example:8080", header{"Origin": "http://evil.example:8080"}, true, 403},
		"own name, beyond this machine":  {"POST", "pool.example", header{"Origin": "http://pool.example"}, false, 200},
		"own name behind a local proxy":  {"POST", "pool.example", header{"Origin": "https://pool.example", "Sec-Fetch-Site": "same-origin"}, true, 200},
	} {
		asked := 0
		_, f := startOrigin(t, "", func(http.ResponseWriter, *http.Request) { asked++ })
		s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler), LoopbackOnly: tt.local}, f)
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

// decodeError returns the status code and the error text of an answer.
func decodeError(t *testing.T, w *httptest.ResponseRecorder) (code int, text string) {
	t.Helper()
	var said api.ErrorMessage
	if w.Body.Len() > 0 {
		if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil {
			t.Errorf("%q: %v", w.Body, err)
		}
	}
	return w.Code, said.Message + ": " + said.Detail
}

func TestFailuresHaveDistinctCodesUnlessStrict(t *testing.T) {
	away := controller.NewBackendFailure("reading the pool", errors.New("connection refused"))
	cluster := controller.NewClusterFailure("reading the nodes", errors.New("timeout"))
	unsafe := controller.NewFailuref(controller.NotPossible, "n is not a viable scale-down candidate: why (protected)")
	for name, tt := range map[string]struct {
		kind controller.Kind
		err  error
		code int
		// strict is the text of kubeaware-cloudpool-proxy, with status 500.
		strict string
	}{
		"no such machine":                     {controller.Terminate, controller.NewFailuref(controller.NotFound, "machine m"), 404, "failed to terminate machine: no kubernetes node with external ID m exists"},
		"node without machine":                {controller.Terminate, &controller.Failure{Result: controller.NotFound, Err: errNodeWithoutMachine}, 404, "failed to terminate machine: failed to get cloudpool machine with ID m: getMachine m: machine not found: "},
		"no machine to detach":                {controller.DetachMachine, controller.NewFailuref(controller.NotFound, "machine m"), 404, "failed to detach machine: "},
		"no machine to dispose":               {controller.Dispose, controller.NewFailuref(controller.NotFound, "machine m"), 404, "failed to set membership status: "},
		"not safe":                            {controller.Terminate, unsafe, 409, "failed to terminate machine: TerminateMachine: machine is not deemed safe to scale down: n is not a viable"},
		"no candidate":                        {controller.SetSize, controller.NewFailuref(controller.NotPossible, "found no viable candidates for scaling down: x"), 409, "failed to set desired size: found no viable candidates"},
		"server unavailable":                  {controller.SetSize, away, 502, "failed to set desired size: failed to retrieve cloudpool: getMachinePool: reading the pool: connection refused"},
		"API server unavailable":              {controller.SetSize, cluster, 503, "failed to set desired size: failed to retrieve kubernetes worker nodes: "},
		"API server unavailable, one machine": {controller.Terminate, cluster, 503, "failed to terminate machine: failed to get nodes: "},
		"no node yet":                         {controller.Terminate, controller.NewFailuref(controller.NotPossible, "m is not …: (%s)", matching.RuleRegistering), 409, "failed to terminate machine: no kubernetes node with external ID m exists"},
		"cloud refuses":                       {controller.Terminate, &cloud.RefusedError{Reason: cloud.Protected, Err: errors.New("locked")}, 502, "failed to terminate machine: "},
		"other error":                         {controller.SetSize, errors.New("100% strange"), 500, "failed to set desired size: 100% strange"},
	} {
		for _, strict := range []bool{false, true} {
			w := httptest.NewRecorder()
			(&Server{opts: ServerOptions{StrictCompat: strict}}).writeFailure(w, tt.kind, "m", tt.err)
			code, text := decodeError(t, w)
			want := tt.code
			if strict {
				want = http.StatusInternalServerError
			}
			if code != want || strict && !strings.HasPrefix(text, tt.strict) {
				t.Errorf("%s, strict %t: %d %q, want %d %q", name, strict, code, text, want, tt.strict)
			}
		}
	}
	for _, strict := range []bool{false, true} { // bad requests keep their status in strict mode
		w := httptest.NewRecorder()
		_, err := api.DecodeTerminate([]byte("{}"))
		(&Server{opts: ServerOptions{StrictCompat: strict}}).writeFailure(w, controller.Terminate, "", err)
		if code, text := decodeError(t, w); code != http.StatusBadRequest || text != "terminateMachine message did not specify a machineId: " {
			t.Errorf("%d %q", code, text)
		}
	}
}

func TestOutcomeDeterminesStatusCode(t *testing.T) {
	refused := []v1alpha1.PoolMachine{{State: v1alpha1.MachineRemoved}, {State: v1alpha1.MachineRefused}}
	for name, tt := range map[string]struct {
		update       controller.Update
		code, strict int
	}{
		"done":                     {controller.Update{Kind: controller.SetSize, Outcome: &controller.Outcome{Result: controller.Done, Removed: 2}}, 200, 200},
		"too few candidates":       {controller.Update{Kind: controller.SetSize, Machines: []v1alpha1.PoolMachine{{State: v1alpha1.MachineRemoved}}, Outcome: &controller.Outcome{Result: controller.Partial, Removed: 1}}, 409, 200},
		"one machine failed":       {controller.Update{Kind: controller.SetSize, Machines: refused, Outcome: &controller.Outcome{Result: controller.Partial, Removed: 1}}, 409, 500},
		"server fails after drain": {controller.Update{Kind: controller.SetSize, Outcome: &controller.Outcome{Result: controller.BackendUnavailable}}, 502, 500},
		"machine stays":            {controller.Update{Kind: controller.Terminate, Outcome: &controller.Outcome{Result: controller.NotPossible}}, 409, 500},
	} {
		for strict, want := range map[bool]int{false: tt.code, true: tt.strict} {
			w := httptest.NewRecorder()
			tt.update.ID = "workers-7"
			(&Server{opts: ServerOptions{StrictCompat: strict}}).writeOutcome(w, &tt.update)
			if id, removed := w.Header().Get("Slipway-Update"), w.Header().Get("Slipway-Removed"); id != "workers-7" || removed != strconv.Itoa(tt.update.Outcome.Removed) {
				t.Errorf("%s: the headers say update %q, removed %q", name, id, removed)
			}
			check.Not(t, w.Code != want || want == 200 && w.Body.Len() > 0, "%s, strict %t: %d %s, want %d", name, strict, w.Code, w.Body, want)
		}
	}
}

func TestServerAnswerToRaiseIsForwarded(t *testing.T) {
	own := &api.StatusError{Code: 400, FromServer: true, ErrorMessage: api.ErrorMessage{Message: "illegal input: no", Detail: "why"}}
	for name, tt := range map[string]struct {
		err          error
		code, strict int
		text         string
	}{
		"accepted":             {nil, 200, 200, ": "},
		"refused":              {own, 400, 500, "illegal input: no: why"},
		"unauthorized":         {&api.StatusError{Code: 401, FromServer: true}, 502, 500, ""},
		"answer of a proxy":    {&api.StatusError{Code: 404, ErrorMessage: api.ErrorMessage{Message: "<html>"}}, 502, 500, ""},
		"limit of a NodeGroup": {&cloud.RefusedError{Reason: cloud.AtLimit, Err: errors.New("maximum")}, 400, 500, ""},
	} {
		for strict, want := range map[bool]int{false: tt.code, true: tt.strict} {
			w := httptest.NewRecorder()
			(&Server{opts: ServerOptions{StrictCompat: strict}}).writeServerAnswer(w, (&controller.Update{Kind: controller.SetSize, DesiredSize: 3}).WithServerAnswer(tt.err))
			code, text := decodeError(t, w)
			if code != want || !strict && tt.text != "" && text != tt.text {
				t.Errorf("%s, strict %t: %d %q, want %d %q", name, strict, code, text, want, tt.text)
			}
			if strict && want == 500 && !strings.HasPrefix(text, "failed to set desired size: failed to request desiredSize against backend cloudpool: setDesiredSize 3: ") {
				t.Errorf("%s: %q", name, text)
			}
		}
	}
}

// runningRequest is a process that serves a pool, with a running request to the pool's server.
type runningRequest struct {
	// releaseServer lets the server answer. stopProcess ends the process.
	releaseServer, stopProcess func()
	// answered receives the client's answer. exited receives the error of the process.
	answered <-chan clientAnswer
	exited   <-chan error
}

type clientAnswer struct {
	code int
	body string
	err  error
}

// startRequestWithGrace starts such a process with a shutdown grace.
func startRequestWithGrace(t *testing.T, grace time.Duration) *runningRequest {
	t.Helper()
	asked, released := make(chan struct{}), make(chan struct{})
	_, f := startOrigin(t, "", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise a disconnect is not detected
		close(asked)
		select {
		case <-released:
			w.WriteHeader(http.StatusCreated)
		case <-r.Context().Done():
		}
	})
	log := slog.New(slog.DiscardHandler)
	l := must.Get(Listen(t.Context(), ListenOptions{Address: "127.0.0.1:0", ReadTimeout: time.Minute}, NewServer(ServerOptions{Log: log}, f), log))(t)
	l.grace = grace
	ctx, end := context.WithCancel(t.Context())
	over, answered := make(chan error, 1), make(chan clientAnswer, 1)
	go func() { over <- l.Run(ctx) }()
	go func() {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.net.Addr().String()+"/pool/attach", strings.NewReader("{}"))
		if err != nil {
			answered <- clientAnswer{err: err}
			return
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			answered <- clientAnswer{err: err}
			return
		}
		raw, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		answered <- clientAnswer{response.StatusCode, string(raw), err}
	}()
	<-asked
	return &runningRequest{releaseServer: func() { close(released) }, stopProcess: end, answered: answered, exited: over}
}

func TestForwardedRequestFinishesDuringShutdown(t *testing.T) {
	e := startRequestWithGrace(t, time.Minute)
	e.stopProcess()
	e.releaseServer()
	if got := <-e.answered; got.err != nil || got.code != http.StatusCreated {
		t.Errorf("%+v; want the server's answer", got)
	}
	check.NoError(t, <-e.exited)
}

func TestForwardedRequestFailsAfterShutdownGrace(t *testing.T) {
	e := startRequestWithGrace(t, time.Millisecond)
	e.stopProcess()
	if got := <-e.answered; got.err != nil || got.code != http.StatusServiceUnavailable || !strings.Contains(got.body, "this process is shutting down") {
		t.Errorf("%+v; want 503 with the reason", got)
	}
	check.NoError(t, <-e.exited)
}

func TestDisconnectedClientGetsNoSuccess(t *testing.T) {
	_, f := startOrigin(t, "", func(http.ResponseWriter, *http.Request) {})
	s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler)}, f)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	w := httptest.NewRecorder()
	defer func() {
		if err, ok := recover().(error); !ok || !errors.Is(err, http.ErrAbortHandler) || w.Body.Len() > 0 {
			t.Errorf("panicked with %v, and answered %d %s; want the connection ended", err, w.Code, w.Body)
		}
	}()
	s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/pool/attach", strings.NewReader("{}")))
}

// TestSlowReadingClientTimesOut sends an answer that exceeds the socket buffers.
func TestSlowReadingClientTimesOut(t *testing.T) {
	answer := make([]byte, 32<<20)
	_, f := startOrigin(t, "", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) })
	log := slog.New(slog.DiscardHandler)
	server := NewServer(ServerOptions{Log: log, BackendTimeout: time.Second}, f)
	left := make(chan struct{}, 1)
	l, err := Listen(t.Context(), ListenOptions{Address: "127.0.0.1:0", ReadTimeout: time.Minute}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { left <- struct{}{} }()
		server.ServeHTTP(w, r)
	}), log)
	must.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- l.Run(ctx) }()
	defer func() {
		end()
		check.NoError(t, <-over)
	}()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.net.Addr().String())
	must.NoError(t, err)
	defer func() { _ = c.Close() }()
	must.NoError(t, check.Err(io.WriteString(c, "GET /pool HTTP/1.1\r\nHost: x\r\n\r\n")))
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Fatal("the request is still being served")
	}
}

// deadlineWriter records the write deadlines of a connection.
type deadlineWriter struct {
	http.ResponseWriter
	deadlines []time.Time
}

func (w *deadlineWriter) SetWriteDeadline(t time.Time) error {
	w.deadlines = append(w.deadlines, t)
	return nil
}

func (w *deadlineWriter) WriteHeader(code int) {
	if code >= 200 { // the recorder accepts nothing after another code
		w.ResponseWriter.WriteHeader(code)
	}
}

func TestTimeToReadStartsWithTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &deadlineWriter{ResponseWriter: httptest.NewRecorder()}
		r := &responseRecorder{ResponseWriter: w, readTimeout: time.Minute}
		r.WriteHeader(http.StatusProcessing)
		time.Sleep(time.Hour) // such as an update
		began := time.Now()
		for range 2 {
			must.NoError(t, check.Err(io.WriteString(r, "x")))
			time.Sleep(time.Second)
		}
		check.Equal(t, []time.Time{began.Add(time.Minute)}, w.deadlines)
		check.Is(t, http.StatusOK, r.code)
	})
}
