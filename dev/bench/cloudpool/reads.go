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

// readTimes holds the durations of read requests on three routes: through slipway cloudpool, through a bare proxy,
// and directly to the server. The nth durations belong together: the three reads followed one another directly.
type readTimes struct{ proxied, forwarded, direct []time.Duration }

// addedLatency returns how much slower reads through slipway cloudpool are than reads through the bare proxy, at the
// given percentile.
func (r readTimes) addedLatency(p int) time.Duration {
	return percentile(r.proxied, p) - percentile(r.forwarded, p)
}

// addedMedian returns the median of the differences between the reads through slipway cloudpool and the bare proxy
// that belong together.
func (r readTimes) addedMedian() time.Duration {
	differences := make([]time.Duration, len(r.proxied))
	for i := range r.proxied {
		differences[i] = r.proxied[i] - r.forwarded[i]
	}
	return percentile(differences, 50)
}

// directLatency returns how much slower reads through slipway cloudpool are than direct reads, at the given
// percentile. forwardLatency returns the same for the bare proxy.
func (r readTimes) directLatency(p int) time.Duration {
	return percentile(r.proxied, p) - percentile(r.direct, p)
}

func (r readTimes) forwardLatency(p int) time.Duration {
	return percentile(r.forwarded, p) - percentile(r.direct, p)
}

func (r readTimes) String() string {
	text := fmt.Sprintf("%d times through Slipway, through a bare proxy and direct, directly after one another", len(r.proxied))
	for _, p := range []int{99, 90, 50} {
		text += fmt.Sprintf(", p%d %.2f, %.2f and %.2f ms", p, toMillis(percentile(r.proxied, p)), toMillis(percentile(r.forwarded, p)), toMillis(percentile(r.direct, p)))
	}
	return text
}

// readGCPercent is the GOGC value of this process during the reads. More frequent garbage collection on the same
// cores would distort the percentiles.
const readGCPercent = 800

// readSizes reads the pool's size at a constant rate until ctx ends. Each read on one route is directly followed by
// reads on the other two, so that a pause of the machine affects all routes alike. The order of the routes changes
// with each turn.
func (s *testPool) readSizes(ctx context.Context) (readTimes, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(readGCPercent))
	var mu sync.Mutex
	var got readTimes
	var wrong error
	var all sync.WaitGroup
	bases := [routes]string{s.front, s.bare, s.server.URL}
	turn := func(first int) {
		var took [routes]time.Duration
		for i := range routes {
			route := (first + i) % routes
			began := time.Now()
			_, code, err := httpGet(context.WithoutCancel(ctx), bases[route]+"/pool/size")
			took[route] = time.Since(began)
			if err != nil || code != http.StatusOK {
				mu.Lock()
				defer mu.Unlock()
				wrong = fmt.Errorf("GET %s/pool/size: %d, %w", bases[route], code, err)
				return
			}
		}
		mu.Lock()
		defer mu.Unlock()
		got.proxied, got.forwarded, got.direct = append(got.proxied, took[0]), append(got.forwarded, took[1]), append(got.direct, took[2])
	}
	ticker := time.NewTicker(routes * time.Second / readsPerSecond)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			all.Wait()
			return got, wrong
		case <-ticker.C:
		}
		all.Go(func() { turn(n % routes) })
	}
}

// readClient limits the number of concurrent requests on each route. The duration of a request includes the wait for
// a connection.
var readClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections}}

const (
	routes      = 3
	connections = 100
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

// percentile returns the smallest value that is at least as large as p percent of the values.
func percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}
