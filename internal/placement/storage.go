package placement

import (
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// What the volume binder and its annotations are called; see k8s.io/component-helpers/storage/volume, which is not
// imported because it brings client-go with it.
const (
	annotationBindCompleted = "pv.kubernetes.io/bind-completed"
	annotationSelectedNode  = "volume.kubernetes.io/selected-node"
	noProvisioner           = "kubernetes.io/no-provisioner"
)

// storage is what scheduling reads of volumes.
type storage struct {
	claims         map[PodKey]*claim
	volumes        map[string]*volume
	perClass       map[string]int // volumes per storage class
	storageClasses map[string]*storageClass
	drivers        map[string]bool               // CSI drivers that track storage capacity
	csiNodes       map[string]*storagev1.CSINode // by node name
	attachments    map[string]attachment         // by name of the VolumeAttachment
	attachedTo     map[string]map[string]bool    // names of VolumeAttachments by node name
	deviceClasses  map[string]string             // extended resource to device class
	generation     uint64                        // moves with every change
	inUse          map[PodKey]int32              // placed pods per claim
}

func newStorage() storage {
	return storage{
		claims: map[PodKey]*claim{}, volumes: map[string]*volume{}, perClass: map[string]int{},
		storageClasses: map[string]*storageClass{}, drivers: map[string]bool{}, csiNodes: map[string]*storagev1.CSINode{},
		attachments: map[string]attachment{}, attachedTo: map[string]map[string]bool{}, deviceClasses: map[string]string{},
		inUse: map[PodKey]int32{}, generation: 1,
	}
}

type claim struct {
	name, volumeName, storageClass, selectedNode string
	owner                                        string // UID of the controlling owner
	bound, lost, deleting, exclusive, selected   bool
}

type volume struct {
	name, storageClass string
	driver, handle     string // of a CSI volume
	inTree             string // in-tree plugin that the volume could be migrated from
	affinity           *nodeaffinity.LazyErrorNodeSelector
	zones              []zoneLabel
}

type zoneLabel struct {
	key    string
	values map[string]bool
}

type storageClass struct {
	provisioner string
	mode        *storagev1.VolumeBindingMode
	topologies  bool
}

type attachment struct{ node, driver, volume string }

// SetPersistentVolumeClaim takes over a claim.
func (s *Snapshot) SetPersistentVolumeClaim(o *corev1.PersistentVolumeClaim) error {
	if o == nil {
		return errors.New("no persistent volume claim")
	}
	c := &claim{
		name: o.Name, volumeName: o.Spec.VolumeName, lost: o.Status.Phase == corev1.ClaimLost,
		deleting: o.DeletionTimestamp != nil,
	}
	c.storageClass = valueOr(o.Spec.StorageClassName, "")
	if class, ok := o.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		c.storageClass = class
	}
	c.selectedNode, c.selected = o.Annotations[annotationSelectedNode]
	_, completed := o.Annotations[annotationBindCompleted]
	c.bound = o.Spec.VolumeName != "" && completed
	for _, mode := range o.Spec.AccessModes {
		c.exclusive = c.exclusive || mode == corev1.ReadWriteOncePod
	}
	for i := range o.OwnerReferences {
		if r := &o.OwnerReferences[i]; valueOr(r.Controller, false) {
			c.owner = string(r.UID)
			break
		}
	}
	return s.changeStorage(func() { s.storage.claims[PodKey{Namespace: o.Namespace, Name: o.Name}] = c })
}

// DeletePersistentVolumeClaim forgets a claim.
func (s *Snapshot) DeletePersistentVolumeClaim(key PodKey) error {
	return s.changeStorage(func() { delete(s.storage.claims, key) })
}

// SetPersistentVolume takes over a volume.
func (s *Snapshot) SetPersistentVolume(o *corev1.PersistentVolume) error {
	if o == nil {
		return errors.New("no persistent volume")
	}
	v := &volume{name: o.Name, storageClass: o.Spec.StorageClassName, inTree: inTreeVolume(o), zones: zoneLabels(o.Labels)}
	if class, ok := o.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		v.storageClass = class
	}
	if o.Spec.CSI != nil {
		v.driver, v.handle = o.Spec.CSI.Driver, o.Spec.CSI.VolumeHandle
	}
	if o.Spec.NodeAffinity != nil && o.Spec.NodeAffinity.Required != nil {
		v.affinity = nodeaffinity.NewLazyErrorNodeSelector(o.Spec.NodeAffinity.Required)
	}
	return s.changeStorage(func() {
		if old, ok := s.storage.volumes[v.name]; ok {
			s.storage.perClass[old.storageClass]--
		}
		s.storage.volumes[v.name] = v
		s.storage.perClass[v.storageClass]++
	})
}

