package retirement

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/surge"
)

// Metrics counts what retirements do. [StateCollector] reads the metrics of the current state at each scrape.
type Metrics struct {
	steps    *prometheus.CounterVec
	phases   *prometheus.HistogramVec
	results  *prometheus.CounterVec
	requests *prometheus.CounterVec

	surges, surgeRefusals, surgeSeconds, surgesNotRestored, surgesRestored *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		steps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_retirement_steps_total",
			Help: "Steps of retirements, by result: done, waiting, blocked, ending or error.",
		}, []string{"step", "result"}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "slipway_retirement_phase_reached_seconds",
			Help:    "Time from the creation of a NodeRetirement until it reached a phase.",
			Buckets: []float64{1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600},
		}, []string{"phase"}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_retirements_finished_total",
			Help: "Finished retirements, by reason, last phase, and the reason code of an early end.",
		}, []string{"reason", "phase", "code"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_cloud_requests_total",
			Help: "Calls of a cloud provider: ok, not-found, throttled, refused or error.",
		}, []string{"provider", "call", "result"}),
		surges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_surges_total",
			Help: "Surges that ended, by result: succeeded, or why the pod has not left by the surge.",
		}, []string{"result"}),
		surgeRefusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_surge_refusals_total",
			Help: "Refused surges, by reason. A pod that waits counts at each decision.",
		}, []string{"reason"}),
		surgeSeconds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_surge_gained_seconds_total",
			Help: "Time that pods kept running while their successors started, in seconds.",
		}, nil),
		surgesNotRestored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_surges_not_restored_total",
			Help: "Surges whose drain could not restore the size of the owner. Another process does.",
		}, nil),
		surgesRestored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_surges_restored_total",
			Help: "Surges of ended processes whose size this process has restored.",
		}, nil),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.steps, m.phases, m.results, m.requests, m.surges, m.surgeRefusals, m.surgeSeconds, m.surgesNotRestored, m.surgesRestored} {
		errs = append(errs, r.Register(c))
	}
	m.initSurgeCounters()
	return m, errors.Join(errs...)
}

// initSurgeCounters sets the counters of surges to 0. So an increase includes their first increment.
func (m *Metrics) initSurgeCounters() {
	for _, result := range append([]string{surgeSucceeded}, surge.FailureReasons...) {
		m.surges.WithLabelValues(result)
	}
	for _, reason := range surge.RefusalReasons {
		m.surgeRefusals.WithLabelValues(reason)
	}
	for _, c := range []*prometheus.CounterVec{m.surgeSeconds, m.surgesNotRestored, m.surgesRestored} {
		c.WithLabelValues()
	}
}

func (m *Metrics) recordStepResult(name string, err error) {
	result := "done"
	var endErr *endError
	switch w := asWaitError(err); {
	case err == nil:
	case errors.As(err, &endErr):
		result = "ending"
	case w != nil && len(w.reasons) > 0:
		result = "blocked"
	case w != nil:
		result = "waiting"
	default:
		result = "error"
	}
	m.steps.WithLabelValues(name, result).Inc()
}

func (m *Metrics) recordPhase(rt *v1alpha1.NodeRetirement, recordPhase v1alpha1.Phase) {
	m.phases.WithLabelValues(string(recordPhase)).Observe(time.Since(rt.CreationTimestamp.Time).Seconds())
}

func (m *Metrics) recordFinished(rt *v1alpha1.NodeRetirement, phase v1alpha1.Phase, code string) {
	m.results.WithLabelValues(string(rt.Spec.Reason), string(phase), code).Inc()
}

// surgeSucceeded is the result label of a surge after which the pod left. The other labels are reasons of package surge.
const surgeSucceeded = "succeeded"

// SurgeStarted implements surge.Metrics.
func (*Metrics) SurgeStarted() {}

// SurgeSucceeded implements surge.Metrics.
func (m *Metrics) SurgeSucceeded(gained time.Duration) {
	m.surges.WithLabelValues(surgeSucceeded).Inc()
	m.surgeSeconds.WithLabelValues().Add(gained.Seconds())
}

// SurgeFailed implements surge.Metrics.
func (m *Metrics) SurgeFailed(reason string) { m.surges.WithLabelValues(reason).Inc() }

