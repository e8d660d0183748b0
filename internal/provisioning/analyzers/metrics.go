package analyzers

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The results of an event.
const (
	resultAnswered = "answered"
	resultFailed   = "failed"
	resultDropped  = "dropped"
)

// Metrics are the metrics of the plugins' answers.
type Metrics struct {
	events   *prometheus.CounterVec
	requests *prometheus.CounterVec
	calls    *prometheus.HistogramVec
}

// NewMetrics registers the metrics with r. It returns the joined errors of r.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_plugin_events_total",
			Help: "Events of changed or deleted pods for plugins, by result: answered, failed or dropped.",
		}, []string{"plugin", "event", "result"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_plugin_requests_total", Help: "Requests of plugins, grow or retire, by result: passed or refused.",
		}, []string{"plugin", "request", "result"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "slipway_plugin_event_seconds", Help: "Time until a plugin answered an event.", Buckets: prometheus.DefBuckets,
		}, []string{"plugin"}),
	}
	return m, errors.Join(r.Register(m.events), r.Register(m.requests), r.Register(m.calls))
}

func (m *Metrics) countEvent(plugin string, kind eventKind, result string) {
	m.events.WithLabelValues(plugin, string(kind), result).Inc()
}

func (m *Metrics) observeCall(plugin string, d time.Duration) {
	m.calls.WithLabelValues(plugin).Observe(d.Seconds())
}

func (m *Metrics) countRequest(plugin, kind string, err error) {
	result := "passed"
	if err != nil {
		result = "refused"
	}
	m.requests.WithLabelValues(plugin, kind, result).Inc()
}
