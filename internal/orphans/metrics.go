package orphans

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts orphaned instances and Nodes.
type Metrics struct {
	orphans  *prometheus.GaugeVec
	removed  *prometheus.CounterVec
	failures *prometheus.CounterVec
}

func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		orphans: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "slipway_strays",
			Help: "Machines of the cluster without a Node (Orphan, of a cloud that marks its machines) and Nodes without a machine (Ghost), " +
				"suspected or proven.",
		}, []string{"cloud", "kind", "state"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_strays_collected_total", Help: "Orphans whose machine was deleted, and ghosts whose Node's retirement was asked for.",
		}, []string{"cloud", "kind"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_strays_look_failures_total", Help: "Looks for strays that have left something open.",
		}, []string{"cloud"}),
	}
	return m, errors.Join(r.Register(m.orphans), r.Register(m.removed), r.Register(m.failures))
}
