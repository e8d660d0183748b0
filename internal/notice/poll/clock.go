package poll

import (
	"sync"
	"time"
)

// Clock measures a service's clock, and how far this process's clock is ahead of it. It is safe for concurrent use.
type Clock struct {
	// MaxAhead is the largest difference that counts; 0 is any. A larger difference counts as none.
	MaxAhead time.Duration
	// Wall returns what the clock of this process shows at a time of time.Now; nil is the time itself. Tests set the clock by it.
	Wall func(t time.Time) time.Time

	mu    sync.Mutex
	ahead time.Duration
	// updatedAt is the time of time.Now at the last update; zero before the first. serviceAt is the same time by the service's
	// clock.
	updatedAt, serviceAt time.Time
}

// IsKnown reports whether the clocks were compared.
func (c *Clock) IsKnown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.updatedAt.IsZero()
}

// Ahead returns how far this process's clock is ahead. The result is negative if it is behind. It is 0 for a difference
// of about 1 s, because the Date header of responses has no fractions. It is also 0 for more than MaxAhead.
func (c *Clock) Ahead() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead
}

// ToServiceTime returns a time of time.Now by the service's clock. The result stays right when this process's clock is set,
// because it counts the time since the last update by the monotonic clock. Before the first update, it is the time of this
// process's clock.
func (c *Clock) ToServiceTime(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.toServiceTime(t)
}

func (c *Clock) toServiceTime(t time.Time) time.Time {
	if c.updatedAt.IsZero() {
		return c.wallTime(t)
	}
	return c.serviceAt.Add(t.Sub(c.updatedAt))
}

func (c *Clock) wallTime(t time.Time) time.Time {
	t = t.Round(0) // without the monotonic clock
	if c.Wall != nil {
		t = c.Wall(t)
	}
	return t
}

// Update compares the clocks. sent and now are times of time.Now. date is the Date header of a response, which the service
// created between them. So a slow response gives only a rough estimate, unless there is an earlier one.
func (c *Clock) Update(sent, now, date time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	earliest, latest := date, date.Add(now.Sub(sent)+time.Second)
	at, wall := c.toServiceTime(now), c.wallTime(now)
	switch {
	case c.MaxAhead > 0 && wall.Sub(date) > c.MaxAhead:
		at = wall
	case c.updatedAt.IsZero() && (at.Before(earliest) || at.After(latest)):
		at = earliest.Add(latest.Sub(earliest) / 2)
	case at.Before(earliest):
		at = earliest
	case at.After(latest):
		at = latest
	}
	c.updatedAt, c.serviceAt = now, at
	if ahead := wall.Sub(at).Round(time.Second); (ahead - c.ahead).Abs() > time.Second {
		c.ahead = ahead
	}
}
