// Package elapsed compares times with the current time, if the clock may have been set, or the machine may have been
// suspended, in between.
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

// Moment is a point in time by both clocks of the machine. The monotonic clock stops while the machine is suspended. The wall clock
// can be set.
type Moment struct{ Monotonic, Wall time.Time }

// Now returns the current moment.
func Now() Moment {
	now := time.Now()
	return Moment{Monotonic: now, Wall: now.Round(0)}
}

// Since returns the time since a moment by the clock that shows the longer time. So a process never relies on a lease for too long.
func Since(m Moment) time.Duration {
	now := Now()
	return max(now.Monotonic.Sub(m.Monotonic), now.Wall.Sub(m.Wall))
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
