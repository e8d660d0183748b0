package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
)

const (
	// maxThrottle is the longest time that writes which only inform people wait for the evictions. voluntaryThrottle is
	// that time for a drain without a deadline.
	maxThrottle       = 15 * time.Second
	voluntaryThrottle = time.Second
)

// throttleTime returns how long only writes for the evictions are sent: at most half of the time until the deadline,
// and at most maxThrottle. If many instances are interrupted at once, the conditions and Events of their agents are a
// large part of the API server's load. Evictions would have to wait behind them.
func throttleTime(deadline, now time.Time) time.Duration {
	if deadline.IsZero() {
		return voluntaryThrottle
	}
	return min(max(0, deadline.Sub(now)/2), maxThrottle)
}

// hasRequestedAll reports whether the eviction of every pod was requested, or waits for a PDB, a permission, a webhook,
// its wave or a policy.
func hasRequestedAll(p drain.Progress) bool {
	return p.Listed && !slices.ContainsFunc(p.RemainingPods, func(b drain.BlockedPod) bool {
		return b.Reason == drain.ObstacleQueued || b.Reason == drain.ObstacleAPIServerBusy || b.Reason == drain.ObstacleError
	})
}

// isThrottled reports whether writes that only inform people have to wait. They wait while evictions for the notice are
// being requested, or will be requested soon.
func (a *Agent) isThrottled(h *noticeState, now time.Time) bool {
	asked := a.drain != nil && a.drain.allRequested.Load() || a.drain == nil && !h.Phase.isDraining()
	return !asked && now.Before(a.throttleEndFor(h))
}

// throttleEndFor returns when writes for the notice that only inform people stop waiting for the evictions.
func (a *Agent) throttleEndFor(h *noticeState) time.Time {
	if a.drain != nil {
		return a.drain.throttleEnd
	}
	return h.DrainStarted.Add(throttleTime(h.Decision.Deadline, h.DrainStarted))
}

// endThrottle lets the delayed writes be sent. The drain engine's goroutine calls it, so it does not wait for the
// agent's goroutine.
func (a *Agent) endThrottle(r *drainRun) {
	if r.allRequested.Swap(true) {
		return
	}
	a.events.throttle.setEnd(time.Time{})
	a.triggerReconcile()
}

// writeThrottle delays writes until its end time. The end time may change while a write waits.
type writeThrottle struct {
	mu      sync.Mutex
	end     time.Time
	changed chan struct{}
}

func newWriteThrottle() *writeThrottle { return &writeThrottle{changed: make(chan struct{})} }

// setEnd sets the end time of the delay. With a time in the past, waiting writes are sent now.
func (h *writeThrottle) setEnd(t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end = t
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *writeThrottle) current() (over time.Time, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end, h.changed
}

// wait returns at the end time of the delay, or when ctx ends.
func (h *writeThrottle) wait(ctx context.Context) {
	for {
		over, changed := h.current()
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
