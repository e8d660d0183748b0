package wire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newTestClient returns a client of a server, with a path in its URL.
func newTestClient(t *testing.T, path string, h http.HandlerFunc) *wire.Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL + path)
	must.NoError(t, err)
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return wire.NewClient(base, &http.Client{CheckRedirect: stay}, time.Minute)
}

const (
	validPool = `{"timestamp":"2026-01-02T03:04:05.678Z","machines":[{"id":"i-1","machineState":"RUNNING"}]}`
	validSize = `{"timestamp":"2026-01-02T03:04:05.678Z","desiredSize":3,"allocated":2,"active":1}`
)

// TestI7MalformedResponseIsNotAnEmptyPool covers malformed responses of servers and proxies.
func TestI7MalformedResponseIsNotAnEmptyPool(t *testing.T) {
	write := func(code int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(code)
			fmt.Fprint(w, body)
		}
	}
	for name, h := range map[string]http.HandlerFunc{
		"a web page":       write(200, "text/html", "<html>Log in</html>"),
		"an error page":    write(503, "text/html", "<html>Away</html>"),
		"a redirect":       func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) },
		"nothing":          write(200, "application/json", ""),
		"no content":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"null":             write(200, "application/json", "null"),
		"an empty object":  write(200, "application/json", "{}"),
		"a list":           write(200, "application/json", "[]"),
		"no machines":      write(200, "application/json", `{"timestamp":"2026-01-02T03:04:05.678Z"}`),
		"machines of null": write(200, "application/json", `{"timestamp":"2026-01-02T03:04:05.678Z","machines":null}`),
		"no time":          write(200, "application/json", `{"machines":[],"desiredSize":0,"allocated":0,"active":0}`),
		"a malformed time": write(200, "application/json", `{"timestamp":"yesterday","machines":[],"desiredSize":0,"allocated":0,"active":0}`),
		"a missing ID":     write(200, "application/json", `{"timestamp":"2026-01-02T03:04:05.678Z","machines":[{"machineState":"RUNNING"}],"desiredSize":1,"active":1}`),
		"a missing state":  write(200, "application/json", `{"timestamp":"2026-01-02T03:04:05.678Z","machines":[{"id":"i-1"}],"allocated":1,"active":1}`),
		"two documents":    write(200, "application/json", validPool+validPool),
		"half a body": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "400")
			fmt.Fprint(w, validPool[:40])
			panic(http.ErrAbortHandler)
		},
		"a connection that ends": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		c := newTestClient(t, "", h)
		if pool, err := c.Pool(t.Context()); err == nil {
			t.Errorf("%s: a pool %+v", name, pool)
		}
		if size, err := c.Size(t.Context()); err == nil {
			t.Errorf("%s: a size %+v", name, size)
		}
		if pools, err := c.Pools(t.Context()); err == nil && name != "a list" {
			t.Errorf("%s: pools %q", name, pools)
		}
	}
}

func TestPoolAndSizeAreParsed(t *testing.T) {
	c := newTestClient(t, "/base", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, map[string]string{"/base/pool": validPool, "/base/pool/size": validSize}[r.URL.Path])
	})
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	pool, err := c.Pool(t.Context())
	if err != nil || !pool.Timestamp.Equal(at) || len(pool.Machines) != 1 || pool.Machines[0].ID != "i-1" || pool.Machines[0].State != wire.Running {
		t.Errorf("%+v, %v", pool, err)
	}
	m := pool.Machines[0]
	check.Not(t, !m.IsActive() || m.IsEvictable(), "a machine without membershipStatus is active and not evictable")
	size, err := c.Size(t.Context())
	check.Not(t, err != nil || size.Desired != 3 || size.Allocated != 2 || size.Active != 1 || !size.Timestamp.Equal(at), "%+v, %v", size, err)
}

// Regression test: kubeaware-cloudpool-proxy drained a node and then received a 404.
func TestPoolPathSelectsThePool(t *testing.T) {
	for path, want := range map[string]string{"": "/pool/terminate", "/cloudpools/workers": "/cloudpools/workers/terminate", "/x/": "/x/pool/terminate"} {
		var got, body string
		c := newTestClient(t, path, func(_ http.ResponseWriter, r *http.Request) {
			raw, _ := io.ReadAll(r.Body)
			got, body = r.Method+" "+r.URL.Path, string(raw)
		})
		check.NoError(t, c.Terminate(t.Context(), wire.Removal{MachineID: "i-1", Decrement: true}))
		check.Not(t, got != "POST "+want || body != `{"machineId":"i-1","decrementDesiredSize":true}`, "%s %s, want %s", got, body, want)
	}
}

