package placement

import corev1 "k8s.io/api/core/v1"

const zonePredicate = "VolumeZone"

var reasonZone = Reason{zonePredicate, "volume is in another zone", "node(s) had no available volume zone"}

// volumeZone is the plugin of that name: a node with zone or region labels lies in those of the bound volumes. A beta
// label of a volume is also compared with the stable label of the node.
func (s *Snapshot) volumeZone(c *class, n *node) *Reason {
	zoned := false
	for _, key := range zoneKeys {
		if _, ok := n.object.Labels[key]; ok {
			zoned = true
		}
	}
	if !zoned {
		return nil
	}
	for _, z := range c.volumes.resolve(&s.storage).zones {
		value, ok := n.object.Labels[z.key]
		if !ok {
			value, ok = n.object.Labels[stableZoneKey(z.key)]
		}
		if !ok || !z.values[value] {
			return &reasonZone
		}
	}
	return nil
}

func stableZoneKey(key string) string {
	switch key {
	case corev1.LabelFailureDomainBetaZone:
		return corev1.LabelTopologyZone
	case corev1.LabelFailureDomainBetaRegion:
		return corev1.LabelTopologyRegion
	default:
		return key
	}
}
