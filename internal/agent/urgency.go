package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// The agent's goroutine waits for its requests for the Node. A slow or hanging API server must not keep an urgent drain from
// starting, nor a drain from stopping that no notice wants any more. So such news interrupts the requests of the pass under
// way. Until a forced drain has started, the requests of each step end in time for it.

// errInterrupted ends the requests of a pass because of news that may be more urgent.
var errInterrupted = errors.New("interrupted by more urgent news")

// interrupted reports that requests failed for no other reason than that.
func interrupted(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errInterrupted) }

// interrupter ends the requests of a pass. Its methods may be called from any goroutine.
type interrupter struct {
	mu     sync.Mutex
	unread int // news that the agent has not taken in yet
	cancel context.CancelCauseFunc
}

// pass returns the context of the requests of one pass. While urgent news waits to be taken in, it has ended already.
func (i *interrupter) pass(ctx context.Context) (context.Context, func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	ctx, i.cancel = context.WithCancelCause(ctx)
	cancel := i.cancel
	if i.unread > 0 {
		cancel(errInterrupted)
	}
	return ctx, func() { cancel(nil) }
}

// interrupt ends the requests under way. Each call needs a later call of taken.
func (i *interrupter) interrupt() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.unread++
	if i.cancel != nil {
		i.cancel(errInterrupted)
	}
}

// taken says that the agent has taken in what an interrupt was for.
func (i *interrupter) taken() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.unread--
}

// sameMoments reports that two snapshots of one source list the same notices, of the same type, status and time, and leave the
// same ones unknown.
func sameMoments(before, now notice.Snapshot) bool {
	return slices.EqualFunc(before.Notices, now.Notices, func(b, n notice.Notice) bool {
		return b.ID == n.ID && b.Type == n.Type && b.Status == n.Status && b.NotBefore.Equal(n.NotBefore)
	}) && slices.EqualFunc(before.Unreadable, now.Unreadable, func(b, n notice.Problem) bool { return b.ID == n.ID })
}

// startsDrain is when the drain of a forced notice starts at the latest, the node cordoned or not.
func (a *Agent) startsDrain(h *noticeState, now time.Time) time.Time {
	at := h.drainsUncordoned()
	if until := h.latestWait(); (h.Phase == Yielded || a.waitsForSlot(h, now)) && until.After(at) {
		return until
	}
	return at
}

// nextDrain returns when the next forced drain that cannot start yet starts at the latest; zero when none waits.
func (a *Agent) nextDrain(now time.Time) time.Time {
	var next time.Time
	for _, h := range a.inOrder() {
		if !h.Decision.Forced || !h.wantsDrain() || a.mayDrain(h, now) || a.o.DryRun {
			continue
		}
		if at := a.startsDrain(h, now); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// isPressed reports that a forced drain cannot start although it waits for nothing but its cordon claim. Until it does,
// nothing else that can wait is written.
func (a *Agent) isPressed(now time.Time) bool {
	return slices.ContainsFunc(a.inOrder(), func(h *noticeState) bool {
		return h.Decision.Forced && a.isDue(h, now) && !a.canStart(h, now)
	})
}

// shortestStep is what a step's requests get even when a drain is to start sooner.
const shortestStep = 50 * time.Millisecond

// bound limits the requests of one step. While a forced drain cannot start, its own steps have until it does. The steps of
// other notices, and releases (h is nil), have half of that time.
func (a *Agent) bound(pass context.Context, h *noticeState) (context.Context, context.CancelFunc) {
	now := time.Now()
	next := a.nextDrain(now)
	if next.IsZero() {
		return pass, func() {}
	}
	left := next.Sub(now)
	if h == nil || !a.startsDrain(h, now).Equal(next) {
		left /= 2
	}
	return context.WithTimeout(pass, max(left, shortestStep))
}

// half limits one request to half of the time that its step has, so that the next request gets the rest.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	until, limited := ctx.Deadline()
	if !limited {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(until)/2)
}