// DeletePersistentVolume forgets a volume.
func (s *Snapshot) DeletePersistentVolume(name string) error {
	return s.changeStorage(func() {
		if old, ok := s.storage.volumes[name]; ok {
			s.storage.perClass[old.storageClass]--
			delete(s.storage.volumes, name)
		}
	})
}

// SetStorageClass takes over a storage class.
func (s *Snapshot) SetStorageClass(o *storagev1.StorageClass) error {
	if o == nil {
		return errors.New("no storage class")
	}
	return s.changeStorage(func() {
		s.storage.storageClasses[o.Name] = &storageClass{o.Provisioner, o.VolumeBindingMode, len(o.AllowedTopologies) > 0}
	})
}

// DeleteStorageClass forgets a storage class.
func (s *Snapshot) DeleteStorageClass(name string) error {
	return s.changeStorage(func() { delete(s.storage.storageClasses, name) })
}

// SetCSIDriver takes over whether a driver tracks its storage capacity.
func (s *Snapshot) SetCSIDriver(o *storagev1.CSIDriver) error {
	if o == nil {
		return errors.New("no CSI driver")
	}
	return s.changeStorage(func() { s.storage.drivers[o.Name] = valueOr(o.Spec.StorageCapacity, false) })
}

// DeleteCSIDriver forgets a driver.
func (s *Snapshot) DeleteCSIDriver(name string) error {
	return s.changeStorage(func() { delete(s.storage.drivers, name) })
}

// SetCSINode takes over how many volumes a node can attach.
func (s *Snapshot) SetCSINode(o *storagev1.CSINode) error {
	if o == nil {
		return errors.New("no CSI node")
	}
	return s.changeStorage(func() {
		s.storage.csiNodes[o.Name] = o
		if n := s.nodeByName[o.Name]; n != nil {
			s.storage.adopt(n)
		}
	})
}

// DeleteCSINode forgets the limits of a node.
func (s *Snapshot) DeleteCSINode(name string) error {
	return s.changeStorage(func() {
		delete(s.storage.csiNodes, name)
		if n := s.nodeByName[name]; n != nil {
			s.storage.adopt(n)
		}
	})
}

// SetVolumeAttachment takes over an attachment, which counts against its node's limit until it is deleted.
func (s *Snapshot) SetVolumeAttachment(o *storagev1.VolumeAttachment) error {
	if o == nil {
		return errors.New("no volume attachment")
	}
	return s.changeStorage(func() {
		s.storage.dropAttachment(o.Name)
		a := attachment{node: o.Spec.NodeName, driver: o.Spec.Attacher, volume: valueOr(o.Spec.Source.PersistentVolumeName, "")}
		if a.driver == "" || o.Spec.Source.PersistentVolumeName == nil {
			return
		}
		s.storage.attachments[o.Name] = a
		if s.storage.attachedTo[a.node] == nil {
			s.storage.attachedTo[a.node] = map[string]bool{}
		}
		s.storage.attachedTo[a.node][o.Name] = true
	})
}

// DeleteVolumeAttachment forgets an attachment.
func (s *Snapshot) DeleteVolumeAttachment(name string) error {
	return s.changeStorage(func() { s.storage.dropAttachment(name) })
}

// SetDeviceClass takes over which extended resource a device class offers.
func (s *Snapshot) SetDeviceClass(o *resourcev1.DeviceClass) error {
	if o == nil {
		return errors.New("no device class")
	}
	return s.changeStorage(func() {
		s.storage.dropDeviceClass(o.Name)
		s.storage.deviceClasses[resourcev1.ResourceDeviceClassPrefix+o.Name] = o.Name
		if name := valueOr(o.Spec.ExtendedResourceName, ""); name != "" {
			s.storage.deviceClasses[name] = o.Name
		}
	})
}

