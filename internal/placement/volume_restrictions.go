package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const restrictionsPredicate = "VolumeRestrictions"

var (
	reasonDisk      = Reason{restrictionsPredicate, "disk is in use on the node", "node(s) had no available disk"}
	reasonExclusive = Reason{
		restrictionsPredicate, "ReadWriteOncePod claim is in use by another pod",
		"node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
	}
)

// volumeRestrictions is the plugin of that name: inline disks that pods of one node cannot share, and claims that one
// pod in the cluster can use.
func (s *Snapshot) volumeRestrictions(c *class, n *node) *Reason {
	for i := range c.volumes.disks {
		for other := range n.volumePods {
			conflicts := func(v corev1.Volume) bool { return disksConflict(&c.volumes.disks[i], &v) }
			if slices.ContainsFunc(other.volumes.disks, conflicts) {
				return &reasonDisk
			}
		}
	}
	for _, key := range c.volumes.resolve(&s.storage).exclusive {
		if s.storage.inUse[key] > 0 {
			return &reasonExclusive
		}
	}
	return nil
}

// disksConflict compares two inline volumes: the same disk can be shared when both mount it read-only, an EBS volume not
// at all.
func disksConflict(a, b *corev1.Volume) bool {
	if a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil && a.GCEPersistentDisk.PDName == b.GCEPersistentDisk.PDName &&
		(!a.GCEPersistentDisk.ReadOnly || !b.GCEPersistentDisk.ReadOnly) {
		return true
	}
	if a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil &&
		a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID {
		return true
	}
	if a.ISCSI != nil && b.ISCSI != nil && a.ISCSI.IQN == b.ISCSI.IQN && (!a.ISCSI.ReadOnly || !b.ISCSI.ReadOnly) {
		return true
	}
	return a.RBD != nil && b.RBD != nil && a.RBD.RBDPool == b.RBD.RBDPool && a.RBD.RBDImage == b.RBD.RBDImage &&
		(!a.RBD.ReadOnly || !b.RBD.ReadOnly) &&
		slices.ContainsFunc(a.RBD.CephMonitors, func(m string) bool { return slices.Contains(b.RBD.CephMonitors, m) })
}
