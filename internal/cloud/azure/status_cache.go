package azure

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/sharedread"
)

// statusCache caches the status of operations by URL. All instances of one batch deletion have the same operation, so
// their callers share one response.
type statusCache struct {
	// maxAge is how long a response is reused. It delays the detection of the end by at most as long.
	maxAge time.Duration

	mu    sync.Mutex
	byURL map[string]*statusEntry
}

// fetchStatusFunc reads the status URL of an operation once.
type fetchStatusFunc func(ctx context.Context, address string) (status cloud.OperationStatus, forgotten bool, err error)

// statusEntry holds the last response of one status URL.
type statusEntry struct {
	lastUsed time.Time // last use; guarded by statusCache.mu
	shared   sharedread.Reader[statusResult]
}

type statusResult struct {
	status    cloud.OperationStatus
	forgotten bool
}

const (
	// maxStatusAge limits statusCache.maxAge.
	maxStatusAge = time.Second
	// statusEntryTTL is how long an unused URL stays in the cache.
	statusEntryTTL = time.Minute
)

// get returns the status of an operation, from the cache or from the URL. Concurrent callers share a response, see
// [sharedread.Reader].
func (s *statusCache) get(ctx context.Context, address string, fetch fetchStatusFunc) (status cloud.OperationStatus, forgotten bool, err error) {
	a, err := s.getOrCreateEntry(address, time.Now()).shared.Read(ctx, func(ctx context.Context) (a statusResult, err error) {
		a.status, a.forgotten, err = fetch(ctx, address)
		return a, err
	})
	return a.status, a.forgotten, err
}

func (s *statusCache) getOrCreateEntry(address string, now time.Time) *statusEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byURL, func(_ string, r *statusEntry) bool { return now.Sub(r.lastUsed) >= statusEntryTTL })
	r := s.byURL[address]
	if r == nil {
		if s.byURL == nil {
			s.byURL = map[string]*statusEntry{}
		}
		r = &statusEntry{shared: sharedread.Reader[statusResult]{ReuseFor: s.maxAge}}
		s.byURL[address] = r
	}
	r.lastUsed = now
	return r
}
