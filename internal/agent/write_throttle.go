package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
)

const (
	// maxThrottle limits how long informational writes wait for the evictions. voluntaryThrottle is the limit for a
	// drain without a deadline.
	maxThrottle       = 15 * time.Second
	voluntaryThrottle = time.Second
)

// throttleTime returns how long, at most, only writes for the evictions are sent: half of the time left. If many
// instances of a cluster are interrupted at once, their agents' conditions and Events are a large part of the API
// server's load. Evictions would wait behind them.
func throttleTime(deadline, now time.Time) time.Duration {
	if deadline.IsZero() {
		return voluntaryThrottle
	}
	return min(max(0, deadline.Sub(now)/2), maxThrottle)
}

// hasRequestedAll reports that the eviction of every pod was requested, or waits only for a PDB, its wave or a
// policy.
func hasRequestedAll(p drain.Progress) bool {
	return p.Listed && !slices.ContainsFunc(p.RemainingPods, func(b drain.BlockedPod) bool {
		return b.Reason == drain.ObstacleQueued || b.Reason == drain.ObstacleAPIServerBusy || b.Reason == drain.ObstacleError
	})
}

// isThrottled reports that evictions for a notice are being requested, or about to be, so other writes for it wait.
func (a *Agent) isThrottled(h *noticeState, now time.Time) bool {
	asked := a.drain != nil && a.drain.allRequested.Load() || a.drain == nil && !h.Phase.isDraining()
	return !asked && now.Before(a.throttleEndFor(h))
}

// throttleEndFor returns until when writes for the notice wait for the evictions.
func (a *Agent) throttleEndFor(h *noticeState) time.Time {
	if a.drain != nil {
		return a.drain.throttleEnd
	}
	return h.DrainStarted.Add(throttleTime(h.Decision.Deadline, h.DrainStarted))
}

// endThrottle sends the delayed writes. The engine's goroutine calls it, so it must not wait for the agent's
// goroutine.
func (a *Agent) endThrottle(r *drainRun) {
	if r.allRequested.Swap(true) {
		return
	}
	a.events.throttle.setEnd(time.Time{})
	a.triggerReconcile()
}

// writeThrottle delays writes until a time that can change meanwhile.
type writeThrottle struct {
	mu      sync.Mutex
	end     time.Time
	changed chan struct{}
}

func newWriteThrottle() *writeThrottle { return &writeThrottle{changed: make(chan struct{})} }

// setEnd sets the end; a time that has passed ends the delay.
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

// wait waits until the end, or until ctx ends.
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