func TestServerErrorMessageIsKept(t *testing.T) {
	answer := `{"message":"100% down\u001b[2J","detail":"first\n\tat Second.java\u0000\n"}`
	own := newTestClient(t, "", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprint(w, answer)
	})
	err := own.SetDesiredSize(t.Context(), 3)
	status := wire.AsStatusError(err)
	if status == nil || !status.FromServer || status.Code != http.StatusBadGateway || status.Message != "100% down [2J" || status.Detail != "first\nat Second.java" ||
		status.RetryAfter != 7*time.Second || !strings.HasSuffix(err.Error(), "502 Bad Gateway: 100% down [2J: first") {
		t.Errorf("%+v, %v", status, err)
	}
	other := newTestClient(t, "", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, strings.Repeat("<p>é", 3000))
	})
	if status = wire.AsStatusError(other.SetDesiredSize(t.Context(), 3)); status == nil || status.FromServer || len(status.Message) > 2100 {
		t.Errorf("%+v", status)
	}
	page := newTestClient(t, "", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, "<html>Log in</html>")
	})
	check.ErrorContains(t, page.SetDesiredSize(t.Context(), 3))
}

func TestRequestEndsWithItsContext(t *testing.T) {
	asked := make(chan struct{})
	c := newTestClient(t, "", func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	})
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-asked
		leave()
	}()
	_, err := c.Pool(ctx)
	check.Not(t, !errors.Is(err, context.Canceled), "%v", err)
}

func FuzzPoolResponse(f *testing.F) {
	for _, seed := range []string{validPool, validSize, `{"machines":[{"membershipStatus":{"active":"x"}}]}`, "[]", "null", "{"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		base := &url.URL{Scheme: "http", Host: "cloudpool"}
		c := wire.NewClient(base, fixedResponse(raw), time.Minute)
		pool, err := c.Pool(t.Context())
		for _, m := range pool.Machines {
			if err == nil && (m.ID == "" || m.State == "" || pool.Timestamp.IsZero() && !strings.Contains(string(raw), "0001-01-01")) {
				t.Errorf("%q decoded as %+v", raw, pool)
			}
		}
		_, _ = c.Size(t.Context())
	})
}

// fixedResponse is a server with a fixed response.
type fixedResponse []byte

// Do implements wire.Doer.
func (a fixedResponse) Do(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(a)))}, nil
}

// These tests are named after faults of kubeaware-cloudpool-proxy. Package kubeaware has the whole list.

func TestFaultSuccessOtherThan200IsAFailure(t *testing.T) {
	for _, code := range []int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent} {
		c := newTestClient(t, "", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
		for what, err := range map[string]error{
			"size":       c.SetDesiredSize(t.Context(), 3),
			"terminate":  c.Terminate(t.Context(), wire.Removal{MachineID: "m"}),
			"detach":     c.Detach(t.Context(), wire.Removal{MachineID: "m"}),
			"membership": c.SetMembershipStatus(t.Context(), wire.SetMembershipStatus{MachineID: "m"}),
		} {
			check.Not(t, err != nil, "%s, answered %d: %v", what, code, err)
		}
	}
}

func TestFaultOwnRequestsAreForwardedForNobody(t *testing.T) {
	seen := make(chan http.Header, 1)
	c := newTestClient(t, "", func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })
	must.NoError(t, c.SetDesiredSize(t.Context(), 3))
	h := <-seen
	check.Not(t, h.Values("X-Forwarded-For") != nil, "X-Forwarded-For is %q, want no such header", h.Values("X-Forwarded-For"))
}

// TestOnlyServer404MeansNotMember: a 404 of a proxy or of a read request does not count.
func TestOnlyServer404MeansNotMember(t *testing.T) {
	for name, c := range map[string]struct {
		code   int
		answer string
		want   bool
	}{
		"the server":         {404, `{"message":"unrecognized machine","detail":""}`, true},
		"an ingress":         {404, "default backend - 404", false},
		"a 404 of its cloud": {500, `{"message":"cloud: 404 Not Found: no such region","detail":""}`, false},
	} {
		client := newTestClient(t, "", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.code)
			fmt.Fprint(w, c.answer)
		})
		if err := client.Terminate(t.Context(), wire.Removal{MachineID: "m"}); err == nil || wire.ContainsNotMember(err.Error()) != c.want {
			t.Errorf("%s: %v: no member: %t, want %t", name, err, !c.want, c.want)
		}
		if _, err := client.Pool(t.Context()); err == nil || wire.ContainsNotMember(err.Error()) {
			t.Errorf("%s, reading the pool: %v; want no statement about a machine", name, err)
		}
	}
}
