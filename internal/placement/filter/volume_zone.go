package filter

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
)

const zonePredicate = "VolumeZone"

var reasonZone = placement.Reason{Predicate: zonePredicate, Message: "volume is in another zone", Scheduler: "node(s) had no available volume zone"}

// checkVolumeZone implements the plugin VolumeZone: a node with zone or region labels must match the labels of the
// bound volumes. A beta label of a volume also matches the stable label of the node.
func (h *Chain) checkVolumeZone(c *PodClass, n *Node) *placement.Reason {
	zoned := false
	for _, key := range zoneKeys {
		if _, ok := n.Object.Labels[key]; ok {
			zoned = true
		}
	}
	if !zoned {
		return nil
	}
	for _, z := range c.volumes.currentView(h.Storage).zones {
		value, ok := n.Object.Labels[z.key]
		if !ok {
			value, ok = n.Object.Labels[toStableZoneKey(z.key)]
		}
		if !ok || !z.values[value] {
			return &reasonZone
		}
	}
	return nil
}

func toStableZoneKey(key string) string {
	switch key {
	case corev1.LabelFailureDomainBetaZone:
		return corev1.LabelTopologyZone
	case corev1.LabelFailureDomainBetaRegion:
		return corev1.LabelTopologyRegion
	default:
		return key
	}
}
