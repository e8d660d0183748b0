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

// ending is a process that serves a pool and is about to end, with a request to the pool's server under way.
type ending struct {
	// release has the server answer, and end ends the process.
	release, end func()
	// answered is what the client is told, and over that the process has ended.
	answered <-chan endingAnswer
	over     <-chan error
}

type endingAnswer struct {
	code int
	body string
	err  error
}

// endWithin starts such a process, which lets requests go on for a time when it ends.
func endWithin(t *testing.T, grace time.Duration) *ending {
	t.Helper()
	asked, released := make(chan struct{}), make(chan struct{})
	_, f := origin(t, "", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // until then it is not seen whether the other side has left
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
	over, answered := make(chan error, 1), make(chan endingAnswer, 1)
	go func() { over <- l.Run(ctx) }()
	go func() {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.net.Addr().String()+"/pool/attach", strings.NewReader("{}"))
		if err != nil {
			answered <- endingAnswer{err: err}
			return
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			answered <- endingAnswer{err: err}
			return
		}
		raw, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		answered <- endingAnswer{response.StatusCode, string(raw), err}
	}()
	<-asked
	return &ending{release: func() { close(released) }, end: end, answered: answered, over: over}
}

func TestWhatIsPassedOnComesToItsEndWhenTheProcessDoes(t *testing.T) {
	e := endWithin(t, time.Minute)
	e.end()
	e.release()
	if got := <-e.answered; got.err != nil || got.code != http.StatusCreated {
		t.Errorf("%+v; want what the pool's server says", got)
	}
	if err := <-e.over; err != nil {
		t.Error(err)
	}
}

func TestAClientIsToldThatThereWasNoTimeToPassItsRequestOn(t *testing.T) {
	e := endWithin(t, time.Millisecond)
	e.end()
	if got := <-e.answered; got.err != nil || got.code != http.StatusServiceUnavailable || !strings.Contains(got.body, "this process is ending") {
		t.Errorf("%+v; want 503, and why", got)
	}
	if err := <-e.over; err != nil {
		t.Error(err)
	}
}

func TestAClientThatHasLeftIsNotToldThatItIsDone(t *testing.T) {
	_, f := origin(t, "", func(http.ResponseWriter, *http.Request) {})
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

// TestAClientThatDoesNotReadIsLeft has answers that are larger than what the way to the client holds, and a time that has begun
// before: what is answered is given its time when it is.
func TestAClientThatDoesNotReadIsLeft(t *testing.T) {
	// A backend that takes a quarter of it leaves the rest to a busy machine.
	const took = 2 * time.Second
	answer := make([]byte, 32<<20)
	_, f := origin(t, "", func(w http.ResponseWriter, r *http.Request) {
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
	for n := range 3 { // over one connection, on which an earlier answer's time has passed
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
