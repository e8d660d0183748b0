// Package elapsed compares stored times with the current time, if the clock may have been set back after a time was
// stored.
package elapsed

import (
	"context"
	"time"
)

// tolerance is how far in the future a stored time may be. Times are stored in whole seconds, rounded up.
const tolerance = time.Second

// IsFuture reports whether a stored time is later than the clock can have been. The clock was then set back after the
// time was stored.
func IsFuture(t, now time.Time) bool { return t.After(now.Add(tolerance)) }

// ClampToNow returns a stored time, or now if it is in the future.
func ClampToNow(t, now time.Time) time.Time {
	if IsFuture(t, now) {
		return now
	}
	return t
}

// HasElapsed reports whether wait has passed since a stored time. If the stored time is in the future, it returns true:
// the clock was set back, and the wait must not become endless.
func HasElapsed(since, now time.Time, wait time.Duration) bool {
	return IsFuture(since, now) || !now.Before(since.Add(wait))
}

// RemainingWait returns the time until a stored time. It returns 0 if the stored time has passed, or if it is more than
// longest in the future.
func RemainingWait(until, now time.Time, longest time.Duration) time.Duration {
	if left := until.Sub(now); left <= longest+tolerance {
		return max(0, left)
	}
	return 0
}

// Sleep waits for d, or until ctx ends. It returns false if ctx has ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