// DeleteDeviceClass forgets a device class.
func (s *Snapshot) DeleteDeviceClass(name string) error {
	return s.changeStorage(func() { s.storage.dropDeviceClass(name) })
}

func (s *Snapshot) changeStorage(change func()) error {
	if err := s.event(); err != nil {
		return err
	}
	change()
	s.storage.generation++
	return nil
}

func (st *storage) dropAttachment(name string) {
	if a, ok := st.attachments[name]; ok {
		delete(st.attachments, name)
		delete(st.attachedTo[a.node], name)
		if len(st.attachedTo[a.node]) == 0 {
			delete(st.attachedTo, a.node)
		}
	}
}

func (st *storage) dropDeviceClass(name string) {
	for resource, class := range st.deviceClasses {
		if class == name {
			delete(st.deviceClasses, resource)
		}
	}
}

func (st *storage) deviceClassFor(resource string) string { return st.deviceClasses[resource] }

// adopt gives a node what its CSINode says.
func (st *storage) adopt(n *node) {
	n.csiNode, n.limits, n.migrated = false, nil, ""
	o := st.csiNodes[n.name()]
	if o == nil {
		return
	}
	n.csiNode, n.migrated = true, o.Annotations[corev1.MigratedPluginsAnnotationKey]
	for i := range o.Spec.Drivers {
		if d := &o.Spec.Drivers[i]; d.Allocatable != nil && d.Allocatable.Count != nil {
			if n.limits == nil {
				n.limits = map[string]int64{}
			}
			n.limits[d.Name] = int64(*d.Allocatable.Count)
		}
	}
}

// use counts the claims of a placed pod.
func (st *storage) use(p *pod, sign int32) {
	if p.class.volumes == nil {
		return
	}
	for i := range p.class.volumes.claims {
		if r := &p.class.volumes.claims[i]; !r.ephemeral {
			if st.inUse[r.key] += sign; st.inUse[r.key] == 0 {
				delete(st.inUse, r.key)
			}
		}
	}
}

// zoneKeys are the labels by which a volume names its zone and region, in the order in which the scheduler looks.
var zoneKeys = [...]string{
	corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
}

// zoneLabels reads the zones of a volume; several are separated by "__". A label with an empty part is ignored.
func zoneLabels(set map[string]string) []zoneLabel {
	var list []zoneLabel
	for _, key := range zoneKeys {
		value, ok := set[key]
		if !ok {
			continue
		}
		zones := map[string]bool{}
		for part := range strings.SplitSeq(value, "__") {
			zones[strings.TrimSpace(part)] = true
		}
		if !zones[""] {
			list = append(list, zoneLabel{key, zones})
		}
	}
	return list
}

// inTreeDrivers maps the in-tree plugins whose volumes a CSI driver has taken over to that driver.
var inTreeDrivers = map[string]string{
	"kubernetes.io/aws-ebs":         "ebs.csi.aws.com",
	"kubernetes.io/gce-pd":          "pd.csi.storage.gke.io",
	"kubernetes.io/azure-disk":      "disk.csi.azure.com",
	"kubernetes.io/cinder":          "cinder.csi.openstack.org",
	"kubernetes.io/portworx-volume": "pxd.portworx.com",
}

func inTreeVolume(o *corev1.PersistentVolume) string {
	switch {
	case o.Spec.AWSElasticBlockStore != nil:
		return "kubernetes.io/aws-ebs"
	case o.Spec.GCEPersistentDisk != nil:
		return "kubernetes.io/gce-pd"
	case o.Spec.AzureDisk != nil:
		return "kubernetes.io/azure-disk"
	case o.Spec.Cinder != nil:
		return "kubernetes.io/cinder"
	case o.Spec.PortworxVolume != nil:
		return "kubernetes.io/portworx-volume"
	default:
		return ""
	}
}

func inTreeInline(v *corev1.Volume) string {
	switch {
	case v.AWSElasticBlockStore != nil:
		return "kubernetes.io/aws-ebs"
	case v.GCEPersistentDisk != nil:
		return "kubernetes.io/gce-pd"
	case v.AzureDisk != nil:
		return "kubernetes.io/azure-disk"
	case v.Cinder != nil:
		return "kubernetes.io/cinder"
	case v.PortworxVolume != nil:
		return "kubernetes.io/portworx-volume"
	default:
		return ""
	}
}
