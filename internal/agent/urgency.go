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

// errInterrupted ends the requests of a pass because of an urgent update.
var errInterrupted = errors.New("interrupted by a more urgent update")

// isInterrupted reports that an urgent update ended the requests of ctx.
func isInterrupted(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errInterrupted) }

// interrupter ends the requests of a pass. Its methods may be called from any goroutine.
type interrupter struct {
	mu      sync.Mutex
	pending int // urgent updates not handled yet
	cancel  context.CancelCauseFunc
}

// startPass returns the context of the requests of one pass. The context has already ended if an urgent update is
// pending.
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

// interruptRequests ends the running requests. Each call needs a later call of markHandled.
func (i *interrupter) interruptRequests() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pending++
	if i.cancel != nil {
		i.cancel(errInterrupted)
	}
}

// markHandled records that the agent has handled one urgent update.
func (i *interrupter) markHandled() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pending--
}

// hasSameNotices reports that two snapshots of one source list the same notices, with the same types, statuses and
// times. The IDs of their unreadable entries are the same too.
func hasSameNotices(before, now notice.Snapshot) bool {
	return slices.EqualFunc(before.Notices, now.Notices, func(b, n notice.Notice) bool {
		return b.ID == n.ID && b.Type == n.Type && b.Status == n.Status && b.NotBefore.Equal(n.NotBefore)
	}) && slices.EqualFunc(before.Unreadable, now.Unreadable, func(b, n notice.Problem) bool { return b.ID == n.ID })
}

// latestDrainStart is when the drain of a forced notice starts at the latest, even without a cordon.
func (a *Agent) latestDrainStart(h *noticeState, now time.Time) time.Time {
	at := h.uncordonedDrainStart()
	if until := h.waitDeadline(); (h.Phase == Yielded || a.isWaitingForSlot(h, now)) && until.After(at) {
		return until
	}
	return at
}

// nextForcedDrainStart returns the latest start of the next forced drain that cannot start yet; zero if none waits.
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

// isForcedDrainPending reports that a forced drain waits only for its cordon claim. Until it starts, nothing that can
// wait is written.
func (a *Agent) isForcedDrainPending(now time.Time) bool {
	return slices.ContainsFunc(a.activeNoticesByUrgency(), func(h *noticeState) bool {
		return h.Decision.Forced && a.isDrainDue(h, now) && !a.canStartDrain(h, now)
	})
}

// minStepTime is the least time for a step's requests, even if a drain should start sooner.
const minStepTime = 50 * time.Millisecond

// withStepTimeout limits the requests of one step. While a forced drain cannot start, its own steps have until its
// latest start. Steps of other notices, and removals of claims (h is nil), have half of that time.
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

// withHalfRemainingTime limits one request to half of the remaining time, so that the next request gets the rest.
func withHalfRemainingTime(ctx context.Context) (context.Context, context.CancelFunc) {
	until, limited := ctx.Deadline()
	if !limited {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(until)/2)
}
