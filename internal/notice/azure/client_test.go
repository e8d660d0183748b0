package azure

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newService starts a server with the handler, and returns a client with this timeout.
func newService(t *testing.T, timeout time.Duration, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c, err := NewClient(Options{Endpoint: endpointOf(server), Timeout: timeout, FirstTimeout: timeout})
	must.NoError(t, err)
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

func endpointOf(server *httptest.Server) string {
	return server.URL + "/metadata/scheduledevents?api-version=2020-07-01"
}

// write sends a part of a response; the client may have stopped reading.
func write(w io.Writer, body string) bool {
	_, err := io.WriteString(w, body)
	return err == nil
}

// hangUp closes a connection, with a reset if requested.
func hangUp(t *testing.T, conn net.Conn, reset bool) {
	if reset {
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
			t.Error(err)
		}
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// hijack takes over the connection from the server.
func hijack(t *testing.T, w http.ResponseWriter) net.Conn {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		t.Error(err)
	}
	return conn
}

func TestFetchFollowsTheContractAndReusesItsConnection(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1") // a client that used this proxy would fail
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	peers := map[string]bool{}
	c := newService(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		peers[r.RemoteAddr] = true
		if r.Method != http.MethodGet || r.Header.Get("Metadata") != "true" || r.URL.Path != "/metadata/scheduledevents" ||
			r.URL.Query().Get("api-version") != "2020-07-01" || r.Header.Get("X-Forwarded-For") != "" {
			t.Errorf("got %s %s %v", r.Method, r.URL, r.Header)
		}
		write(w, string(sample(t, "preempt.json")))
	})
	for range 3 {
		document, err := c.Fetch(t.Context())
		must.NoError(t, err)
		check.Equal(t, sample(t, "preempt.json"), document)
	}
	check.Is(t, 1, len(peers))
}

func TestI7FailedFetchHasAClassAndNoDocument(t *testing.T) {
	for _, tc := range []struct {
		name    string
		handler func(*testing.T, http.ResponseWriter, *http.Request)
		class   poll.Class
		status  int
		says    string
	}{
		{"hang before the response", func(_ *testing.T, _ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}, poll.Timeout, 0, "no complete response within 300ms"},
		{"hang in the response", func(_ *testing.T, w http.ResponseWriter, r *http.Request) {
			write(w, `{"DocumentIncarnation":`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, poll.Timeout, 0, "no complete response within 300ms"},
		{"reset", func(t *testing.T, w http.ResponseWriter, _ *http.Request) {
			hangUp(t, hijack(t, w), true)
		}, poll.Unreachable, 0, "scheduledevents"},
		{"half the body", func(t *testing.T, w http.ResponseWriter, _ *http.Request) {
			conn := hijack(t, w)
			write(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"DocumentIncarnation\":1,")
			hangUp(t, conn, false)
		}, poll.CutShort, 0, "after 25 bytes"},
		{"reset in the body", func(_ *testing.T, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			write(w, "{")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, poll.CutShort, 0, "after 1 bytes"},
		{"no HTTP", func(t *testing.T, w http.ResponseWriter, _ *http.Request) {
			conn := hijack(t, w)
			write(conn, "SSH-2.0-OpenSSH_9.6\r\n\r\n")
			hangUp(t, conn, false)
		}, poll.Unreachable, 0, "malformed HTTP"},
		{"10 MB", func(_ *testing.T, w http.ResponseWriter, _ *http.Request) {
			chunk := strings.Repeat(`{"EventId":"x"},`, 1<<12)
			listening := write(w, `{"DocumentIncarnation":1,"Events":[`)
			for sent := 0; sent < 10<<20 && listening; sent += len(chunk) {
				listening = write(w, chunk)
			}
		}, poll.TooLarge, 0, "more than 4194304 bytes"},
		{"429", func(_ *testing.T, w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "slow\x1b down", http.StatusTooManyRequests)
		}, poll.HTTPStatus, 429, `429 Too Many Requests: "slow\x1b down\n"`},
		{"500 with a page of 1 MB", func(_ *testing.T, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			write(w, strings.Repeat("oops ", 200_000))
		}, poll.HTTPStatus, 500, `oops "…`},
		{"410", func(_ *testing.T, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusGone)
		}, poll.HTTPStatus, 410, "410 Gone"},
		{"204", func(_ *testing.T, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
		}, poll.HTTPStatus, 204, "204 No Content"},
		{"redirect", func(_ *testing.T, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}, poll.HTTPStatus, 302, `redirect to "/elsewhere" is not followed`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			patience := time.Minute
			if tc.class == poll.Timeout {
				patience = 300 * time.Millisecond
			}
			c := newService(t, patience, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/elsewhere" {
					t.Error("the redirect was followed")
				}
				tc.handler(t, w, r)
			})
			document, err := c.Fetch(t.Context())
			var failed *poll.Error
			if !errors.As(err, &failed) || failed.Class != tc.class || failed.Status != tc.status ||
				!strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v (%+v), want class %s, status %d, text %q", err, failed, tc.class, tc.status, tc.says)
			}
			if document != nil {
				t.Errorf("a document of %d bytes came with the error", len(document))
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestClosedPortIsUnreachable(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	endpoint := endpointOf(server)
	server.Close()
	c, err := NewClient(Options{Endpoint: endpoint})
	must.NoError(t, err)
	_, err = c.Fetch(t.Context())
	var failed *poll.Error
	if !errors.As(err, &failed) || failed.Class != poll.Unreachable || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("error %v", err)
	}
}

func TestCallersCancellationIsNotAFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := newService(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	_, err := c.Fetch(ctx)
	var failed *poll.Error
	if !errors.As(err, &failed) || failed.Class != poll.Canceled || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestFirstResponseMayTakeLong(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(400 * time.Millisecond): // longer than a later request may take
		case <-r.Context().Done():
		}
		write(w, string(sample(t, "empty.json")))
	}))
	t.Cleanup(server.Close)
	c, err := NewClient(Options{Endpoint: endpointOf(server), Timeout: 200 * time.Millisecond, FirstTimeout: time.Minute})
	must.NoError(t, err)
	if _, err := c.Fetch(t.Context()); err != nil {
		t.Errorf("the client did not wait for the first response: %v", err)
	}
	_, err = c.Fetch(t.Context())
	var failed *poll.Error
	if !errors.As(err, &failed) || failed.Class != poll.Timeout {
		t.Errorf("the client waited for a later response: %v", err)
	}
}

