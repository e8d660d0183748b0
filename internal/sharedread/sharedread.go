// Package sharedread lets concurrent callers of the same read share one answer.
package sharedread

import (
	"context"
	"sync"
	"time"
)

// Reader runs a read for several callers at once and gives all of them its answer. The zero value is ready to use.
type Reader[T any] struct {
	// ReuseFor is how long an answer serves later callers, from the beginning of its read. With 0 it serves only callers that
	// wait for the read to begin.
	ReuseFor time.Duration

	once sync.Once
	turn chan struct{} // holds one element while a caller asks, or uses the last answer

	began, ended time.Time // of the last read
	answer       T
	err          error

	mu       sync.Mutex
	outdated time.Time
}

// Outdate makes later calls of Read read again. A caller uses it after a change, because a read that began before may
// lack the change.
func (r *Reader[T]) Outdate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outdated = time.Now()
}

// Read returns an answer of ask. It calls ask only if no earlier answer is recent enough. An answer is recent enough if
// its read began at most ReuseFor before the call, and after the last call of Outdate. Callers share the answer and
// must not change it. If a read fails, all callers that waited for it get its error. A caller stops waiting when its
// ctx ends; that does not fail other callers.
func (r *Reader[T]) Read(ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	r.once.Do(func() { r.turn = make(chan struct{}, 1) })
	asked := time.Now()
	var none T
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	if r.isValidFor(asked) {
		return r.answer, r.err
	}
	began := time.Now()
	answer, err := ask(ctx)
	if err == nil || ctx.Err() == nil { // else the error is of this caller only
		r.began, r.ended, r.answer, r.err = began, time.Now(), answer, err
	}
	return answer, err
}

// isValidFor reports whether the last answer or error is valid for a call of Read at the time asked.
func (r *Reader[T]) isValidFor(asked time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.began.After(r.outdated): // also if there was no read yet
		return false
	case r.err != nil:
		return r.ended.After(asked)
	}
	return r.began.After(asked.Add(-r.ReuseFor))
}
