package azure

import (
	"context"
	"sync"
	"time"
)

// maxBatchSize is the maximum number of deletions in one request.
const maxBatchSize = 100

// deletion is one instance of a batch deletion.
type deletion struct {
	instance vmInstance
	name     string // the instance's name in the request
}

// deletionResult is the result of one deletion request: the URL of its operation, or an error.
type deletionResult struct {
	operationURL string
	err          error
}

// deletionBatcher combines concurrent deletions of one group into one request. It calls send once per batch, without
// duplicates. send returns one result per deletion in the same order. A call of send ends after timeout. The call
// ignores the contexts of its callers, because several callers share it.
type deletionBatcher struct {
	window  time.Duration
	timeout time.Duration
	send    func(ctx context.Context, where deletionTarget, deletions []deletion) []deletionResult

	mu      sync.Mutex
	pending map[string]*deletionBatch // by deletionTarget.key
}

// deletionTarget is the scale set or agent pool that deletes the instances of a batch.
type deletionTarget struct {
	group
	flexible bool
}

type deletionBatch struct {
	waiters []*waiter
	full    chan struct{}
}

type waiter struct {
	deletion
	result chan deletionResult // buffered, so that no send waits for a caller that has returned
}

// deleteInstance adds a deletion to a batch and returns the result of the request. If ctx ends before the batch is
// sent, deleteInstance removes the deletion from the batch.
func (b *deletionBatcher) deleteInstance(ctx context.Context, where deletionTarget, d deletion) deletionResult {
	w := &waiter{deletion: d, result: make(chan deletionResult, 1)}
	b.addToBatch(ctx, where, w)
	select {
	case out := <-w.result:
		return out
	case <-ctx.Done():
	}
	b.removeFromBatch(where.key(), w)
	return deletionResult{err: context.Cause(ctx)}
}

func (b *deletionBatcher) addToBatch(ctx context.Context, where deletionTarget, w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := where.key()
	current := b.pending[key]
	if current == nil {
		current = &deletionBatch{full: make(chan struct{})}
		b.pending[key] = current
		go b.sendWhenDue(context.WithoutCancel(ctx), where, current)
	}
	current.waiters = append(current.waiters, w)
	if len(current.waiters) == maxBatchSize {
		delete(b.pending, key)
		close(current.full)
	}
}

func (b *deletionBatcher) removeFromBatch(key string, w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.pending[key]
	if current == nil {
		return
	}
	for i := range current.waiters {
		if current.waiters[i] == w {
			current.waiters = append(current.waiters[:i], current.waiters[i+1:]...)
			return
		}
	}
}

// sendWhenDue waits until the batch is full or the batch window ends. Then it sends the batch and passes each waiter
// its result.
func (b *deletionBatcher) sendWhenDue(ctx context.Context, where deletionTarget, current *deletionBatch) {
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
	waiting := current.waiters
	current.waiters = nil
	b.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	machines, at := deduplicate(waiting)
	outcomes := b.send(ctx, where, machines)
	for i, w := range waiting {
		w.result <- outcomes[at[i]]
	}
}

// deduplicate returns each instance of the waiters once. indexes holds, for each waiter, the index of its instance in
// machines.
func deduplicate(waiting []*waiter) (machines []deletion, indexes []int) {
	places := map[string]int{}
	for _, w := range waiting {
		i, twice := places[w.instance.ProviderID]
		if !twice {
			i = len(machines)
			places[w.instance.ProviderID] = i
			machines = append(machines, w.deletion)
		}
		indexes = append(indexes, i)
	}
	return machines, indexes
}
