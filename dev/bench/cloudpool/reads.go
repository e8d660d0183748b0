package cloudpool

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// readTimes holds the durations of read requests on four routes: through slipway cloudpool, twice through a bare proxy,
// and directly to the server. The nth durations belong to one turn: the four reads followed one another directly.
type readTimes struct{ proxied, forwarded, forwardedAgain, direct []time.Duration }

// pairedLatency returns how much slower reads through slipway cloudpool are than the reads through the bare proxy in the
// same turns, at the given percentile of the differences.
func (r readTimes) pairedLatency(p int) time.Duration {
	return percentile(subtract(r.proxied, r.forwarded), p)
}

// pairedFloor returns the same for the second reads through the bare proxy. It is not 0 at high percentiles, because a pause
// of the machine can slow down one read of a turn.
func (r readTimes) pairedFloor(p int) time.Duration {
	return percentile(subtract(r.forwardedAgain, r.forwarded), p)
}

// subtract returns the differences of the durations with the same index.
func subtract(a, b []time.Duration) []time.Duration {
	differences := make([]time.Duration, len(a))
	for i := range a {
		differences[i] = a[i] - b[i]
	}
	return differences
}

// addedLatency returns how much slower reads through slipway cloudpool are than reads through the bare proxy, at the
// given percentile of each. Slow turns on all routes can hide single slow reads from it.
func (r readTimes) addedLatency(p int) time.Duration {
	return percentile(r.proxied, p) - percentile(r.forwarded, p)
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
	text := fmt.Sprintf("%d times through Slipway, twice through a bare proxy, and direct, directly after one another in random order", len(r.proxied))
	for _, p := range []int{99, 90, 50} {
		text += fmt.Sprintf(", p%d %.2f, %.2f and %.2f ms", p, toMillis(percentile(r.proxied, p)), toMillis(percentile(r.forwarded, p)), toMillis(percentile(r.direct, p)))
	}
	return text
}

// readGCPercent is the GOGC value of this process during the reads. More frequent garbage collection on the same
// cores would distort the percentiles.
const readGCPercent = 800

// readSizes reads the pool's size at a constant rate until ctx ends. Each read on one route is directly followed by
// reads on the other three, so that a pause of the machine affects all routes alike. The order of the routes is random
// in each turn, because a route could be slower after a certain other one.
func (s *testPool) readSizes(ctx context.Context) (readTimes, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(readGCPercent))
	var mu sync.Mutex
	var got readTimes
	var wrong error
	var all sync.WaitGroup
	bases := [routes]string{s.front, s.bare, s.bare, s.server.URL}
	turn := func(order []int) {
		var took [routes]time.Duration
		for _, route := range order {
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
		got.proxied, got.forwarded = append(got.proxied, took[0]), append(got.forwarded, took[1])
		got.forwardedAgain, got.direct = append(got.forwardedAgain, took[2]), append(got.direct, took[3])
	}
	ticker := time.NewTicker(routes * time.Second / readsPerSecond)
	defer ticker.Stop()
	random := rand.New(rand.NewPCG(orderSeed, 0))
	for {
		select {
		case <-ctx.Done():
			all.Wait()
			return got, wrong
		case <-ticker.C:
		}
		order := random.Perm(routes)
		all.Go(func() { turn(order) })
	}
}

// readClient limits the number of concurrent requests on each route. The duration of a request includes the wait for
// a connection.
var readClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections}}

const (
	routes      = 4
	connections = 100
	// orderSeed determines the order of the routes.
	orderSeed = 1
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
