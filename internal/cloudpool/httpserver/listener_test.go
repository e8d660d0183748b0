package httpserver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

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
	l, err := Listen(t.Context(), ListenOptions{Address: "127.0.0.1:0", ReadTimeout: time.Minute}, NewServer(ServerOptions{Log: log}, f), log)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := <-e.exited; err != nil {
		t.Error(err)
	}
}

func TestForwardedRequestFailsAfterShutdownGrace(t *testing.T) {
	e := startRequestWithGrace(t, time.Millisecond)
	e.stopProcess()
	if got := <-e.answered; got.err != nil || got.code != http.StatusServiceUnavailable || !strings.Contains(got.body, "this process is shutting down") {
		t.Errorf("%+v; want 503 with the reason", got)
	}
	if err := <-e.exited; err != nil {
		t.Error(err)
	}
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

// TestSlowReadingClientTimesOut sends answers that exceed the socket buffers. The time starts with the answer, not with the
// request.
func TestSlowReadingClientTimesOut(t *testing.T) {
	// The backend uses a quarter of the timeout. The rest is slack for a busy machine.
	const took = 2 * time.Second
	answer := make([]byte, 32<<20)
	_, f := startOrigin(t, "", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			time.Sleep(took / 4)
			return
		}
		_, _ = w.Write(answer)
	})
	log := slog.New(slog.DiscardHandler)
	server := NewServer(ServerOptions{Log: log, BackendTimeout: took}, f)
	left := make(chan struct{}, 1)
	l, err := Listen(t.Context(), ListenOptions{Address: "127.0.0.1:0", ReadTimeout: time.Minute}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { left <- struct{}{} }()
		server.ServeHTTP(w, r)
	}), log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- l.Run(ctx) }()
	defer func() {
		end()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.net.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET /pool HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Fatal("the request is still being served")
	}
	for n := range 3 { // on one connection, after the deadline of an earlier answer
		if n > 0 {
			time.Sleep(took + took/4)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.net.Addr().String()+"/pool/attach", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Expect", "100-continue")
		response, err := http.DefaultClient.Do(r)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%+v, %v", response, err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		<-left
	}
}
