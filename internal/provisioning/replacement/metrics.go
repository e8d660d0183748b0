package replacement

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// Metrics count what becomes of replacements. Those of the present are read from the cache at each scrape; see Present.
type Metrics struct {
	states   *prometheus.CounterVec
	failures *prometheus.CounterVec
	took     prometheus.Histogram
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		states: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_replacements_total",
			Help: "Replacements of instances that their cloud takes away, by the states that they have reached.",
		}, []string{"group", "state"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_replacement_failed_launches_total",
			Help: "Launches of replacements that failed, by reason.",
		}, []string{"group", "code"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "slipway_replacement_ready_seconds",
			Help:    "Time from the launch of a replacement until its Node is usable.",
			Buckets: []float64{5, 15, 30, 60, 120, 180, 300, 600, 1200, 3600},
		}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.states, m.failures, m.took} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *Metrics) reached(group string, state v1alpha1.ReplacementState) {
	m.states.WithLabelValues(group, string(state)).Inc()
}

func (m *Metrics) failed(group, code string) { m.failures.WithLabelValues(group, code).Inc() }

func (m *Metrics) ready(after time.Duration) { m.took.Observe(after.Seconds()) }

// Present tells how many replacements are in which state, and how long the oldest has been in it: one that stays in
// Waiting is refused by its cloud or at a maximum, one that stays in Launched does not become usable.
type Present struct{ Reader client.Reader }

var (
	inState = prometheus.NewDesc("slipway_replacements", "Replacements that are not usable yet, by group and state.",
		[]string{"group", "state"}, nil)
	oldest = prometheus.NewDesc("slipway_replacement_state_oldest_seconds",
		"For how long the replacement that has been in a state for longest has been in it.", []string{"state"}, nil)
)

// readFor bounds a scrape's read of the cache.
const readFor = 5 * time.Second

// Describe implements prometheus.Collector.
func (Present) Describe(to chan<- *prometheus.Desc) {
	to <- inState
	to <- oldest
}

// Collect implements prometheus.Collector.
func (p Present) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readFor)
	defer cancel()
	var all v1alpha1.NodeRetirementList
	if err := p.Reader.List(ctx, &all); err != nil {
		return // the cache is not there yet
	}
	type place struct{ group, state string }
	count, ages := map[place]int{}, map[string]float64{}
	for i := range all.Items {
		r := all.Items[i].Status.Replacement
		if r == nil || r.State.Final() {
			continue
		}
		count[place{all.Items[i].Spec.Group, string(r.State)}]++
		ages[string(r.State)] = max(ages[string(r.State)], time.Since(r.Since.Time).Seconds())
	}
	for at, n := range count {
		to <- prometheus.MustNewConstMetric(inState, prometheus.GaugeValue, float64(n), at.group, at.state)
	}
	for state, age := range ages {
		to <- prometheus.MustNewConstMetric(oldest, prometheus.GaugeValue, age, state)
	}
}
