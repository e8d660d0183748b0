package elapsed

import (
	"testing"
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