func TestApproveNamesEachEventInOneRequest(t *testing.T) {
	requests := 0
	c := newService(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) {
		requests++
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		want := `{"StartRequests":[{"EventId":"A"},{"EventId":"B\"\u003c"}]}`
		if r.Method != http.MethodPost || r.Header.Get("Metadata") != "true" || string(body) != want ||
			r.Header.Get("Content-Type") != "application/json" || r.ContentLength != int64(len(want)) {
			t.Errorf("got %s %v %s", r.Method, r.Header, body)
		}
	})
	if err := c.Approve(t.Context(), "A", `B"<`); err != nil {
		t.Error(err)
	}
	if err := c.Approve(t.Context()); err != nil {
		t.Error(err)
	}
	if requests != 1 {
		t.Errorf("%d requests, want 1 (none for an empty approval)", requests)
	}
}

func TestRefusedApprovalReturnsTheResponse(t *testing.T) {
	c := newService(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error":"Bad request"}`, http.StatusBadRequest)
	})
	err := c.Approve(t.Context(), "A")
	var failed *poll.Error
	if !errors.As(err, &failed) || failed.Status != http.StatusBadRequest ||
		!strings.Contains(err.Error(), "Bad request") || !strings.Contains(err.Error(), "POST") {
		t.Errorf("error %v", err)
	}
}

func TestI10BadClientOptionsAreNamedWithTheirValue(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options Options
		says    []string
	}{
		{"other scheme", Options{Endpoint: "ftp://h/?api-version=1"}, []string{"endpoint", `"ftp"`, "http or https"}},
		{"no scheme", Options{Endpoint: "169.254.169.254/x?api-version=1"}, []string{"endpoint", "169.254"}},
		{"no host", Options{Endpoint: "http:///x?api-version=1"}, []string{"endpoint", "has no host"}},
		{"port alone", Options{Endpoint: "http://:80/x?api-version=1"}, []string{"endpoint", "has no host"}},
		{"no api-version", Options{Endpoint: "http://h/x"}, []string{"endpoint", "api-version", DefaultEndpoint}},
		{"empty api-version", Options{Endpoint: "http://h/x?api-version="}, []string{"endpoint", "api-version"}},
		{"no URL", Options{Endpoint: "http://h/%zz"}, []string{"endpoint", "%zz"}},
		{"negative timeout", Options{Timeout: -time.Second}, []string{"timeout", "-1s", "more than 0"}},
		{"first timeout shorter", Options{FirstTimeout: time.Second}, []string{"first timeout", "1s", "5s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := NewClient(tc.options)
			if err == nil {
				t.Fatalf("got a client for %s", c.Endpoint())
			}
			check.Contains(t, err.Error(), tc.says...)
		})
	}
}

func TestServiceClockIsReadFromResponses(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		_, _ = io.WriteString(w, `{"DocumentIncarnation":1,"Events":[]}`)
	}))
	defer server.Close()
	c, err := NewClient(Options{Endpoint: server.URL + "?api-version=1"})
	must.NoError(t, err)
	if _, err := c.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	check.Is(t, time.Hour, c.ClockAhead().Round(time.Minute))
}
