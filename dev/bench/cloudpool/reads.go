package cloudpool

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// reads are how long requests took, past the proxy and through it, in pairs of the same moment.
type reads struct{ direct, proxied []time.Duration }

// added is by how much a percentile is larger through the proxy.
func (r reads) added(p int) time.Duration { return percentile(r.proxied, p) - percentile(r.direct, p) }

func (r reads) String() string {
	return fmt.Sprintf("%d times through the proxy and as often past it, in turns: p99 %.2f ms and %.2f ms, p90 %.2f ms and %.2f ms, p50 %.2f ms and %.2f ms",
		len(r.proxied), ms(percentile(r.proxied, 99)), ms(percentile(r.direct, 99)), ms(percentile(r.proxied, 90)), ms(percentile(r.direct, 90)),
		ms(percentile(r.proxied, 50)), ms(percentile(r.direct, 50)))
}

// read reads the size until ctx ends, each way so many times per second however long it takes. Which of the two is first
// changes each time, so that neither finds warmer caches than the other.
func (s *stage) read(ctx context.Context) (reads, error) {
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
		all.Go(func() {
			if n%2 == 0 {
				ask(s.server.URL, &got.direct)
				ask(s.front, &got.proxied)
				return
			}
			ask(s.front, &got.proxied)
			ask(s.server.URL, &got.direct)
		})
	}
}

// client has so many requests under way at a time to each of the two. One that has to wait for others does so on the clock.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections}}

const connections = 100

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
