package placementtest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	fastDisk = "fast.csi.example.com"
	slowDisk = "slow.csi.example.com"
	ebsDisk  = "ebs.csi.aws.com"
)

// inTreePlugins are the plugins with volumes that the scheduler may translate into volumes of a CSI driver.
var inTreePlugins = []string{
	"kubernetes.io/aws-ebs", "kubernetes.io/gce-pd", "kubernetes.io/azure-disk", "kubernetes.io/cinder",
	"kubernetes.io/portworx-volume", "kubernetes.io/azure-file", "kubernetes.io/vsphere-volume",
}

func (g generator) addStorage(c *Cluster) {
	c.StorageClasses = g.newStorageClasses()
	for i := range 6 {
		if v := g.newVolume(i); g.chance(9, 10) {
			c.Volumes = append(c.Volumes, v)
		}
	}
	for _, ns := range []string{"red", "green", "blue"} {
		for i := range 5 {
			if g.chance(9, 10) {
				c.Claims = append(c.Claims, g.newClaim(ns, i))
			}
		}
	}
	for _, n := range c.Nodes {
		if g.chance(1, 2) {
			c.CSINodes = append(c.CSINodes, g.newCSINode(n.Name))
		}
		for i := range g.IntN(4) / 2 {
			c.Attachments = append(c.Attachments, g.newAttachment(n.Name, i))
		}
	}
	for _, name := range []string{fastDisk, slowDisk, ebsDisk} {
		if g.chance(1, 5) {
			c.CSIDrivers = append(c.CSIDrivers, g.newCSIDriver(name))
		}
	}
	for i := range g.IntN(4) / 2 {
		c.Capacities = append(c.Capacities, g.newCapacity(i))
	}
}

func (g generator) newStorageClasses() []*storagev1.StorageClass {
	wait, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	class := func(name, provisioner string, mode *storagev1.VolumeBindingMode) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: mode}
	}
	zoned := class("zoned", fastDisk, &wait)
	zoned.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{
		Key: corev1.LabelTopologyZone, Values: pick(g, []string{"z1"}, []string{"z1", "z2"}),
	}}}}
	return []*storagev1.StorageClass{
		class("fast", fastDisk, &wait), class("slow", slowDisk, &now), class("local", "kubernetes.io/no-provisioner", &wait),
		class("broken", slowDisk, nil), zoned, class("in-tree", inTreePlugins[g.IntN(len(inTreePlugins))], &wait),
	}
}

// newVolume returns a volume. Most have a CSI driver.
func (g generator) newVolume(i int) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("volume-%d", i), Labels: map[string]string{}}}
	v.Spec.StorageClassName = pick(g, "slow", "slow", "fast", "")
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: pick(g, fastDisk, slowDisk), VolumeHandle: fmt.Sprintf("handle-%d", i)}
	if g.chance(1, 3) {
		v.Labels[pick(g, corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone)] = pick(g, "z1", "z2", "z1__z3", "z1__")
	}
	if g.chance(1, 3) {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: g.newNodeSelector()}
	}
	if g.chance(1, 4) {
		v.Spec.PersistentVolumeSource = g.newNonCSIVolume(i)
	}
	return v
}

