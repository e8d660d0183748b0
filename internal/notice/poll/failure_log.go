package poll

import (
	"log/slog"
	"time"
)

// repeatLogInterval is how often a lasting failure is logged.
const repeatLogInterval = time.Minute

// FailureLog logs a failure when the failure begins or changes, each minute while it lasts, and when it ends. Two
// failures are the same if their class and status are equal. Their texts differ at each poll, for example by port
// numbers.
type FailureLog struct {
	// Source is the name of the notice source in log lines.
	Source string

	class  Class // empty without a failure
	status int
	since  time.Time
	logged time.Time
	polls  int
}

// LogFailure counts a failed poll, and logs it if it is not logged yet. failed describes err.
func (f *FailureLog) LogFailure(log *slog.Logger, failed *Error, err error) {
	now := time.Now()
	if f.class == "" {
		f.since = now
	}
	f.polls++
	if f.class == failed.Class && f.status == failed.Status && now.Sub(f.logged) < repeatLogInterval {
		return
	}
	f.class, f.status, f.logged = failed.Class, failed.Status, now
	log.Warn("cannot read notices, will retry; the last read notices stay valid", "source", f.Source, "error", err, "class", failed.Class,
		"failedPolls", f.polls, "since", f.since)
}

// LogRecovery logs that polls succeed again. Without a failure before, it logs nothing.
func (f *FailureLog) LogRecovery(log *slog.Logger) {
	if f.class == "" {
		return
	}
	log.Info("notices are readable again", "source", f.Source, "failedPolls", f.polls,
		"after", time.Since(f.since).Round(time.Millisecond))
	*f = FailureLog{Source: f.Source}
}
