package replacement

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// Metrics count the results of replacements. [StateCollector] has the current states.
type Metrics struct {
	states       *prometheus.CounterVec
	failures     *prometheus.CounterVec
	readySeconds prometheus.Histogram
}

// NewMetrics registers the metrics with r. It returns the joined errors of r.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		states: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_replacements_total",
			Help: "Replacements of instances that their cloud takes away, by each state reached.",
		}, []string{"group", "state"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_replacement_failed_launches_total",
			Help: "Launches of replacements that failed, by reason.",
		}, []string{"group", "code"}),
		readySeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "slipway_replacement_ready_seconds",
			Help:    "Time from the launch of a replacement until its Node is usable.",
			Buckets: []float64{5, 15, 30, 60, 120, 180, 300, 600, 1200, 3600},
		}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.states, m.failures, m.readySeconds} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *Metrics) countState(group string, state v1alpha1.ReplacementState) {
	m.states.WithLabelValues(group, string(state)).Inc()
}

func (m *Metrics) countFailure(group, code string) { m.failures.WithLabelValues(group, code).Inc() }

func (m *Metrics) observeReady(after time.Duration) { m.readySeconds.Observe(after.Seconds()) }

// StateCollector collects how many replacements are in which state, and the age of the oldest. A replacement that stays
// in Waiting is refused by its cloud or waits at a maximum. A replacement that stays in Launched does not become usable.
type StateCollector struct{ Reader client.Reader }

var (
	replacementsDesc = prometheus.NewDesc("slipway_replacements", "Replacements that are not usable yet, by group and state.",
		[]string{"group", "state"}, nil)
	oldestDesc = prometheus.NewDesc("slipway_replacement_state_oldest_seconds",
		"Age in seconds of the oldest replacement in a state.", []string{"state"}, nil)
)

// readTimeout limits the time to read the cache in a scrape.
const readTimeout = 5 * time.Second

// Describe implements prometheus.Collector.
func (StateCollector) Describe(to chan<- *prometheus.Desc) {
	to <- replacementsDesc
	to <- oldestDesc
}

// Collect implements prometheus.Collector. It sends no metric if the NodeRetirements cannot be read within 5 s.
func (p StateCollector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var all v1alpha1.NodeRetirementList
	if err := p.Reader.List(ctx, &all); err != nil {
		return // the cache is not filled yet
	}
	type place struct{ group, state string }
	count, ages := map[place]int{}, map[string]float64{}
	for i := range all.Items {
		r := all.Items[i].Status.Replacement
		if r == nil || r.State.IsFinal() {
			continue
		}
		count[place{all.Items[i].Spec.Group, string(r.State)}]++
		ages[string(r.State)] = max(ages[string(r.State)], time.Since(r.Since.Time).Seconds())
	}
	for at, n := range count {
		to <- prometheus.MustNewConstMetric(replacementsDesc, prometheus.GaugeValue, float64(n), at.group, at.state)
	}
	for state, age := range ages {
		to <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, age, state)
	}
}
