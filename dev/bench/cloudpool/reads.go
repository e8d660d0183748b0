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

// readTimes are the durations of requests, alternating every tenth of a second: through Slipway, through a bare proxy, and
// direct.
type readTimes struct{ proxied, forwarded, direct []time.Duration }

// addedLatency returns the additional latency of Slipway at a percentile. floor returns that of the bare proxy.
func (r readTimes) addedLatency(p int) time.Duration {
	return percentile(r.proxied, p) - percentile(r.direct, p)
}

func (r readTimes) forwardLatency(p int) time.Duration {
	return percentile(r.forwarded, p) - percentile(r.direct, p)
}

func (r readTimes) String() string {
	text := fmt.Sprintf("%d times through Slipway, through a bare proxy and direct, alternating every tenth of a second", len(r.proxied))
	for _, p := range []int{99, 90, 50} {
		text += fmt.Sprintf(", p%d %.2f, %.2f and %.2f ms", p, toMillis(percentile(r.proxied, p)), toMillis(percentile(r.forwarded, p)), toMillis(percentile(r.direct, p)))
	}
	return text
}

// readGCPercent is GOGC of this process during the reads. Frequent garbage collection on the same cores would distort the
// percentiles.
const readGCPercent = 800

// readSizes reads the size at a constant rate until ctx ends. The ways alternate, so that the number of concurrent reads is
// constant. Turns are short, so that a pause of the machine affects all ways alike. Each round starts with another way.
func (s *testPool) readSizes(ctx context.Context) (readTimes, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(readGCPercent))
	var mu sync.Mutex
	var got readTimes
	var wrong error
	var all sync.WaitGroup
	ask := func(base string, into *[]time.Duration) {
		began := time.Now()
		_, code, err := httpGet(context.WithoutCancel(ctx), base+"/pool/size")
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
		round, turn := n/readsPerTurn/routes, n/readsPerTurn%routes
		all.Go(func() {
			switch (round + turn) % routes {
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

// readClient limits the concurrent requests per way. Waiting for a connection counts as part of the duration.
var readClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections}}

const (
	routes       = 3
	readsPerTurn = readsPerSecond / 10
	connections  = 100
)

func httpGet(ctx context.Context, url string) (body []byte, statusCode int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, err
	}
	response, err := readClient.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = response.Body.Close() }() // after reading to the end
	raw, err := io.ReadAll(response.Body)
	return raw, response.StatusCode, err
}

// percentile returns the smallest value that at least p percent of the values do not exceed.
func percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}
