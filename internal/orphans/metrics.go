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

// NewMetrics registers the metrics with r. It returns the joined errors of r.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		orphans: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "slipway_orphans",
			Help: "Instances of the cluster without a Node (Instance; only of a cloud that marks its instances), and Nodes without an instance (Node), " +
				"suspected or proven.",
		}, []string{"cloud", "kind", "state"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_orphans_removed_total", Help: "Orphaned instances that were deleted, and orphaned Nodes with a requested retirement.",
		}, []string{"cloud", "kind"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_orphans_failed_observations_total", Help: "Searches for orphans that were incomplete.",
		}, []string{"cloud"}),
	}
	return m, errors.Join(r.Register(m.orphans), r.Register(m.removed), r.Register(m.failures))
}
