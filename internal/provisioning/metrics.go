package provisioning

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// Metrics are the metrics of scale-up and of the scale-down of underutilized nodes.
type Metrics struct {
	pods            *prometheus.GaugeVec
	provisioning    *prometheus.GaugeVec
	nodes           *prometheus.GaugeVec
	unready         prometheus.Gauge
	paused          prometheus.Gauge
	launches        *prometheus.CounterVec
	refusals        *prometheus.CounterVec
	deletions       *prometheus.CounterVec
	retirements     *prometheus.CounterVec
	failures        prometheus.Counter
	decisionSeconds *prometheus.HistogramVec
	podWaitSeconds  prometheus.Histogram
	launchSeconds   *prometheus.HistogramVec
}

// NewMetrics creates and registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	const prefix = "slipway_autoscaler_"
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	m := &Metrics{
		pods:         gauge("unschedulable_pods", "Unschedulable pods by outcome: Launching, Provisioning, Schedulable, Preempting or Unschedulable.", "outcome"),
		provisioning: gauge("provisioning_instances", "Launched instances without a Node.", "group"),
		nodes:        gauge("underutilized_nodes", "Nodes of groups with the underutilized rule, by verdict.", "group", "verdict"),
		unready: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "unready_nodes", Help: "Nodes that are not Ready, not starting and not being retired.",
		}),
		paused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "scale_up_paused", Help: "1 while launches are paused because too many nodes are not Ready, else 0.",
		}),
		launches:    counter("requested_instances_total", "Instances of accepted launches.", "group", "template"),
		refusals:    counter("failed_launches_total", "Launches that the cloud has refused or dropped, by reason.", "group", "template", "reason"),
		deletions:   counter("unjoined_instances_deleted_total", "Instances that were deleted because they failed to join, by reason.", "group", "reason"),
		retirements: counter("retirements_total", "NodeRetirements that were requested for underutilized nodes.", "group"),
		failures:    prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "failed_observations_total", Help: "Reconciles that failed."}),
		decisionSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "decision_seconds", Help: "Duration of a decision, by direction: up or down.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 10),
		}, []string{"direction"}),
		podWaitSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "pod_to_launch_seconds", Help: "Time from when a pod was seen as unschedulable until an instance for it was requested.",
			Buckets: []float64{.5, 1, 1.25, 1.5, 2, 3, 5, 10, 30, 60, 300},
		}),
		launchSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "launch_request_seconds", Help: "Time until the cloud answered a launch.", Buckets: prometheus.DefBuckets,
		}, []string{"group"}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.pods, m.provisioning, m.nodes, m.unready, m.paused, m.launches, m.refusals, m.deletions, m.retirements, m.failures, m.decisionSeconds, m.podWaitSeconds, m.launchSeconds,
	} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// setUnreadyAndPausedGauges sets the number of nodes that are not Ready, and whether that pauses launches.
func (m *Metrics) setUnreadyAndPausedGauges(w *plan.Input) {
	m.unready.Set(float64(w.UnreadyNodes))
	m.paused.Set(0)
	if w.CheckUnreadyLimit() != nil {
		m.paused.Set(1)
	}
}

func (m *Metrics) countFailure() { m.failures.Inc() }

func (m *Metrics) observeDecision(direction string, took time.Duration) {
	m.decisionSeconds.WithLabelValues(direction).Observe(took.Seconds())
}

func (m *Metrics) observePodWait(d time.Duration) { m.podWaitSeconds.Observe(d.Seconds()) }

func (m *Metrics) observeLaunch(o plan.Launch, err error, took time.Duration) {
	m.launchSeconds.WithLabelValues(o.Group).Observe(took.Seconds())
	if err != nil {
		m.refusals.WithLabelValues(o.Group, o.Template, launch.BackOffReason(err)).Inc()
		return
	}
	m.launches.WithLabelValues(o.Group, o.Template).Add(float64(o.Count))
}

func (m *Metrics) countDropped(group, template string) {
	m.refusals.WithLabelValues(group, template, launch.Failed).Inc()
}

func (m *Metrics) countDeletion(group, reason string) {
	m.deletions.WithLabelValues(group, reason).Inc()
}

func (m *Metrics) countRetirement(group string) { m.retirements.WithLabelValues(group).Inc() }

// setGauges sets the gauges from the state of the groups and the decisions.
func (m *Metrics) setGauges(groups []*managedGroup, up *plan.Decision, down []plan.NodeDecision) {
	outcomes := map[plan.Outcome]float64{plan.Launching: 0, plan.Provisioning: 0, plan.Fits: 0, plan.Preempted: 0, plan.Unschedulable: 0}
	for i := range up.Pods {
		outcomes[up.Pods[i].Outcome]++
	}
	for outcome, n := range outcomes {
		m.pods.WithLabelValues(string(outcome)).Set(n)
	}
	m.provisioning.Reset()
	for _, g := range groups {
		m.provisioning.WithLabelValues(g.name()).Set(float64(len(g.state.tracking.Provisioning)))
	}
	if down == nil {
		return
	}
	m.nodes.Reset()
	for i := range down {
		m.nodes.WithLabelValues(down[i].Group, string(down[i].Verdict)).Inc()
	}
}
