package manager

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// groupMetrics tell which NodeGroups are in force that have no object to say it on.
type groupMetrics struct {
	file     *prometheus.GaugeVec
	shadowed *prometheus.GaugeVec
}

func newGroupMetrics(r prometheus.Registerer) (*groupMetrics, error) {
	m := &groupMetrics{
		file: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "slipway_nodegroup_file_applied",
			Help: "1 when the file of --node-groups is in force as it is, 0 when it is refused and what it said before is. Without a file there is none.",
		}, nil),
		shadowed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "slipway_nodegroup_name_conflict",
			Help: "1 while a group of a file or of a stand-in is not in force, as another one has its name; 0 when it is again.",
		}, []string{"group"}),
	}
	return m, errors.Join(r.Register(m.file), r.Register(m.shadowed))
}

func (m *groupMetrics) shadow(group string, value float64) {
	if m != nil {
		m.shadowed.WithLabelValues(group).Set(value)
	}
}

func (m *groupMetrics) inForce(value float64) {
	if m != nil {
		m.file.WithLabelValues().Set(value)
	}
}

// sayFile takes in whether the file is in force, and tells of it once.
func (g *Groups) sayFile(err error) {
	said, inForce := "", 1.0
	if err != nil {
		said, inForce = err.Error(), 0
	}
	g.metrics.inForce(inForce)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case said == g.refusal:
	case err != nil:
		g.Log.Error("the file of NodeGroups is refused; what it said before stays in force", "err", err)
	default:
		g.Log.Info("the file of NodeGroups is in force again", "file", g.File)
	}
	g.refusal = said
}

// sayShadowed takes in which groups without an object are passed over for one of the same name, and tells of each once. The
// caller holds the lock.
func (g *Groups) sayShadowed(by map[string]*v1alpha1.NodeGroup) {
	for name, other := range by {
		if !g.shadowed[name] {
			g.Log.Warn("a NodeGroup of this process is not in force, as there is another one of its name", "group", name, "inForce", g.origin(other))
			g.metrics.shadow(name, 1)
		}
	}
	for name := range g.shadowed {
		if by[name] == nil {
			g.Log.Info("the other NodeGroup of the name of one of this process has gone", "group", name)
			g.metrics.shadow(name, 0)
		}
	}
	g.shadowed = map[string]bool{}
	for name := range by {
		g.shadowed[name] = true
	}
}

// origin says where a group is from that is in force, and what else there is to know of it.
func (g *Groups) origin(group *v1alpha1.NodeGroup) string {
	switch {
	case group.UID == "":
		return "that of --node-groups"
	case g.Selector != nil && !g.Selector.Matches(labels.Set(group.Labels)):
		return "that of the API server, which this process does not act on, as --selector " + g.Selector.String() + " passes it over"
	}
	return "that of the API server"
}
