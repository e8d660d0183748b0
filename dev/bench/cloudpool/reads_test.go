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
	if n := len(got.proxied); n == 0 || len(got.forwarded) != n || len(got.forwardedAgain) != n || len(got.direct) != n {
		t.Errorf("%d, %d, %d and %d reads, want the same number on each route", n, len(got.forwarded), len(got.forwardedAgain), len(got.direct))
	}
	if added := got.pairedLatency(50); added < slower/2 {
		t.Errorf("median difference %s, want about %s", added, slower)
	}
	if floor := got.pairedFloor(50); floor > slower/2 {
		t.Errorf("median difference of the bare proxy's reads %s, want about 0", floor)
	}
}

func TestPausesOfMachineAreNotAddedByProxy(t *testing.T) {
	const pause, slower = 10 * time.Millisecond, 500 * time.Microsecond
	// delays are additional times of the reads in one turn: through slipway cloudpool, and twice through the bare proxy.
	type delays [3]time.Duration
	for name, tc := range map[string]struct {
		every delays   // in each turn
		some  []delays // in the first of 50 turns
		want  time.Duration
	}{
		"slower in every turn":                       {delays{slower, 0, 0}, nil, slower},
		"pauses in single reads on all routes":       {delays{}, []delays{{pause, 0, 0}, {0, pause, 0}, {0, 0, pause}}, 0},
		"slow reads hidden by turns that are slower": {delays{}, []delays{{2 * pause, 2 * pause, 2 * pause}, {pause, 0, 0}}, pause},
	} {
		t.Run(name, func(t *testing.T) {
			var r readTimes
			for i := range 1000 {
				took := tc.every
				if i%50 < len(tc.some) {
					took = tc.some[i%50]
				}
				r.proxied, r.forwarded, r.forwardedAgain = append(r.proxied, took[0]), append(r.forwarded, took[1]), append(r.forwardedAgain, took[2])
			}
			if got := r.pairedLatency(99) - r.pairedFloor(99); got != tc.want {
				t.Errorf("%s above the floor, want %s", got, tc.want)
			}
		})
	}
}
