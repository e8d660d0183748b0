package elapsed

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestFutureTimesExtendNoWait(t *testing.T) {
	now := time.Date(2026, 11, 2, 8, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		at    time.Duration // from now
		over  bool          // a wait of a minute since then
		left  time.Duration // of one until then, at most a minute
		clamp time.Duration // from now
	}{
		"long ago":           {-time.Hour, true, 0, -time.Hour},
		"a moment ago":       {-time.Second, false, 0, -time.Second},
		"rounded up":         {time.Second, false, time.Second, time.Second},
		"in half a minute":   {30 * time.Second, true, 30 * time.Second, 0},
		"in an hour":         {time.Hour, true, 0, 0},
		"exactly one minute": {-time.Minute, true, 0, -time.Minute},
	} {
		at := now.Add(c.at)
		if got := HasElapsed(at, now, time.Minute); got != c.over {
			t.Errorf("%s: over is %t, want %t", name, got, c.over)
		}
		if got := RemainingWait(at, now, time.Minute); got != c.left {
			t.Errorf("%s: %s left, want %s", name, got, c.left)
		}
		if got := ClampToNow(at, now); !got.Equal(now.Add(c.clamp)) {
			t.Errorf("%s: clamped to %s", name, got)
		}
	}
}

func TestLongerClockCounts(t *testing.T) {
	for name, c := range map[string]struct{ suspended, want time.Duration }{
		"both clocks run":                   {0, time.Minute},
		"suspended, or the clock set ahead": {time.Hour, time.Hour + time.Minute},
		"the clock set back":                {-time.Hour, time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := Now()
			m.Wall = m.Wall.Add(-c.suspended)
			time.Sleep(time.Minute)
			if got := Since(m); got != c.want {
				t.Errorf("%s: %s, want %s", name, got, c.want)
			}
			if got := Since(Moment{}); got < time.Hour {
				t.Errorf("%s since the zero moment, want a long time", got)
			}
		})
	}
}
