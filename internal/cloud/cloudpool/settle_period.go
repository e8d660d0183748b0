package cloudpool

import "time"

// settlePeriod measures how long a server may report a terminated machine as alive.
type settlePeriod struct {
	// before is the newest observation before the termination. It may be minutes older than the termination.
	before time.Time
	// after is the first observation after the termination that was read. It is zero until then.
	after time.Time
}

// recordObservation records an observation that was read after the termination.
func (s *settlePeriod) recordObservation(at time.Time) {
	if s.after.IsZero() && at.After(s.before) {
		s.after = at
	}
}

// isOver reports whether an observation is at least settleTime newer than the first one after the termination.
func (s *settlePeriod) isOver(at time.Time, settleTime time.Duration) bool {
	return !s.after.IsZero() && at.Sub(s.after) >= settleTime
}
