package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
)

const (
	// longestQuiet bounds for how long everything that is written for others only waits for the pods to be asked, and
	// voluntaryQuiet does where no time presses.
	longestQuiet   = 15 * time.Second
	voluntaryQuiet = time.Second
)

// quietFor is for how long, at most, nothing is written but what moves the pods off: half of what is left. When many
// machines of a cluster are taken away at once, their agents' conditions and Events are a good part of all that the API
// server is asked for, while pods wait for their eviction.
func quietFor(deadline, now time.Time) time.Duration {
	if deadline.IsZero() {
		return voluntaryQuiet
	}
	return min(max(0, deadline.Sub(now)/2), longestQuiet)
}

// askedAll reports that every pod was asked to leave, or that nothing but its budget, its wave or policy keeps it from it.
func askedAll(p drain.Progress) bool {
	return p.Listed && !slices.ContainsFunc(p.Blocked, func(b drain.Blocked) bool {
		return b.Reason == drain.Turn || b.Reason == drain.Busy || b.Reason == drain.Failing
	})
}

// asksNow reports that the pods are being asked to leave on account of a notice, or are about to, and that what else is
// to be written for it waits.
func (a *Agent) asksNow(h *noticeState, now time.Time) bool {
	asked := a.drain != nil && a.drain.asked.Load() || a.drain == nil && !h.Phase.isDraining()
	return !asked && now.Before(a.quietUntil(h))
}

// quietUntil is when what waits for the pods to be asked does no longer.
func (a *Agent) quietUntil(h *noticeState) time.Time {
	if a.drain != nil {
		return a.drain.quietUntil
	}
	return h.Began.Add(quietFor(h.Decision.Deadline, h.Began))
}

// askedEverybody ends the quiet. It is called from the engine's goroutine, which must not wait for the agent's.
func (a *Agent) askedEverybody(r *drainRun) {
	if r.asked.Swap(true) {
		return
	}
	a.events.throttle.until(time.Time{})
	a.wakeUp()
}

// writeThrottle delays writes until a moment that may be changed meanwhile.
type writeThrottle struct {
	mu      sync.Mutex
	over    time.Time
	changed chan struct{}
}

func newWriteThrottle() *writeThrottle { return &writeThrottle{changed: make(chan struct{})} }

// until sets the moment; one that has passed ends it.
func (h *writeThrottle) until(t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = t
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *writeThrottle) now() (over time.Time, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over, h.changed
}

// wait returns when it is over, or ctx is.
func (h *writeThrottle) wait(ctx context.Context) {
	for {
		over, changed := h.now()
		left := time.Until(over)
		if left <= 0 {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}
