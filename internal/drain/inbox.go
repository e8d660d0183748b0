package drain

import (
	"sync"
	"time"
)

// news is something the engine has to hear of. It runs in the engine's goroutine.
type news func(now time.Time)

// inbox brings what the watch and the requests have learned to the engine. Putting never blocks, so that a watch is
// not held up by the engine and nothing is lost when a drain ends while answers are on their way. The zero value is
// not usable.
type inbox struct {
	mu    sync.Mutex
	queue []news
	// filled holds one token while the queue may hold something.
	filled chan struct{}
}

func newInbox() *inbox { return &inbox{filled: make(chan struct{}, 1)} }

// put adds n, which may be nil to do nothing but wake the engine.
func (b *inbox) put(n news) {
	b.mu.Lock()
	if n != nil {
		b.queue = append(b.queue, n)
	}
	b.mu.Unlock()
	select {
	case b.filled <- struct{}{}:
	default:
	}
}

// take returns everything put so far, in order, so that a burst of events costs one decision.
func (b *inbox) take() []news {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.queue
	b.queue = nil
	return all
}
