package provisioning

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// Metrics tell of machines that come, and of nodes that are used little.
type Metrics struct {
	pods     *prometheus.GaugeVec
	onTheWay *prometheus.GaugeVec
	nodes    *prometheus.GaugeVec
	unready  prometheus.Gauge
	braked   prometheus.Gauge
	orders   *prometheus.CounterVec
	refusals *prometheus.CounterVec
	given    *prometheus.CounterVec
	leaving  *prometheus.CounterVec
	failures prometheus.Counter
	decision *prometheus.HistogramVec
	waiting  prometheus.Histogram
	calls    *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	const prefix = "slipway_autoscaler_"
	gauge := func(name, help string, of ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, of)
	}
	counter := func(name, help string, of ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, of)
	}
	m := &Metrics{
		pods:     gauge("unschedulable_pods", "Unschedulable pods by outcome: Launching, Provisioning, Schedulable, Preempting or Unschedulable.", "outcome"),
		onTheWay: gauge("provisioning_instances", "Machines that were asked for and have no Node yet.", "group"),
		nodes:    gauge("underutilized_nodes", "Nodes of groups with the rule, by verdict.", "group", "verdict"),
		unready: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "unready_nodes", Help: "Nodes that are not Ready, and are neither arriving nor being taken out of service.",
		}),
		braked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "scale_up_paused", Help: "1 while no instances are launched since too many nodes are not Ready, else 0.",
		}),
		orders:   counter("requested_instances_total", "Machines whose order the cloud has taken.", "group", "template"),
		refusals: counter("failed_launches_total", "Orders that the cloud has not taken, or has dropped without a word, by reason.", "group", "template", "reason"),
		given:    counter("unjoined_instances_deleted_total", "Machines that were deleted since they had no Node, by reason.", "group", "reason"),
		leaving:  counter("retirements_total", "NodeRetirements that were asked for since a node is used little.", "group"),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "failed_observations_total", Help: "Looks that failed."}),
		decision: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "decision_seconds", Help: "How long it took to decide: up or down.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 10),
		}, []string{"direction"}),
		waiting: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "pod_to_launch_seconds", Help: "Time from when a pod was heard to have no room until a machine for it was asked for.",
			Buckets: []float64{.5, 1, 1.25, 1.5, 2, 3, 5, 10, 30, 60, 300},
		}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "launch_request_seconds", Help: "How long the cloud took to answer an order.", Buckets: prometheus.DefBuckets,
		}, []string{"group"}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.pods, m.onTheWay, m.nodes, m.unready, m.braked, m.orders, m.refusals, m.given, m.leaving, m.failures, m.decision, m.waiting, m.calls,
	} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// unreadyNodes takes in how many nodes are not Ready, and whether that brakes launches.
func (m *Metrics) unreadyNodes(w *plan.World) {
	m.unready.Set(float64(w.Unready))
	m.braked.Set(0)
	if w.Braked() != nil {
		m.braked.Set(1)
	}
}

func (m *Metrics) failed() { m.failures.Inc() }

func (m *Metrics) decided(direction string, took time.Duration) {
	m.decision.WithLabelValues(direction).Observe(took.Seconds())
}

func (m *Metrics) waited(d time.Duration) { m.waiting.Observe(d.Seconds()) }

func (m *Metrics) ordered(o plan.Order, err error, took time.Duration) {
	m.calls.WithLabelValues(o.Group).Observe(took.Seconds())
	if err != nil {
		m.refusals.WithLabelValues(o.Group, o.Template, launch.ReasonOf(err)).Inc()
		return
	}
	m.orders.WithLabelValues(o.Group, o.Template).Add(float64(o.Count))
}

func (m *Metrics) dropped(group, template string) {
	m.refusals.WithLabelValues(group, template, launch.Failed).Inc()
}

func (m *Metrics) gaveUp(group, reason string) { m.given.WithLabelValues(group, reason).Inc() }

func (m *Metrics) retired(group string) { m.leaving.WithLabelValues(group).Inc() }

// see takes in how things were found.
func (m *Metrics) see(groups []*known, up *plan.Decision, down []plan.NodeDecision) {
	outcomes := map[plan.Outcome]float64{plan.Ordered: 0, plan.Awaits: 0, plan.Fits: 0, plan.Waits: 0, plan.Helpless: 0}
	for i := range up.Pods {
		outcomes[up.Pods[i].Outcome]++
	}
	for outcome, n := range outcomes {
		m.pods.WithLabelValues(string(outcome)).Set(n)
	}
	m.onTheWay.Reset()
	for _, g := range groups {
		m.onTheWay.WithLabelValues(g.name()).Set(float64(len(g.memory.survey.Awaited)))
	}
	if down == nil {
		return
	}
	m.nodes.Reset()
	for i := range down {
		m.nodes.WithLabelValues(down[i].Group, string(down[i].Verdict)).Inc()
	}
}
