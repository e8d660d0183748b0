// Package sharedread lets concurrent callers share the answer to one question.
package sharedread

import (
	"context"
	"sync"
	"time"
)

// Reader shares answers. The zero value is ready to use.
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

// Outdate makes later callers ask again: an answer may lack a change if its read began before.
func (r *Reader[T]) Outdate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outdated = time.Now()
}

// Read returns an answer of ask. Its read began at most Holds before Read was called, and after the last Outdate. Callers must not
// change it. Callers that wait for a read share its error. A caller stops waiting when its context ends, and fails no other.
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

// isValidFor reports whether the last answer, or its error, is valid for a caller that called at asked.
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
