package drain

import (
	"sync"
	"time"
)

// inboxEvent is a result for the engine. It runs in the engine's goroutine.
type inboxEvent func(now time.Time)

// inbox passes results of the watch and of requests to the engine. put never blocks: the engine does not delay the
// watch, and no answer is lost when a drain ends. The zero value is not usable.
type inbox struct {
	mu    sync.Mutex
	queue []inboxEvent
	// filled holds one token while the queue may hold an event.
	filled chan struct{}
}

func newInbox() *inbox { return &inbox{filled: make(chan struct{}, 1)} }

// putAndWake adds n and wakes the engine. A nil n only wakes it.
func (b *inbox) putAndWake(n inboxEvent) {
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

// takeAll returns all events in order and empties the queue. So a burst of events costs one decision.
func (b *inbox) takeAll() []inboxEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.queue
	b.queue = nil
	return all
}
