package manager

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// groupMetrics holds the metrics of NodeGroups that have no object in the API server.
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
			Help: "1 while a group of a file or a compatibility mode is ignored, because another group has its name, else 0.",
		}, []string{"group"}),
	}
	return m, errors.Join(r.Register(m.file), r.Register(m.shadowed))
}

func (m *groupMetrics) setShadowed(group string, value float64) {
	if m != nil {
		m.shadowed.WithLabelValues(group).Set(value)
	}
}

func (m *groupMetrics) setFileInForce(value float64) {
	if m != nil {
		m.file.WithLabelValues().Set(value)
	}
}

// reportFileState records in a metric whether the file of NodeGroups is valid. It logs the
// validity only if the validity or the error has changed.
func (g *GroupSource) reportFileState(err error) {
	message, inForce := "", 1.0
	if err != nil {
		message, inForce = err.Error(), 0
	}
	g.metrics.setFileInForce(inForce)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case message == g.lastFileError:
	case err != nil:
		g.Log.Error("the file of NodeGroups is invalid; its previous content stays valid", "err", err)
	default:
		g.Log.Info("the file of NodeGroups is valid again", "file", g.File)
	}
	g.lastFileError = message
}

// reportShadowedGroups records in a metric each group that is ignored because another group has the same name. It logs
// only changes. The caller must have locked g.mu.
func (g *GroupSource) reportShadowedGroups(replacements map[string]*v1alpha1.NodeGroup) {
	for name, other := range replacements {
		if !g.shadowed[name] {
			g.Log.Warn("a NodeGroup of this process is ignored, because another one has the same name", "group", name, "inForce", g.describeOrigin(other))
			g.metrics.setShadowed(name, 1)
		}
	}
	for name := range g.shadowed {
		if replacements[name] == nil {
			g.Log.Info("a NodeGroup of this process is used again, because the other one of its name is deleted", "group", name)
			g.metrics.setShadowed(name, 0)
		}
	}
	g.shadowed = map[string]bool{}
	for name := range replacements {
		g.shadowed[name] = true
	}
}

// describeOrigin returns a text that says where the group comes from, and whether this process handles it.
func (g *GroupSource) describeOrigin(group *v1alpha1.NodeGroup) string {
	switch {
	case group.UID == "":
		return "that of --node-groups"
	case g.Selector != nil && !g.Selector.Matches(labels.Set(group.Labels)):
		return "that of the API server, which this process ignores because of --selector " + g.Selector.String()
	}
	return "that of the API server"
}
