package advised

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The results of showing an event.
const (
	answered = "answered"
	failed   = "failed"
	dropped  = "dropped"
)

// Metrics tell how plugins answer.
type Metrics struct {
	events *prometheus.CounterVec
	wishes *prometheus.CounterVec
	calls  *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_plugin_events_total",
			Help: "Calls that showed a plugin a pod that has changed or was deleted: answered or failed; and events that were dropped.",
		}, []string{"plugin", "event", "result"}),
		wishes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_plugin_requests_total", Help: "Requests of plugins (grow or retire) that were passed on or refused.",
		}, []string{"plugin", "request", "result"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "slipway_plugin_event_seconds", Help: "How long a plugin took to answer to an event.", Buckets: prometheus.DefBuckets,
		}, []string{"plugin"}),
	}
	return m, errors.Join(r.Register(m.events), r.Register(m.wishes), r.Register(m.calls))
}

func (m *Metrics) shown(plugin string, kind eventKind, result string) {
	m.events.WithLabelValues(plugin, string(kind), result).Inc()
}

func (m *Metrics) took(plugin string, d time.Duration) {
	m.calls.WithLabelValues(plugin).Observe(d.Seconds())
}

func (m *Metrics) passed(plugin, wish string, err error) {
	result := "passed"
	if err != nil {
		result = "refused"
	}
	m.wishes.WithLabelValues(plugin, wish, result).Inc()
}
