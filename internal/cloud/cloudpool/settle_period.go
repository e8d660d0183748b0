package cloudpool

import (
	"cmp"
	"time"
)

// maxObservationAge is longer than the age of any observation. The reference server's are at most 5 minutes old.
const maxObservationAge = 10 * time.Minute

// isClockSetBack reports whether an observation is so old, compared with an earlier one, that the server's clock was set back.
// All waits for a newer observation then start again. Otherwise they would last until the clock has caught up.
func isClockSetBack(earlier, at time.Time) bool { return at.Before(earlier.Add(-maxObservationAge)) }

// settlePeriod measures how long a server may report a terminated machine as alive.
type settlePeriod struct {
	// before is the newest observation that was read before the end of the termination's request. It may be minutes older.
	before time.Time
	// after is the first observation after the termination that was read. It is zero until then.
	after time.Time
}

// recordEarlierObservation records an observation that was read before the termination's request had ended.
func (s *settlePeriod) recordEarlierObservation(at time.Time) {
	if at.After(s.before) {
		s.before = at
	}
}

// recordObservation records an observation that was read after the termination.
func (s *settlePeriod) recordObservation(at time.Time) {
	switch {
	case isClockSetBack(cmp.Or(s.after, s.before), at):
		*s = settlePeriod{before: at}
	case s.after.IsZero() && at.After(s.before):
		s.after = at
	}
}

// isOver reports whether an observation is at least settleTime newer than the first one after the termination.
func (s *settlePeriod) isOver(at time.Time, settleTime time.Duration) bool {
	return !s.after.IsZero() && at.Sub(s.after) >= settleTime
}

// surplus is by how much the active machines of a pool exceed its desired size. The deletions of machines update it.
type surplus struct {
	count, desired int
	updated        time.Time    // by this machine's clock
	period         settlePeriod // since count last increased
}

// maxSurplusAge is when a surplus counts as new, because nobody knows whether it has lasted. Deletions that wait for it are
// retried more often.
const maxSurplusAge = 10 * time.Minute

// recordObservation records the number of active machines in an observation.
func (s *surplus) recordObservation(at time.Time, active int) {
	s.period.recordObservation(at)
	s.count = min(s.count, max(0, active-s.desired))
}

// recordDecrement records that a termination by this process has lowered the desired size.
func (s *surplus) recordDecrement() { s.desired-- }

// hasSettled updates the surplus, and reports whether it is zero or has lasted for settleTime.
func (s *surplus) hasSettled(at time.Time, active, desired int, settleTime time.Duration) bool {
	count := max(0, active-desired)
	if count > s.count || time.Since(s.updated) > maxSurplusAge {
		s.period = settlePeriod{before: at}
	}
	s.count, s.desired, s.updated = count, desired, time.Now()
	return count == 0 || s.period.isOver(at, settleTime)
}
