package observe

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

// Check is a health check. It returns an error that names the problem. It is quick, safe for concurrent use, and
// contacts no other machine, because a restart of the process must be able to help.
type Check func() error

// newChecksHandler answers 200 if all checks pass, and else 503 with one line for each problem.
func newChecksHandler(checks []Check) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		var wrong []error
		for _, check := range checks {
			if err := check(); err != nil {
				wrong = append(wrong, err)
			}
		}
		if len(wrong) == 0 {
			_, _ = fmt.Fprintln(w, "ok")
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		for _, err := range wrong {
			_, _ = fmt.Fprintln(w, err)
		}
	}
}

// Heartbeat detects a loop that hangs. It is safe for concurrent use.
type Heartbeat struct {
	name  string
	limit time.Duration
	began time.Time    // its monotonic clock counts, because the wall clock may change
	last  atomic.Int64 // nanoseconds after began
}

// NewHeartbeat returns the heartbeat of a loop that calls Beat at least once in each limit. The time starts now.
func NewHeartbeat(name string, limit time.Duration) *Heartbeat {
	return &Heartbeat{name: name, limit: limit, began: time.Now()}
}

// Beat records one iteration of the loop.
func (h *Heartbeat) Beat() { h.last.Store(int64(time.Since(h.began))) }

// Check is a [Check] that fails if the last beat is longer ago than the limit.
func (h *Heartbeat) Check() error {
	silent := time.Since(h.began) - time.Duration(h.last.Load())
	if silent <= h.limit {
		return nil
	}
	return fmt.Errorf("%s: no sign of life for %v, want one within %v", h.name, silent.Truncate(time.Millisecond), h.limit)
}
