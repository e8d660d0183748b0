package controller

import (
	"time"

	"github.com/slipway-dev/slipway/internal/observe"
)

// Metrics holds the metrics of requests, updates and decisions.
type Metrics struct {
	requests  *observe.Vec[observe.Counter]
	updates   *observe.Vec[observe.Counter]
	removed   *observe.Vec[observe.Counter]
	duration  *observe.Vec[observe.Histogram]
	decisions *observe.Vec[observe.Histogram]
}

// NewMetrics registers the metrics.
func NewMetrics(r *observe.Registry) *Metrics {
	return &Metrics{
		requests: r.Counter("slipway_cloudpool_requests_total", "Requests by pool, handling and HTTP status code.", "pool", "handling", "code"),
		updates:  r.Counter("slipway_cloudpool_updates_total", "Finished updates by pool, kind and result.", "pool", "kind", "result"),
		removed:  r.Counter("slipway_cloudpool_machines_removed_total", "Machines that updates removed, by pool.", "pool"),
		duration: r.Histogram("slipway_cloudpool_update_duration_seconds", "Duration of updates in seconds, by kind.",
			[]float64{1, 5, 15, 60, 300, 900, 3600}, "kind"),
		decisions: r.Histogram("slipway_cloudpool_decision_duration_seconds", "Duration of the choice of machines in seconds.",
			[]float64{.001, .005, .02, .05, .2, 1, 5}),
	}
}

func (m *Metrics) recordFinished(u *Update) {
	if m == nil {
		return
	}
	m.updates.With(u.Pool, string(u.Kind), string(u.Outcome.Result)).Inc()
	m.removed.With(u.Pool).Add(float64(u.Outcome.Removed))
	m.duration.With(string(u.Kind)).Observe(u.Outcome.At.Sub(u.StartedAt).Seconds())
}

func (m *Metrics) recordDecision(d time.Duration) {
	if m != nil {
		m.decisions.With().Observe(d.Seconds())
	}
}

// CountRequest counts a request.
func (m *Metrics) CountRequest(pool, handling, code string) {
	if m != nil {
		m.requests.With(pool, handling, code).Inc()
	}
}