// SurgeRefused implements surge.Metrics.
func (m *Metrics) SurgeRefused(reason string) { m.surgeRefusals.WithLabelValues(reason).Inc() }

// RecordRestored implements surge.Metrics.
func (m *Metrics) RecordRestored() { m.surgesRestored.WithLabelValues().Inc() }

// recordDrain counts the surges of a drain that have not restored a size.
func (m *Metrics) recordDrain(r drain.Report) {
	for _, p := range r.Pods {
		if p.Surge != nil && p.Surge.Result.RestoreErr != nil {
			m.surgesNotRestored.WithLabelValues().Inc()
		}
	}
}

// RecordCloudRequest counts a call of a cloud provider by its result.
func (m *Metrics) RecordCloudRequest(provider, call string, err error) {
	m.requests.WithLabelValues(provider, call, cloud.OutcomeLabel(err)).Inc()
}

// StateCollector collects the number of retirements in each phase, what blocks them, and the age of the oldest. A
// retirement that stays in Draining makes no progress. If a retirement stays in NodeDeleted, its instance costs money
// and runs no pods.
type StateCollector struct{ Reader client.Reader }

var (
	retirementsDesc = prometheus.NewDesc("slipway_retirements", "Unfinished retirements, by group and phase.",
		[]string{"group", "phase"}, nil)
	oldestDesc = prometheus.NewDesc("slipway_retirement_phase_oldest_seconds",
		"Longest time that an unfinished retirement has been in its phase, by phase.", []string{"phase"}, nil)
	blockedDesc = prometheus.NewDesc("slipway_retirements_blocked", "Blocked retirements, by the code of what blocks them.",
		[]string{"code"}, nil)
)

// scrapeTimeout limits how long a scrape may read the cache.
const scrapeTimeout = 5 * time.Second

// Describe implements prometheus.Collector.
func (StateCollector) Describe(to chan<- *prometheus.Desc) {
	to <- retirementsDesc
	to <- oldestDesc
	to <- blockedDesc
}

// Collect implements prometheus.Collector. It sends no metric if the NodeRetirements cannot be read within 5 s.
func (p StateCollector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	var all v1alpha1.NodeRetirementList
	if err := p.Reader.List(ctx, &all); err != nil {
		return // the cache is not started yet
	}
	type place struct{ group, phase string }
	count, codes, ages := map[place]int{}, map[string]int{}, map[string]float64{}
	for i := range all.Items {
		rt := &all.Items[i]
		if rt.Status.Phase.IsFinal() {
			continue
		}
		at := place{phase: string(cmp.Or(rt.Status.Phase, v1alpha1.Pending))} // no manager has written a status yet
		if rt.Status.Captured != nil {
			at.group = rt.Status.Captured.Group
		}
		count[at]++
		ages[at.phase] = max(ages[at.phase], time.Since(PhaseReachedAt(rt)).Seconds())
		if len(rt.Status.Reasons) > 0 {
			codes[rt.Status.Reasons[0].Code]++
		}
	}
	for at, n := range count {
		to <- prometheus.MustNewConstMetric(retirementsDesc, prometheus.GaugeValue, float64(n), at.group, at.phase)
	}
	for phase, age := range ages {
		to <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, age, phase)
	}
	for code, n := range codes {
		to <- prometheus.MustNewConstMetric(blockedDesc, prometheus.GaugeValue, float64(n), code)
	}
}

// PhaseReachedAt returns when a retirement reached its current phase.
func PhaseReachedAt(rt *v1alpha1.NodeRetirement) time.Time {
	t := rt.Status.Times
	at := map[v1alpha1.Phase]*time.Time{}
	if t.Cordoned != nil {
		at[v1alpha1.Cordoned] = &t.Cordoned.Time
	}
	if t.Draining != nil {
		at[v1alpha1.Draining] = &t.Draining.Time
	}
	if t.Drained != nil {
		at[v1alpha1.Drained] = &t.Drained.Time
	}
	if t.NodeDeleted != nil {
		at[v1alpha1.NodeDeleted] = &t.NodeDeleted.Time
	}
	if t.InstanceDeleted != nil {
		at[v1alpha1.InstanceDeleted] = &t.InstanceDeleted.Time
	}
	if since := at[rt.Status.Phase]; since != nil {
		return *since
	}
	return rt.CreationTimestamp.Time
}
