package notify

import (
	"context"
	"sync"
)

// defaultQueue is how many messages wait for a receiver at most.
const defaultQueue = 64

// item is a message that waits.
type item struct {
	message Message
	tried   bool
	tries   int // of this round
}

// queue holds what waits for one receiver. It is safe for concurrent use.
type queue struct {
	mu    sync.Mutex
	items []*item
	size  int
	busy  *item         // being sent
	news  chan struct{} // of capacity 1
}

func newQueue(size int) *queue { return &queue{size: size, news: make(chan struct{}, 1)} }

// add queues a message, and gives the oldest one back when there was no room for both: what happened last says more.
func (q *queue) add(m Message) (dropped *item) {
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
	case q.news <- struct{}{}:
	default:
	}
	return dropped
}

// first waits for the message that is next, and leaves it in the queue; nil once ctx has ended.
func (q *queue) first(ctx context.Context) *item {
	for ctx.Err() == nil {
		if i := q.take(); i != nil {
			return i
		}
		select {
		case <-q.news:
		case <-ctx.Done():
		}
	}
	return nil
}

// take marks the first message as being sent.
func (q *queue) take() *item {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return nil
	}
	q.busy = q.items[0]
	return q.busy
}

// takeUntried marks the first message that was never tried as being sent.
func (q *queue) takeUntried() *item {
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

// leave ends the sending of a message: it is removed when it is done with, or goes to the end for the others' sake.
func (q *queue) leave(i *item, done, toEnd bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busy, i.tried = nil, true
	if !done && !toEnd {
		return
	}
	for at, other := range q.items {
		if other != i {
			continue
		}
		q.items = append(q.items[:at:at], q.items[at+1:]...)
		if toEnd && !done {
			q.items = append(q.items, i)
		}
		return
	}
}

// idle reports that every message has been tried.
func (q *queue) idle() bool {
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
