package startqueue

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fakeLease is a Lease that the test gives and takes.
type fakeLease struct{ held, wanted atomic.Bool }

func (l *fakeLease) SetWanted(wanted bool, _ time.Time) { l.wanted.Store(wanted) }
func (l *fakeLease) IsHeld() bool                       { return l.held.Load() && l.wanted.Load() }
func (l *fakeLease) IsReleased() bool                   { return !l.wanted.Load() }
func (l *fakeLease) Run(ctx context.Context, _ func())  { <-ctx.Done() }

func TestProcessThatWaitsForAnotherQueueIsFound(t *testing.T) {
	identity := leaseIdentity("pod-1", "https://sqs/1/a")
	for _, c := range []struct {
		holder string
		found  bool
	}{
		{leaseIdentity("pod-2", "https://sqs/1/a"), false},
		{leaseIdentity("pod-2", "https://sqs/1/b"), true},
		{"pod-2", false},
	} {
		if got := findOtherQueue([]string{c.holder}, identity); (got == c.holder) != c.found {
			t.Errorf("%s waits for %s: %q", identity, c.holder, got)
		}
	}
}

func TestQueueIsHandledOnlyWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lease fakeLease
		var running, starts atomic.Int32
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- runWhileHeld(ctx, &lease, func() {}, func() {}, func(ctx context.Context) error {
				starts.Add(1)
				running.Add(1)
				defer running.Add(-1)
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		for _, held := range []bool{false, true, false, true} {
			lease.held.Store(held)
			time.Sleep(5 * time.Second)
			if got := running.Load() == 1; got != held {
				t.Errorf("the Lease is held: %v, the queue is handled: %v", held, got)
			}
		}
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) || starts.Load() != 2 || running.Load() != 0 || lease.wanted.Load() {
			t.Errorf("%v after %d starts, %d run", err, starts.Load(), running.Load())
		}
	})
}
