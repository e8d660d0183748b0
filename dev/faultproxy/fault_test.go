package faultproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/dev/faultproxy"
)

func read(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestStaleResponseIsEarlierResponse(t *testing.T) {
	p := faultproxy.New(byMethod)
	p.SetFaults(func(r faultproxy.Request) faultproxy.Fault {
		switch r.Nth {
		case 1, 3, 4: // the first request has no earlier answer
			return faultproxy.Fault{StaleWithin: time.Hour}
		case 5:
			return faultproxy.Fault{StaleWithin: time.Nanosecond}
		}
		return faultproxy.Fault{}
	})
	var n atomic.Int32
	address, served := startProxiedServer(t, p, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, n.Add(1)) })
	for i, want := range []string{"1", "2", "2", "2", "3"} {
		if got := read(t, address+"/thing"); got != want {
			t.Errorf("request %d was answered %s, want %s", i+1, got, want)
		}
	}
	if got := read(t, address+"/other"); got != "4" || served.Load() != 4 {
		t.Errorf("another path was answered %s after %d requests to the server", got, served.Load())
	}
}

func TestWatchLagDelaysEventsInOrder(t *testing.T) {
	const lag = 30 * time.Millisecond
	p := faultproxy.New(byMethod)
	p.SetFaults(func(faultproxy.Request) faultproxy.Fault { return faultproxy.Fault{WatchLag: lag} })
	address, _ := startProxiedServer(t, p, func(w http.ResponseWriter, _ *http.Request) {
		for i := range 3 {
			_, _ = fmt.Fprintln(w, i)
			_ = http.NewResponseController(w).Flush()
		}
	})
	began := time.Now()
	resp, err := http.Get(address + "/things?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var lines []string
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		lines = append(lines, s.Text())
	}
	if fmt.Sprint(lines) != "[0 1 2]" || time.Since(began) < lag {
		t.Errorf("%v after %s, want 0, 1 and 2 after at least %s", lines, time.Since(began), lag)
	}
}

func TestGuardRunsBeforeForwarding(t *testing.T) {
	p := faultproxy.New(byMethod)
	var reached atomic.Bool
	p.OnWrite(func(_ context.Context, r faultproxy.Request, body []byte) {
		if r.Method != http.MethodPost || string(body) != "please" || reached.Load() {
			t.Errorf("%s with %q; request at the server: %t", r.Method, body, reached.Load())
		}
	})
	address, _ := startProxiedServer(t, p, func(w http.ResponseWriter, r *http.Request) {
		reached.Store(true)
		_, _ = io.Copy(w, r.Body)
	})
	resp, err := http.Post(address, "text/plain", bytes.NewBufferString("please"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "please" {
		t.Errorf("the server received %q, %v", text, err)
	}
}

func TestAbandonedRequestIsNotForwardedAfterGuard(t *testing.T) {
	p := faultproxy.New(byMethod)
	ctx, giveUp := context.WithCancel(t.Context())
	done := make(chan struct{})
	p.OnWrite(func(ctx context.Context, _ faultproxy.Request, _ []byte) {
		defer close(done)
		giveUp()
		<-ctx.Done()
	})
	var reached atomic.Bool
	address, _ := startProxiedServer(t, p, func(http.ResponseWriter, *http.Request) { reached.Store(true) })
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewBufferString("please"))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(request); err == nil {
		_ = resp.Body.Close()
		t.Errorf("the response is %s", resp.Status)
	}
	<-done
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if reached.Load() {
		t.Error("the server received the request")
	}
}

func TestScheduleIsDeterministic(t *testing.T) {
	odds := faultproxy.FaultRates{Percent: 30, Delay: time.Second, Stale: time.Second}
	failed := 0
	one, same, other := faultproxy.NewFaultSchedule(7, odds), faultproxy.NewFaultSchedule(7, odds), faultproxy.NewFaultSchedule(8, odds)
	differs := false
	for n := range 1000 {
		r := faultproxy.Request{RequestID: faultproxy.RequestID{Kind: "GET", Nth: n}}
		fault := one(r)
		if fault != same(r) {
			t.Fatalf("%s has the fault %+v and then %+v", r, fault, same(r))
		}
		differs = differs || fault != other(r)
		if fault != (faultproxy.Fault{}) {
			failed++
		}
	}
	if failed < 200 || failed > 400 || !differs {
		t.Errorf("%d of 1000 requests fail, want about 300; another seed differs: %t", failed, differs)
	}
}