// newNonCSIVolume returns a volume without a CSI driver. The scheduler translates some kinds, and fails for some
// volumes.
func (g generator) newNonCSIVolume(i int) (v corev1.PersistentVolumeSource) {
	name := fmt.Sprintf("disk-%d", i)
	switch g.IntN(13) {
	case 0:
		v.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: pick(g, "vol-1", "vol-2", "aws://z1/vol-3", "odd")}
	case 1:
		v.GCEPersistentDisk = &corev1.GCEPersistentDiskVolumeSource{PDName: name}
	case 2:
		kind := pick(g, corev1.AzureManagedDisk, corev1.AzureManagedDisk, corev1.AzureDedicatedBlobDisk)
		v.AzureDisk = &corev1.AzureDiskVolumeSource{DiskName: name, DataDiskURI: "/subscriptions/1/" + name, Kind: &kind}
	case 3:
		v.Cinder = &corev1.CinderPersistentVolumeSource{VolumeID: name}
	case 4:
		v.PortworxVolume = &corev1.PortworxVolumeSource{VolumeID: name}
	case 5:
		v.AzureFile = &corev1.AzureFilePersistentVolumeSource{SecretName: "secret", ShareName: name}
	case 6:
		v.VsphereVolume = &corev1.VsphereVirtualDiskVolumeSource{VolumePath: name}
	case 7:
		v.NFS = &corev1.NFSVolumeSource{Server: "nfs", Path: "/" + name}
	case 8:
		v.HostPath = &corev1.HostPathVolumeSource{Path: "/" + name}
	case 9:
		v.Local = &corev1.LocalVolumeSource{Path: "/" + name}
	case 10:
		v.ISCSI = &corev1.ISCSIPersistentVolumeSource{IQN: "i1"}
	case 11:
		v.RBD = &corev1.RBDPersistentVolumeSource{CephMonitors: []string{"m1"}, RBDPool: "p", RBDImage: name}
	default:
		v.FC = &corev1.FCVolumeSource{TargetWWNs: []string{name}}
	}
	return v
}

func (g generator) newClaim(ns string, i int) *corev1.PersistentVolumeClaim {
	class := pick(g, "fast", "fast", "slow", "slow", "slow", "local", "", "zoned", "in-tree")
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: fmt.Sprintf("claim-%d", i),
		Annotations: map[string]string{},
	}}
	c.Spec.StorageClassName = &class
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{pick(g, corev1.ReadWriteOnce, corev1.ReadWriteOnce, corev1.ReadWriteMany, corev1.ReadWriteOncePod)}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: pickQuantity(g, "1Gi", "10Gi")}
	c.Status.Phase = corev1.ClaimBound
	switch {
	case g.chance(2, 3):
		c.Spec.VolumeName = fmt.Sprintf("volume-%d", g.IntN(6))
		c.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
	case g.chance(1, 10):
		c.Spec.VolumeName = "volume-1"
	case g.chance(1, 4):
		c.Annotations["volume.kubernetes.io/selected-node"] = fmt.Sprintf("node-%d", g.IntN(4))
	}
	if g.chance(1, 25) {
		c.Status.Phase = corev1.ClaimLost
	}
	if g.chance(1, 25) {
		c.DeletionTimestamp = &metav1.Time{Time: metav1.Unix(1, 0).Time}
	}
	if g.chance(1, 40) {
		*c.Spec.StorageClassName = pick(g, "broken", "unknown")
	}
	return c
}

func (g generator) newCSINode(name string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if g.chance(1, 3) {
		var migrated []string
		for _, plugin := range inTreePlugins {
			if g.chance(1, 2) {
				migrated = append(migrated, plugin)
			}
		}
		n.Annotations = map[string]string{corev1.MigratedPluginsAnnotationKey: strings.Join(migrated, ",")}
	}
	for _, driver := range []string{
		fastDisk, slowDisk, ebsDisk, "pd.csi.storage.gke.io", "disk.csi.azure.com", "cinder.csi.openstack.org",
	} {
		d := storagev1.CSINodeDriver{Name: driver, NodeID: name}
		if g.chance(1, 2) {
			limit := int32(g.IntN(4))
			d.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
		}
		if g.chance(3, 4) {
			n.Spec.Drivers = append(n.Spec.Drivers, d)
		}
	}
	return n
}

func (g generator) newAttachment(node string, i int) *storagev1.VolumeAttachment {
	volume := fmt.Sprintf("volume-%d", g.IntN(7))
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("attachment-%s-%d", node, i)},
		Spec: storagev1.VolumeAttachmentSpec{
			NodeName: node, Attacher: pick(g, fastDisk, slowDisk, ""),
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		},
	}
}

