package cloud

import (
	"sync"
	"time"
)

// The timeouts of one call to a cloud, however the provider waits inside it.
const (
	ReadTimeout   = 30 * time.Second
	ChangeTimeout = 2 * time.Minute // of Grow and Delete: a timeout loses the answer
)

// SlotBusy is how long to wait before a provider's slot is asked for again.
const SlotBusy = 100 * time.Millisecond

// Slots limit how many workers one provider occupies at a time, so that a cloud that hangs leaves workers for the others. The zero value
// has one slot for each provider.
type Slots struct {
	most int

	mu    sync.Mutex
	taken map[string]int
}

// NewSlots shares workers evenly between the providers, at least one for each.
func NewSlots(workers int, clouds map[string]Provider) *Slots {
	return &Slots{most: workers / max(1, len(clouds))}
}

// TryAcquire takes a slot of a provider until release is called; false when all of its slots are taken.
func (s *Slots) TryAcquire(provider string) (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[provider] >= max(1, s.most) {
		return nil, false
	}
	if s.taken == nil {
		s.taken = map[string]int{}
	}
	s.taken[provider]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken[provider]--
	}, true
}
