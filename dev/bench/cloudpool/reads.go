package cloudpool

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// reads are how long requests took, in turns of a tenth of a second: through Slipway, through a proxy that does nothing but forward,
// and past both.
type reads struct{ proxied, forwarded, direct []time.Duration }

// added is by how much a percentile is larger through Slipway, and floor by how much through the bare proxy.
func (r reads) added(p int) time.Duration { return percentile(r.proxied, p) - percentile(r.direct, p) }

func (r reads) floor(p int) time.Duration {
	return percentile(r.forwarded, p) - percentile(r.direct, p)
}

func (r reads) String() string {
	said := fmt.Sprintf("%d times through Slipway, as often through a bare proxy and past both, a tenth of a second each in turns", len(r.proxied))
	for _, p := range []int{99, 90, 50} {
		said += fmt.Sprintf(", p%d %.2f, %.2f and %.2f ms", p, ms(percentile(r.proxied, p)), ms(percentile(r.forwarded, p)), ms(percentile(r.direct, p)))
	}
	return said
}

// readersGC is how seldom this process collects garbage while it reads, as GOGC: what it does on the cores of the front, the
// front's percentiles show.
const readersGC = 800

// read reads the size until ctx ends, so many times per second however long it takes. The ways take turns: at any moment there are
// as many reads as are said, and no more. A turn is short, so that a moment in which the machine itself stands still falls on all
// ways alike. Which way is first changes each round.
func (s *stage) read(ctx context.Context) (reads, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(readersGC))
	var mu sync.Mutex
	var got reads
	var wrong error
	var all sync.WaitGroup
	ask := func(base string, into *[]time.Duration) {
		began := time.Now()
		_, code, err := get(context.WithoutCancel(ctx), base+"/pool/size")
		took := time.Since(began)
		mu.Lock()
		defer mu.Unlock()
		*into = append(*into, took)
		if err != nil || code != http.StatusOK {
			wrong = fmt.Errorf("GET %s/pool/size: %d, %w", base, code, err)
		}
	}
	ticker := time.NewTicker(time.Second / readsPerSecond)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			all.Wait()
			return got, wrong
		case <-ticker.C:
		}
		round, turn := n/readsPerTurn/ways, n/readsPerTurn%ways
		all.Go(func() {
			switch (round + turn) % ways {
			case 0:
				ask(s.front, &got.proxied)
			case 1:
				ask(s.bare, &got.forwarded)
			default:
				ask(s.server.URL, &got.direct)
			}
		})
	}
}

// client has so many requests under way at a time each way. One that has to wait for others does so on the clock.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections}}

const (
	ways         = 3
	readsPerTurn = readsPerSecond / 10
	connections  = 100
)

func get(ctx context.Context, url string) ([]byte, int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, err
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = response.Body.Close() }() // after a read to the end
	raw, err := io.ReadAll(response.Body)
	return raw, response.StatusCode, err
}

// percentile is the smallest of which at least p in a hundred are no larger.
func percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}
