// Package elapsed compares stored times with a clock that may have been set back since they were stored, and waits.
package elapsed

import (
	"context"
	"time"
)

// tolerance is by how much stored times may be ahead: they are in whole seconds, rounded up.
const tolerance = time.Second

// IsFuture reports a time that the clock cannot have shown yet. So the clock was set back since the time was stored.
func IsFuture(t, now time.Time) bool { return t.After(now.Add(tolerance)) }

// ClampToNow returns a stored time, or now if it is in the future.
func ClampToNow(t, now time.Time) time.Time {
	if IsFuture(t, now) {
		return now
	}
	return t
}

// HasElapsed reports whether a wait that began at a stored time is over. A time in the future is not trusted: the wait is over rather than
// endless.
func HasElapsed(since, now time.Time, wait time.Duration) bool {
	return IsFuture(since, now) || !now.Before(since.Add(wait))
}

// RemainingWait returns the rest of a wait until a stored time, at most longest. It is 0 if the time has passed, or is too far
// in the future.
func RemainingWait(until, now time.Time, longest time.Duration) time.Duration {
	if left := until.Sub(now); left <= longest+tolerance {
		return max(0, left)
	}
	return 0
}

// Sleep waits, at most until ctx ends. It reports whether ctx has not ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