func (g generator) newCSIDriver(name string) *storagev1.CSIDriver {
	capacity, prevent := g.chance(1, 3), g.chance(1, 2)
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}}
	d.Spec.StorageCapacity, d.Spec.PreventPodSchedulingIfMissing = &capacity, &prevent
	return d
}

// newCapacity returns the storage capacity of a class in a zone.
func (g generator) newCapacity(i int) *storagev1.CSIStorageCapacity {
	size := resource.MustParse(pick(g, "0", "5Gi", "100Gi"))
	return &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: "kube-system", Name: fmt.Sprintf("capacity-%d", i)},
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelTopologyZone: pick(g, "z1", "z2")}},
		StorageClassName: pick(g, "fast", "zoned"), Capacity: &size,
	}
}

func (g generator) addVolumes(p *corev1.Pod) {
	for i := range 1 + g.IntN(2) {
		v := corev1.Volume{Name: fmt.Sprintf("v%d", i)}
		switch g.IntN(10) {
		case 0, 1, 2:
			v.VolumeSource = g.newInlineVolume()
		case 3:
			v.Ephemeral = &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}
		default:
			v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("claim-%d", g.IntN(5))}
		}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
}

// newInlineVolume returns a volume that is defined in the pod.
func (g generator) newInlineVolume() (v corev1.VolumeSource) {
	switch g.IntN(16) {
	case 0, 1:
		v.GCEPersistentDisk = &corev1.GCEPersistentDiskVolumeSource{PDName: pick(g, "d1", "d2"), ReadOnly: g.chance(1, 2)}
	case 2, 3:
		v.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: pick(g, "vol-1", "vol-2", "odd")}
	case 4, 5:
		v.ISCSI = &corev1.ISCSIVolumeSource{IQN: pick(g, "i1", "i2"), ReadOnly: g.chance(1, 2)}
	case 6, 7:
		v.RBD = &corev1.RBDVolumeSource{CephMonitors: []string{pick(g, "m1", "m2"), "m3"}, RBDPool: "p", RBDImage: pick(g, "x", "y"), ReadOnly: g.chance(1, 2)}
	case 8:
		kind := pick(g, corev1.AzureManagedDisk, corev1.AzureDedicatedBlobDisk)
		v.AzureDisk = &corev1.AzureDiskVolumeSource{DiskName: "d1", DataDiskURI: "/subscriptions/1/d1", Kind: &kind}
	case 9:
		v.Cinder = &corev1.CinderVolumeSource{VolumeID: pick(g, "d1", "d2")}
	case 10:
		v.PortworxVolume = &corev1.PortworxVolumeSource{VolumeID: pick(g, "d1", "d2")}
	case 11:
		v.AzureFile = &corev1.AzureFileVolumeSource{SecretName: "secret", ShareName: "share"}
	case 12:
		v.VsphereVolume = &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[store] d1"}
	case 13:
		v.NFS = &corev1.NFSVolumeSource{Server: "nfs", Path: "/"}
	case 14:
		v.CSI = &corev1.CSIVolumeSource{Driver: fastDisk}
	default:
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	return v
}

// addEphemeralClaims adds the claims of generic ephemeral volumes. Most are owned by their pod.
func (g generator) addEphemeralClaims(c *Cluster) {
	yes := true
	for _, list := range [][]*corev1.Pod{c.Pods, c.Candidates} {
		for _, p := range list {
			for _, v := range p.Spec.Volumes {
				if v.Ephemeral == nil || g.chance(1, 8) {
					continue
				}
				claim := g.newClaim(p.Namespace, 0)
				claim.Name = p.Name + "-" + v.Name
				owner := p.UID
				if g.chance(1, 8) {
					owner = "another"
				}
				claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: owner, Controller: &yes}}
				c.Claims = append(c.Claims, claim)
			}
		}
	}
}
