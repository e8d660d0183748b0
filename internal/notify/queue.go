package notify

import (
	"context"
	"sync"
)

// defaultQueue is how many messages may wait for a receiver.
const defaultQueue = 64

// item is a message in a queue.
type item struct {
	message Message
	tried   bool
	tries   int // in the present round
}

// queue holds the messages for one receiver. It is safe for concurrent use.
type queue struct {
	mu      sync.Mutex
	items   []*item
	size    int
	busy    *item         // being sent
	changed chan struct{} // of capacity 1
}

func newQueue(size int) *queue { return &queue{size: size, changed: make(chan struct{}, 1)} }

// addDroppingOldest queues a message. If the queue is full, it drops and returns the oldest message, because the latest one matters
// more.
func (q *queue) addDroppingOldest(m Message) (dropped *item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) >= q.size {
		oldest := 0
		if q.items[0] == q.busy && len(q.items) > 1 {
			oldest = 1
		}
		dropped = q.items[oldest]
		q.items = append(q.items[:oldest:oldest], q.items[oldest+1:]...)
	}
	q.items = append(q.items, &item{message: m})
	select {
	case q.changed <- struct{}{}:
	default:
	}
	return dropped
}

// awaitNext waits for the next message, and leaves it in the queue. It returns nil once ctx has ended.
func (q *queue) awaitNext(ctx context.Context) *item {
	for ctx.Err() == nil {
		if i := q.markFirstBusy(); i != nil {
			return i
		}
		select {
		case <-q.changed:
		case <-ctx.Done():
		}
	}
	return nil
}

// markFirstBusy marks the first message as being sent.
func (q *queue) markFirstBusy() *item {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return nil
	}
	q.busy = q.items[0]
	return q.busy
}

// markFirstUntriedBusy marks the first untried message as being sent.
func (q *queue) markFirstUntriedBusy() *item {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, i := range q.items {
		if !i.tried {
			q.busy = i
			return i
		}
	}
	return nil
}

// finishSending ends the sending of a message. It removes a done message, and moves a failed one to the end if moveToEnd is
// true.
func (q *queue) finishSending(i *item, done, moveToEnd bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busy, i.tried = nil, true
	if !done && !moveToEnd {
		return
	}
	for at, other := range q.items {
		if other != i {
			continue
		}
		q.items = append(q.items[:at:at], q.items[at+1:]...)
		if moveToEnd && !done {
			q.items = append(q.items, i)
		}
		return
	}
}

// areAllTried reports that every message has been tried.
func (q *queue) areAllTried() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, i := range q.items {
		if !i.tried {
			return false
		}
	}
	return true
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)
}
