package poll

import (
	"testing"
	"testing/synctest"
	"time"
)

// The clock of the process is set while a request waits for 20 s. Its response tells the new difference.
func TestServiceTimeIgnoresThatTheClockIsSet(t *testing.T) {
	for _, set := range [][2]time.Duration{{2 * time.Hour, 0}, {-2 * time.Hour, 0}, {0, 49 * time.Hour}, {25 * time.Hour, 0}} {
		synctest.Test(t, func(t *testing.T) {
			ahead := set[0]
			c := Clock{Wall: func(t time.Time) time.Time { return t.Add(ahead) }}
			check := func(when string, want time.Duration) {
				t.Helper()
				now := time.Now()
				if off := c.ToServiceTime(now).Sub(now).Abs(); off > 2*time.Second {
					t.Errorf("%v: %s the time of the service is wrong by %v", set, when, off)
				}
				if got := c.Ahead(); (got - want).Abs() > 2*time.Second {
					t.Errorf("%v: %s the clock is %v ahead, want %v", set, when, got, want)
				}
			}
			request := func(took time.Duration, wait func()) {
				sent := time.Now()
				wait()
				time.Sleep(took)
				c.Update(sent, time.Now(), time.Now().Truncate(time.Second))
			}
			request(100*time.Millisecond, func() {})
			check("first", set[0])
			request(10*time.Second, func() {
				time.Sleep(10 * time.Second)
				ahead = set[1]
				check("before a response", set[0])
			})
			check("after a response", set[1])
		})
	}
}
