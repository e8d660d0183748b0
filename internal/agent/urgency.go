package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// The agent's goroutine waits for its requests about the Node. A slow API server must not delay an urgent drain, or
// the stop of a drain that no notice needs any more. So urgent updates interrupt the requests of the running pass.
// Until a forced drain has started, the requests of each step time out early enough for it.

// errInterrupted is the cancellation cause of requests that an urgent update has ended.
var errInterrupted = errors.New("interrupted by a more urgent update")

// isInterrupted reports whether an urgent update has ended the requests of ctx.
func isInterrupted(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errInterrupted) }

// interrupter ends the running requests of a reconcile when an urgent update arrives. Its methods may be called from
// any goroutine.
type interrupter struct {
	mu      sync.Mutex
	pending int // urgent updates not handled yet
	cancel  context.CancelCauseFunc
}

// startPass returns the context for the requests of one reconcile, and a function that ends it. If an urgent update is
// not handled yet, the context has already ended.
func (i *interrupter) startPass(ctx context.Context) (context.Context, func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	ctx, i.cancel = context.WithCancelCause(ctx)
	cancel := i.cancel
	if i.pending > 0 {
		cancel(errInterrupted)
	}
	return ctx, func() { cancel(nil) }
}

// interruptRequests ends the running requests. The caller must call markHandled once for each call, after the update is
// handled.
func (i *interrupter) interruptRequests() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pending++
	if i.cancel != nil {
		i.cancel(errInterrupted)
	}
}

// markHandled records that one urgent update was handled. New requests may run once all updates are handled.
func (i *interrupter) markHandled() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pending--
}

// hasSameNotices reports whether two snapshots of one source list the same notices, with the same types, statuses,
// times and notice periods, and whether they have begun. It also compares the IDs of the unreadable entries.
func hasSameNotices(before, now notice.Snapshot) bool {
	return slices.EqualFunc(before.Notices, now.Notices, func(b, n notice.Notice) bool {
		return b.ID == n.ID && b.Type == n.Type && b.Status == n.Status && b.NotBefore.Equal(n.NotBefore) && b.NoticePeriod == n.NoticePeriod && b.HasBegun == n.HasBegun
	}) && slices.EqualFunc(before.Unreadable, now.Unreadable, func(b, n notice.Problem) bool { return b.ID == n.ID })
}

// latestDrainStart returns when the drain of a forced notice starts at the latest, even if the node is not cordoned by
// then.
func (a *Agent) latestDrainStart(h *noticeState, now time.Time) time.Time {
	at := h.uncordonedDrainStart()
	if until := h.waitDeadline(); (h.Phase == Yielded || a.isWaitingForSlot(h, now)) && until.After(at) {
		return until
	}
	return at
}

// nextForcedDrainStart returns the latest start of the first forced drain that cannot start yet. It returns zero
// without such a drain.
func (a *Agent) nextForcedDrainStart(now time.Time) time.Time {
	var next time.Time
	for _, h := range a.activeNoticesByUrgency() {
		if !h.Decision.Forced || !h.needsDrain() || a.canDrain(h, now) || a.options.DryRun {
			continue
		}
		if at := a.latestDrainStart(h, now); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// isForcedDrainPending reports whether a forced drain waits only until its cordon claim is written. Until it starts,
// the agent delays all other writes.
func (a *Agent) isForcedDrainPending(now time.Time) bool {
	return slices.ContainsFunc(a.activeNoticesByUrgency(), func(h *noticeState) bool {
		return h.Decision.Forced && a.isDrainDue(h, now) && !a.canStartDrain(h, now)
	})
}

// minStepTime is the shortest timeout of a step, even if a forced drain has to start sooner.
const minStepTime = 50 * time.Millisecond

// withStepTimeout returns a context that limits the requests of one step. If a forced drain waits, the steps of its
// notice end at the drain's latest start. The steps of other notices, and removals of claims (h is nil), end after half
// of that time. Without a waiting forced drain it sets no limit.
func (a *Agent) withStepTimeout(pass context.Context, h *noticeState) (context.Context, context.CancelFunc) {
	now := time.Now()
	next := a.nextForcedDrainStart(now)
	if next.IsZero() {
		return pass, func() {}
	}
	left := next.Sub(now)
	if h == nil || !a.latestDrainStart(h, now).Equal(next) {
		left /= 2
	}
	return context.WithTimeout(pass, max(left, minStepTime))
}

// withHalfRemainingTime returns a context that ends after half of the time that ctx has left. The next request can then
// use the other half.
func withHalfRemainingTime(ctx context.Context) (context.Context, context.CancelFunc) {
	until, limited := ctx.Deadline()
	if !limited {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(until)/2)
}
