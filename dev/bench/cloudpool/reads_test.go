package cloudpool

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestReadsAreComparedWithBareProxyReads(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	const slower = 20 * time.Millisecond
	newServer := func(delay time.Duration) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(delay) }))
		t.Cleanup(s.Close)
		return s
	}
	pool := &testPool{server: newServer(0), front: newServer(slower).URL, bare: newServer(0).URL}
	got, err := pool.readSizes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got.proxied); n == 0 || len(got.forwarded) != n || len(got.direct) != n {
		t.Errorf("%d, %d and %d reads, want the same number on each route", n, len(got.forwarded), len(got.direct))
	}
	if added := got.addedMedian(); added < slower/2 {
		t.Errorf("median difference %s, want about %s", added, slower)
	}
}
