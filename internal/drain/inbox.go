package drain

import (
	"sync"
	"time"
)

// inboxEvent changes the engine's state after a result has arrived. The engine's goroutine calls it.
type inboxEvent func(now time.Time)

// inbox is a queue that passes results of the watch and of requests to the engine. putAndWake never blocks. So the
// engine does not delay the watch, and every answer is kept when a drain ends. newInbox makes one; the zero value is
// not usable.
type inbox struct {
	mu    sync.Mutex
	queue []inboxEvent
	// filled holds one token while the queue may hold an event.
	filled chan struct{}
}

func newInbox() *inbox { return &inbox{filled: make(chan struct{}, 1)} }

// putAndWake adds n to the queue and wakes the engine. If n is nil, it only wakes the engine.
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

// takeAll empties the queue and returns its events in order. The engine then decides once for all of them.
func (b *inbox) takeAll() []inboxEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.queue
	b.queue = nil
	return all
}
