package poll

import (
	"sync/atomic"
	"time"
)

// maxClockAhead is the largest difference between the clocks that is used to correct deadlines. A larger difference is
// ignored. Then NotBefore lies in the past, and the minimum notice time applies.
const maxClockAhead = 24 * time.Hour

// Clock measures how far this process's clock is ahead of a service's clock. It is safe for concurrent use.
type Clock struct {
	ahead atomic.Int64 // nanoseconds
	known atomic.Bool
}

// IsKnown reports whether the clocks were compared.
func (c *Clock) IsKnown() bool { return c.known.Load() }

// Ahead returns how far this process's clock is ahead. The result is negative if it is behind. It is 0 for a difference
// of about 1 s, because the Date header of responses has no fractions. It is also 0 for more than one day ahead.
func (c *Clock) Ahead() time.Duration { return time.Duration(c.ahead.Load()) }

// Update compares the clocks. date is the Date header of a response, which the service created between sent and now. So
// a slow response gives only a rough estimate.
func (c *Clock) Update(sent, now, date time.Time) {
	least, most := sent.Sub(date)-time.Second, now.Sub(date)
	if most > maxClockAhead {
		least, most = 0, 0
	}
	if known := c.Ahead(); known < least-time.Second || known > most+time.Second {
		c.ahead.Store(int64(((least + most) / 2).Round(time.Second)))
	}
	c.known.Store(true)
}
