package nodegroup

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
)

// Metrics holds the metrics of groups. For a group from a file they are the only status that a user can read.
type Metrics struct {
	nodes       *prometheus.GaugeVec
	size        *prometheus.GaugeVec
	allowed     *prometheus.GaugeVec
	accepted    *prometheus.GaugeVec
	idle        *prometheus.GaugeVec
	keptNodes   *prometheus.GaugeVec
	checks      *prometheus.CounterVec
	refusals    *prometheus.CounterVec
	retirements *prometheus.CounterVec
	cancelled   *prometheus.CounterVec
	cloudRead   *prometheus.CounterVec
}

// NewMetrics registers the metrics with r. It returns the joined errors of r.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	gauge := func(name, help string, more ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "slipway_nodegroup_" + name, Help: help}, append([]string{"group"}, more...))
	}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_nodegroup_" + name, Help: help}, append([]string{"group"}, more...))
	}
	m := &Metrics{
		nodes:       gauge("nodes", "Nodes of a group: all, ready, retiring or unavailable.", "state"),
		size:        gauge("cloud_size", "Size of the group in its cloud, as last read."),
		allowed:     gauge("allowed_disruptions", "How many more nodes of the group may be retired now."),
		accepted:    gauge("accepted", "1 if the group is accepted, else 0, with the reason of its condition Accepted.", "reason"),
		idle:        gauge("idle_nodes", "Idle nodes, by verdict.", "verdict"),
		keptNodes:   gauge("refused_nodes", "Idle nodes with a passed cooldown that stay, by the rule that keeps them.", "rule"),
		checks:      counter("checks_total", "Reconciles of a group."),
		refusals:    counter("refusals_total", "Idle nodes that a rule has begun to keep, by rule.", "rule"),
		retirements: counter("retirements_total", "NodeRetirements that were requested for idle nodes."),
		cancelled:   counter("retirements_cancelled_total", "NodeRetirements that were cancelled because the node is needed."),
		cloudRead: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_nodegroup_cloud_reads_total", Help: "Reads of groups from their cloud: ok, not-found, throttled, refused or error.",
		}, []string{"provider", "result"}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.nodes, m.size, m.allowed, m.accepted, m.idle, m.keptNodes, m.checks, m.refusals, m.retirements, m.cancelled, m.cloudRead,
	} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *Metrics) setGroupGauges(group string, s v1alpha1.NodeGroupStatus, decisions []Decision) {
	for state, n := range map[string]int32{"all": s.Nodes, "ready": s.Ready, "retiring": s.Retiring, "unavailable": s.Unavailable} {
		m.nodes.WithLabelValues(group, state).Set(float64(n))
	}
	if s.CloudSize != nil {
		m.size.WithLabelValues(group).Set(float64(*s.CloudSize))
	}
	m.allowed.WithLabelValues(group).Set(float64(s.AllowedDisruptions))
	of := prometheus.Labels{"group": group}
	m.accepted.DeletePartialMatch(of)
	if is := acceptance.FromGroup(&v1alpha1.NodeGroup{Status: s}); is.State != acceptance.NotObserved {
		value := 0.0
		if is.State == acceptance.Accepted {
			value = 1
		}
		m.accepted.WithLabelValues(group, is.Reason).Set(value)
	}
	m.checks.WithLabelValues(group).Inc()
	m.idle.DeletePartialMatch(of)
	m.keptNodes.DeletePartialMatch(of)
	for _, v := range []Verdict{VerdictCoolingDown, VerdictBlocked, VerdictDue, VerdictRetiring} {
		m.idle.WithLabelValues(group, string(v)).Set(0)
	}
	for _, d := range decisions {
		if d.IdleSince != nil {
			m.idle.WithLabelValues(group, string(d.Verdict)).Inc()
		}
		if d.Verdict == VerdictBlocked {
			for _, r := range d.Reasons {
				m.keptNodes.WithLabelValues(group, r.Rule).Inc()
			}
		}
	}
}

func (m *Metrics) countRefused(group string, reasons []Reason) {
	for _, r := range reasons {
		m.refusals.WithLabelValues(group, r.Rule).Inc()
	}
}

func (m *Metrics) countRetirement(group string) { m.retirements.WithLabelValues(group).Inc() }
func (m *Metrics) countCancelled(group string)  { m.cancelled.WithLabelValues(group).Inc() }

func (m *Metrics) countCloudRead(provider string, err error) {
	m.cloudRead.WithLabelValues(provider, cloud.OutcomeLabel(err)).Inc()
}

func (m *Metrics) deleteGroupMetrics(group string) {
	of := prometheus.Labels{"group": group}
	for _, v := range []*prometheus.GaugeVec{m.nodes, m.size, m.allowed, m.accepted, m.idle, m.keptNodes} {
		v.DeletePartialMatch(of)
	}
	for _, v := range []*prometheus.CounterVec{m.checks, m.refusals, m.retirements, m.cancelled} {
		v.DeletePartialMatch(of)
	}
}
