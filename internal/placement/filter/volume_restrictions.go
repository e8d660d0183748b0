package filter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
)

const restrictionsPredicate = "VolumeRestrictions"

var (
	reasonDiskConflict     = placement.Reason{Predicate: restrictionsPredicate, Message: "disk is in use on the node", Scheduler: "node(s) had no available disk"}
	reasonReadWriteOncePod = placement.Reason{
		Predicate: restrictionsPredicate, Message: "ReadWriteOncePod claim is in use by another pod",
		Scheduler: "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
	}
)

// checkVolumeRestrictions implements the plugin VolumeRestrictions: inline disks that pods on one node cannot share,
// and claims that only one pod in the cluster can use.
func (h *Chain) checkVolumeRestrictions(c *PodClass, n *Node) *placement.Reason {
	for i := range c.volumes.disks {
		for other := range n.volumePods {
			conflicts := func(v corev1.Volume) bool { return doDisksConflict(&c.volumes.disks[i], &v) }
			if slices.ContainsFunc(other.volumes.disks, conflicts) {
				return &reasonDiskConflict
			}
		}
	}
	for _, key := range c.volumes.currentView(h.Storage).readWriteOncePod {
		if h.Storage.podsPerClaim[key] > 0 {
			return &reasonReadWriteOncePod
		}
	}
	return nil
}

// doDisksConflict reports whether two inline volumes conflict. Two read-only mounts can share a disk, except on EBS,
// which is never shared.
func doDisksConflict(a, b *corev1.Volume) bool {
	if x, y := a.GCEPersistentDisk, b.GCEPersistentDisk; x != nil && y != nil && x.PDName == y.PDName {
		if !x.ReadOnly || !y.ReadOnly {
			return true
		}
	}
	if x, y := a.AWSElasticBlockStore, b.AWSElasticBlockStore; x != nil && y != nil && x.VolumeID == y.VolumeID {
		return true
	}
	if x, y := a.ISCSI, b.ISCSI; x != nil && y != nil && x.IQN == y.IQN {
		if !x.ReadOnly || !y.ReadOnly {
			return true
		}
	}
	x, y := a.RBD, b.RBD
	if x == nil || y == nil || x.RBDPool != y.RBDPool || x.RBDImage != y.RBDImage || x.ReadOnly && y.ReadOnly {
		return false
	}
	return slices.ContainsFunc(x.CephMonitors, func(m string) bool { return slices.Contains(y.CephMonitors, m) })
}
