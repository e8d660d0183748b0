package nodegroup

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
)

// Metrics tell of the groups. Those of a file have nowhere else to show their status.
type Metrics struct {
	nodes     *prometheus.GaugeVec
	size      *prometheus.GaugeVec
	allowed   *prometheus.GaugeVec
	accept    *prometheus.GaugeVec
	idle      *prometheus.GaugeVec
	staying   *prometheus.GaugeVec
	checks    *prometheus.CounterVec
	refusals  *prometheus.CounterVec
	asked     *prometheus.CounterVec
	called    *prometheus.CounterVec
	cloudRead *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	gauge := func(name, help string, more ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "slipway_nodegroup_" + name, Help: help}, append([]string{"group"}, more...))
	}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_nodegroup_" + name, Help: help}, append([]string{"group"}, more...))
	}
	m := &Metrics{
		nodes:    gauge("nodes", "Nodes of a group: all, ready, retiring or unavailable.", "state"),
		size:     gauge("cloud_size", "How many machines the cloud means the group to have, as it last said."),
		allowed:  gauge("allowed_disruptions", "How many more nodes of the group may leave now."),
		accept:   gauge("accepted", "1 when the group is acted on, with the reason of its condition Accepted.", "reason"),
		idle:     gauge("idle_nodes", "Nodes without a pod that keeps them, by whether that is for long enough.", "verdict"),
		staying:  gauge("refused_nodes", "Nodes that are idle for long enough and stay, by the rule that keeps them.", "rule"),
		checks:   counter("checks_total", "Looks at all nodes of a group."),
		refusals: counter("refusals_total", "Nodes that have begun to stay although they are idle, by rule.", "rule"),
		asked:    counter("retirements_total", "NodeRetirements that were asked for since nobody needs the node."),
		called:   counter("retirements_cancelled_total", "NodeRetirements that were called off, since somebody needs the node after all."),
		cloudRead: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_nodegroup_cloud_reads_total", Help: "Reads of groups from their cloud: ok, not-found, throttled, refused or error.",
		}, []string{"provider", "result"}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.nodes, m.size, m.allowed, m.accept, m.idle, m.staying, m.checks, m.refusals, m.asked, m.called, m.cloudRead,
	} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// see takes in how a group was found.
func (m *Metrics) see(group string, s v1alpha1.NodeGroupStatus, decisions []Decision) {
	for state, n := range map[string]int32{"all": s.Nodes, "ready": s.Ready, "retiring": s.Leaving, "unavailable": s.Unavailable} {
		m.nodes.WithLabelValues(group, state).Set(float64(n))
	}
	if s.CloudSize != nil {
		m.size.WithLabelValues(group).Set(float64(*s.CloudSize))
	}
	m.allowed.WithLabelValues(group).Set(float64(s.AllowedDisruptions))
	of := prometheus.Labels{"group": group}
	m.accept.DeletePartialMatch(of)
	if is := acceptance.Of(&v1alpha1.NodeGroup{Status: s}); is.State != acceptance.NotObserved {
		value := 0.0
		if is.State == acceptance.Accepted {
			value = 1
		}
		m.accept.WithLabelValues(group, is.Reason).Set(value)
	}
	m.checks.WithLabelValues(group).Inc()
	m.idle.DeletePartialMatch(of)
	m.staying.DeletePartialMatch(of)
	for _, v := range []Verdict{Waits, Refused, Leaves, Retires} {
		m.idle.WithLabelValues(group, string(v)).Set(0)
	}
	for _, d := range decisions {
		if d.IdleSince != nil {
			m.idle.WithLabelValues(group, string(d.Verdict)).Inc()
		}
		if d.Verdict == Refused {
			for _, r := range d.Reasons {
				m.staying.WithLabelValues(group, r.Rule).Inc()
			}
		}
	}
}

func (m *Metrics) refused(group string, reasons []Reason) {
	for _, r := range reasons {
		m.refusals.WithLabelValues(group, r.Rule).Inc()
	}
}

func (m *Metrics) retired(group string)   { m.asked.WithLabelValues(group).Inc() }
func (m *Metrics) calledOff(group string) { m.called.WithLabelValues(group).Inc() }

func (m *Metrics) cloud(provider string, err error) {
	m.cloudRead.WithLabelValues(provider, cloud.Outcome(err)).Inc()
}

// forget drops a group that is no more.
func (m *Metrics) forget(group string) {
	of := prometheus.Labels{"group": group}
	for _, v := range []*prometheus.GaugeVec{m.nodes, m.size, m.allowed, m.accept, m.idle, m.staying} {
		v.DeletePartialMatch(of)
	}
	for _, v := range []*prometheus.CounterVec{m.checks, m.refusals, m.asked, m.called} {
		v.DeletePartialMatch(of)
	}
}
