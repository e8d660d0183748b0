package azure

import (
	"context"
	"sync"
	"time"
)

// maxBatch is how many deletions are one request.
const maxBatch = 100

// deletion is one machine of a batch.
type deletion struct {
	machine found
	name    string // by which the request names the machine
}

// outcome is what became of one deletion's request: where to ask for it, or why there is none.
type outcome struct {
	url string
	err error
}

// batcher gathers deletions of one group that come close together. Its send is called with one group's deletions, each
// machine once, and answers each by its place; it is bounded by limit, and by no caller's context, as it is not one
// caller's alone.
type batcher struct {
	window time.Duration
	limit  time.Duration
	send   func(ctx context.Context, where place, deletions []deletion) []outcome

	mu      sync.Mutex
	pending map[string]*batch // by place's key
}

// place is where deletions are sent.
type place struct {
	group
	flexible bool
}

type batch struct {
	waiting []*waiter
	full    chan struct{}
}

type waiter struct {
	deletion
	done chan outcome // holds one, so that a caller that has left is not waited for
}

// delete joins a batch and returns what became of it. A caller that leaves before the batch was sent takes its deletion
// with it.
func (b *batcher) delete(ctx context.Context, where place, d deletion) outcome {
	w := &waiter{deletion: d, done: make(chan outcome, 1)}
	b.join(ctx, where, w)
	select {
	case out := <-w.done:
		return out
	case <-ctx.Done():
	}
	b.leave(where.key(), w)
	return outcome{err: context.Cause(ctx)}
}

func (b *batcher) join(ctx context.Context, where place, w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := where.key()
	current := b.pending[key]
	if current == nil {
		current = &batch{full: make(chan struct{})}
		b.pending[key] = current
		go b.run(context.WithoutCancel(ctx), where, current)
	}
	current.waiting = append(current.waiting, w)
	if len(current.waiting) == maxBatch {
		delete(b.pending, key)
		close(current.full)
	}
}

func (b *batcher) leave(key string, w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.pending[key]
	if current == nil {
		return
	}
	for i := range current.waiting {
		if current.waiting[i] == w {
			current.waiting = append(current.waiting[:i], current.waiting[i+1:]...)
			return
		}
	}
}

// run waits for a batch to be due and sends it.
func (b *batcher) run(ctx context.Context, where place, current *batch) {
	timer := time.NewTimer(b.window)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-current.full:
	}
	b.mu.Lock()
	if b.pending[where.key()] == current {
		delete(b.pending, where.key())
	}
	waiting := current.waiting
	current.waiting = nil
	b.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	machines, at := distinct(waiting)
	outcomes := b.send(ctx, where, machines)
	for i, w := range waiting {
		w.done <- outcomes[at[i]]
	}
}

// distinct gives each machine once, and where each waiter's is.
func distinct(waiting []*waiter) (machines []deletion, at []int) {
	places := map[string]int{}
	for _, w := range waiting {
		i, twice := places[w.machine.ProviderID]
		if !twice {
			i = len(machines)
			places[w.machine.ProviderID] = i
			machines = append(machines, w.deletion)
		}
		at = append(at, i)
	}
	return machines, at
}
