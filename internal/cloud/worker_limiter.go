package cloud

import (
	"sync"
	"time"
)

// ReadTimeout and ChangeTimeout limit one call to a cloud, including every wait inside the provider.
const (
	ReadTimeout   = 30 * time.Second
	ChangeTimeout = 2 * time.Minute // for Grow and Delete: after a timeout the result is unknown
)

// WorkerRetryDelay is the delay before a retry if all workers of a provider are busy.
const WorkerRetryDelay = 100 * time.Millisecond

// WorkerLimiter limits how many workers call one provider at the same time. So a cloud that hangs cannot block all
// workers. The zero value allows one worker per provider.
type WorkerLimiter struct {
	perProvider int

	mu   sync.Mutex
	busy map[string]int
}

// NewWorkerLimiter returns a limiter that divides the workers evenly between the providers. Each provider gets at least
// one worker.
func NewWorkerLimiter(workers int, clouds map[string]Provider) *WorkerLimiter {
	return &WorkerLimiter{perProvider: workers / max(1, len(clouds))}
}

// TryAcquire reserves a worker for a provider. The caller frees the worker with release. ok is false if all workers of
// the provider are busy.
func (s *WorkerLimiter) TryAcquire(provider string) (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[provider] >= max(1, s.perProvider) {
		return nil, false
	}
	if s.busy == nil {
		s.busy = map[string]int{}
	}
	s.busy[provider]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.busy[provider]--
	}, true
}
