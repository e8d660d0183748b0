package filter

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/slipway-dev/slipway/internal/placement"
)

// Names and annotations of the volume binder, from k8s.io/component-helpers/storage/volume. That package is not
// imported because it depends on client-go.
const (
	annotationBindCompleted = "pv.kubernetes.io/bind-completed"
	annotationSelectedNode  = "volume.kubernetes.io/selected-node"
	noProvisioner           = "kubernetes.io/no-provisioner"
)

// Storage holds what scheduling reads from volumes, claims, drivers and device classes.
type Storage struct {
	beginEvent func() error     // counts an event; fails while the snapshot is forked
	nodes      map[string]*Node // nodes of the snapshot

	claims          map[placement.PodKey]*claim
	volumes         map[string]*volume
	volumesPerClass map[string]int // by storage class name
	storageClasses  map[string]*storageClass
	drivers         map[string]csiDriver
	csiNodes        map[string]*storagev1.CSINode // by node name
	attachments     map[string]attachment         // by name of the VolumeAttachment
	attachedTo      map[string]map[string]bool    // names of VolumeAttachments by node name
	deviceClasses   map[string][]string           // sorted names of device classes by extended resource
	generation      uint64                        // increases with every change
	podsPerClaim    map[placement.PodKey]int32    // number of placed pods by claim
}

// NewStorage returns an empty Storage. The Storage calls beginEvent before each event, and updates the given nodes when their
// CSINodes change.
func NewStorage(beginEvent func() error, nodes map[string]*Node) Storage {
	return Storage{
		beginEvent: beginEvent, nodes: nodes,
		claims: map[placement.PodKey]*claim{}, volumes: map[string]*volume{}, volumesPerClass: map[string]int{},
		storageClasses: map[string]*storageClass{}, drivers: map[string]csiDriver{}, csiNodes: map[string]*storagev1.CSINode{},
		attachments: map[string]attachment{}, attachedTo: map[string]map[string]bool{}, deviceClasses: map[string][]string{},
		podsPerClaim: map[placement.PodKey]int32{}, generation: 1,
	}
}

type claim struct {
	name, volumeName, storageClass, selectedNode             string
	owner                                                    string // UID of the controlling owner
	bound, lost, deleting, readWriteOncePod, hasSelectedNode bool
}

type volume struct {
	name, storageClass string
	driver, handle     string // of a CSI volume
	inTree             string // in-tree plugin that the volume can be migrated from
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
	topologies  []labels.Selector // one per allowed topology; empty if volumes are provisioned for any node
}

// csiDrivers is what the CSINode of a node says.
type csiDrivers struct {
	csiNode   bool             // a CSINode exists; the fields below come from it
	limits    map[string]int64 // number of attachable volumes by CSI driver
	drivers   []string
	migrated  []string // in-tree plugins whose volumes are handled by a CSI driver
	isAssumed bool     // the node is new, and the CSINode is that of a node like it
}

// csiDriver says whether a driver tracks its storage capacity, and whether its volumes need a node with the driver.
type csiDriver struct{ tracksCapacity, requiredOnNode bool }

type attachment struct{ node, driver, volume string }

// SetPersistentVolumeClaim adds or updates a claim.
func (st *Storage) SetPersistentVolumeClaim(o *corev1.PersistentVolumeClaim) error {
	return applyChangeRejectingNil(st, o, func() { st.claims[placement.PodKey{Namespace: o.Namespace, Name: o.Name}] = newClaim(o) })
}

func newClaim(o *corev1.PersistentVolumeClaim) *claim {
	c := &claim{
		name: o.Name, volumeName: o.Spec.VolumeName, lost: o.Status.Phase == corev1.ClaimLost,
		deleting: o.DeletionTimestamp != nil, storageClass: ptr.Deref(o.Spec.StorageClassName, ""),
	}
	if class, ok := o.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		c.storageClass = class
	}
	c.selectedNode, c.hasSelectedNode = o.Annotations[annotationSelectedNode]
	_, completed := o.Annotations[annotationBindCompleted]
	c.bound = o.Spec.VolumeName != "" && completed
	c.readWriteOncePod = slices.Contains(o.Spec.AccessModes, corev1.ReadWriteOncePod)
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		c.owner = string(owner.UID)
	}
	return c
}

// DeletePersistentVolumeClaim removes a claim.
func (st *Storage) DeletePersistentVolumeClaim(key placement.PodKey) error {
	return st.applyAsNewGeneration(func() { delete(st.claims, key) })
}

// SetPersistentVolume adds or updates a volume.
func (st *Storage) SetPersistentVolume(o *corev1.PersistentVolume) error {
	return applyChangeRejectingNil(st, o, func() {
		v := newVolume(o)
		st.dropVolume(v.name)
		st.volumes[v.name] = v
		st.volumesPerClass[v.storageClass]++
	})
}

func newVolume(o *corev1.PersistentVolume) *volume {
	v := &volume{name: o.Name, storageClass: o.Spec.StorageClassName, inTree: findInTreePlugin(o), zones: parseZoneLabels(o.Labels)}
	if class, ok := o.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		v.storageClass = class
	}
	if o.Spec.CSI != nil {
		v.driver, v.handle = o.Spec.CSI.Driver, o.Spec.CSI.VolumeHandle
	}
	if o.Spec.NodeAffinity != nil && o.Spec.NodeAffinity.Required != nil {
		v.affinity = nodeaffinity.NewLazyErrorNodeSelector(o.Spec.NodeAffinity.Required)
	}
	return v
}

// DeletePersistentVolume removes a volume.
func (st *Storage) DeletePersistentVolume(name string) error {
	return st.applyAsNewGeneration(func() { st.dropVolume(name) })
}

func (st *Storage) dropVolume(name string) {
	if old, ok := st.volumes[name]; ok {
		st.volumesPerClass[old.storageClass]--
		delete(st.volumes, name)
	}
}

// SetStorageClass adds or updates a storage class.
func (st *Storage) SetStorageClass(o *storagev1.StorageClass) error {
	return applyChangeRejectingNil(st, o, func() {
		st.storageClasses[o.Name] = &storageClass{o.Provisioner, o.VolumeBindingMode, compileTopologies(o.AllowedTopologies)}
	})
}

// compileTopologies returns a selector of nodes for each term. As in the scheduler, a term without expressions, or with an
// invalid one, selects no node.
func compileTopologies(terms []corev1.TopologySelectorTerm) []labels.Selector {
	selectors := make([]labels.Selector, len(terms))
	for i := range terms {
		selectors[i] = labels.Nothing()
		var all []labels.Requirement
		for _, e := range terms[i].MatchLabelExpressions {
			r, err := labels.NewRequirement(e.Key, selection.In, e.Values)
			if err != nil {
				all = nil
				break
			}
			all = append(all, *r)
		}
		if len(all) > 0 {
			selectors[i] = labels.NewSelector().Add(all...)
		}
	}
	return selectors
}

// DeleteStorageClass removes a storage class.
func (st *Storage) DeleteStorageClass(name string) error {
	return st.applyAsNewGeneration(func() { delete(st.storageClasses, name) })
}

// SetCSIDriver adds or updates the scheduling options of a CSI driver.
func (st *Storage) SetCSIDriver(o *storagev1.CSIDriver) error {
	return applyChangeRejectingNil(st, o, func() {
		st.drivers[o.Name] = csiDriver{ptr.Deref(o.Spec.StorageCapacity, false), ptr.Deref(o.Spec.PreventPodSchedulingIfMissing, false)}
	})
}

// DeleteCSIDriver removes a CSI driver.
func (st *Storage) DeleteCSIDriver(name string) error {
	return st.applyAsNewGeneration(func() { delete(st.drivers, name) })
}

// SetCSINode adds or updates the drivers of a node and their attach limits.
func (st *Storage) SetCSINode(o *storagev1.CSINode) error {
	return applyChangeRejectingNil(st, o, func() {
		st.csiNodes[o.Name] = o
		if n := st.nodes[o.Name]; n != nil {
			st.UpdateNodeFromCSINode(n)
		}
	})
}

// DeleteCSINode removes the drivers and attach limits of a node.
func (st *Storage) DeleteCSINode(name string) error {
	return st.applyAsNewGeneration(func() {
		delete(st.csiNodes, name)
		if n := st.nodes[name]; n != nil {
			st.UpdateNodeFromCSINode(n)
		}
	})
}

// SetVolumeAttachment adds or updates an attachment. It counts against the limit of its node until it is deleted.
func (st *Storage) SetVolumeAttachment(o *storagev1.VolumeAttachment) error {
	return applyChangeRejectingNil(st, o, func() {
		st.dropAttachment(o.Name)
		a := attachment{node: o.Spec.NodeName, driver: o.Spec.Attacher, volume: ptr.Deref(o.Spec.Source.PersistentVolumeName, "")}
		if a.driver == "" || o.Spec.Source.PersistentVolumeName == nil {
			return
		}
		st.attachments[o.Name] = a
		if st.attachedTo[a.node] == nil {
			st.attachedTo[a.node] = map[string]bool{}
		}
		st.attachedTo[a.node][o.Name] = true
	})
}

// DeleteVolumeAttachment removes an attachment.
func (st *Storage) DeleteVolumeAttachment(name string) error {
	return st.applyAsNewGeneration(func() { st.dropAttachment(name) })
}

// SetDeviceClass adds or updates the extended resources that a device class offers.
func (st *Storage) SetDeviceClass(o *resourcev1.DeviceClass) error {
	return applyChangeRejectingNil(st, o, func() {
		st.dropDeviceClass(o.Name)
		st.addDeviceClass(resourcev1.ResourceDeviceClassPrefix+o.Name, o.Name)
		if name := ptr.Deref(o.Spec.ExtendedResourceName, ""); name != "" {
			st.addDeviceClass(name, o.Name)
		}
	})
}

// DeleteDeviceClass removes a device class.
func (st *Storage) DeleteDeviceClass(name string) error {
	return st.applyAsNewGeneration(func() { st.dropDeviceClass(name) })
}

// applyChangeRejectingNil applies a change with an object. It fails if the object is nil.
func applyChangeRejectingNil[T any](st *Storage, o *T, change func()) error {
	if o == nil {
		return fmt.Errorf("%T is nil", o)
	}
	return st.applyAsNewGeneration(change)
}

func (st *Storage) applyAsNewGeneration(change func()) error {
	if err := st.beginEvent(); err != nil {
		return err
	}
	change()
	st.generation++
	return nil
}

func (st *Storage) dropAttachment(name string) {
	if a, ok := st.attachments[name]; ok {
		delete(st.attachments, name)
		delete(st.attachedTo[a.node], name)
		if len(st.attachedTo[a.node]) == 0 {
			delete(st.attachedTo, a.node)
		}
	}
}

func (st *Storage) addDeviceClass(resource, class string) {
	classes := append(slices.Clone(st.deviceClasses[resource]), class)
	slices.Sort(classes)
	st.deviceClasses[resource] = classes
}

func (st *Storage) dropDeviceClass(name string) {
	for resource, classes := range st.deviceClasses {
		if classes = slices.DeleteFunc(classes, func(class string) bool { return class == name }); len(classes) == 0 {
			delete(st.deviceClasses, resource)
		} else {
			st.deviceClasses[resource] = classes
		}
	}
}

// findDeviceClass returns the name of a device class that offers an extended resource, or an empty string.
func (st *Storage) findDeviceClass(resource string) string {
	if classes := st.deviceClasses[resource]; len(classes) > 0 {
		return classes[0]
	}
	return ""
}

// UpdateNodeFromCSINode copies the drivers and limits of the node's CSINode to the node.
func (st *Storage) UpdateNodeFromCSINode(n *Node) {
	n.csiDrivers = csiDrivers{}
	o := st.csiNodes[n.Name()]
	if o == nil {
		return
	}
	n.csiNode, n.migrated = true, strings.Split(o.Annotations[corev1.MigratedPluginsAnnotationKey], ",")
	for i := range o.Spec.Drivers {
		d := &o.Spec.Drivers[i]
		n.drivers = append(n.drivers, d.Name)
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			if n.limits == nil {
				n.limits = map[string]int64{}
			}
			n.limits[d.Name] = int64(*d.Allocatable.Count)
		}
	}
}

// AssumeDrivers gives a new node the CSI drivers and limits of a node like it. If there is no such node, or it has no CSINode, no
// driver counts as missing. Volumes of in-tree plugins are not checked against the drivers: every kubelet lists all
// plugins as migrated, so that no pod with such a volume would fit on any new node.
func (n *Node) AssumeDrivers(sibling *Node) {
	var assumed csiDrivers
	if sibling != nil {
		assumed = sibling.csiDrivers
	}
	assumed.isAssumed = true
	n.csiDrivers = assumed
}

// DriverCount returns how many CSI drivers the node has registered.
func (d *csiDrivers) DriverCount() int { return len(d.drivers) }

// migrates reports whether a CSI driver is known to handle the volumes of in-tree plugins on the node.
func (d *csiDrivers) migrates() bool { return d.csiNode && !d.isAssumed }

// isDriverMissing reports whether volumes of a CSI driver need a node with that driver, and this node does not have
// it.
func (st *Storage) isDriverMissing(n *Node, driver string) bool {
	isUnknown := n.isAssumed && !n.csiNode
	return st.drivers[driver].requiredOnNode && !isUnknown && !slices.Contains(n.drivers, driver)
}

// AdjustClaimUserCounts adds (sign 1) or removes (sign -1) a placed pod as a user of its claims.
func (st *Storage) AdjustClaimUserCounts(p *Pod, sign int32) {
	if p.Class.volumes == nil {
		return
	}
	for i := range p.Class.volumes.claims {
		if r := &p.Class.volumes.claims[i]; !r.ephemeral {
			st.adjustClaimUserCount(r.key, sign)
		}
	}
}

func (st *Storage) adjustClaimUserCount(key placement.PodKey, sign int32) {
	if st.podsPerClaim[key] += sign; st.podsPerClaim[key] == 0 {
		delete(st.podsPerClaim, key)
	}
}

// zoneKeys are the labels of a volume that name its zone and region, in the scheduler's order.
var zoneKeys = [...]string{
	corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
}

// parseZoneLabels returns the zones of a volume. Several zones are separated by "__". A label with an empty part is
// ignored.
func parseZoneLabels(set map[string]string) []zoneLabel {
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

// inTreeDrivers maps each in-tree plugin to the CSI driver that handles its volumes. The scheduler counts the volumes
// of a plugin with an empty driver for no driver.
var inTreeDrivers = map[string]string{
	"kubernetes.io/azure-file":      "",
	"kubernetes.io/vsphere-volume":  "",
	"kubernetes.io/aws-ebs":         "ebs.csi.aws.com",
	"kubernetes.io/gce-pd":          "pd.csi.storage.gke.io",
	"kubernetes.io/azure-disk":      "disk.csi.azure.com",
	"kubernetes.io/cinder":          "cinder.csi.openstack.org",
	"kubernetes.io/portworx-volume": "pxd.portworx.com",
}

func findInTreePlugin(o *corev1.PersistentVolume) string {
	s := &o.Spec
	return pickInTreePlugin(s.AWSElasticBlockStore != nil, s.GCEPersistentDisk != nil, s.AzureDisk != nil, s.Cinder != nil, s.PortworxVolume != nil)
}

func findInlineInTreePlugin(v *corev1.Volume) string {
	return pickInTreePlugin(v.AWSElasticBlockStore != nil, v.GCEPersistentDisk != nil, v.AzureDisk != nil, v.Cinder != nil, v.PortworxVolume != nil)
}

// pickInTreePlugin returns the plugin of the first source that is present, or an empty string.
func pickInTreePlugin(aws, gce, azure, cinder, portworx bool) string {
	switch {
	case aws:
		return "kubernetes.io/aws-ebs"
	case gce:
		return "kubernetes.io/gce-pd"
	case azure:
		return "kubernetes.io/azure-disk"
	case cinder:
		return "kubernetes.io/cinder"
	case portworx:
		return "kubernetes.io/portworx-volume"
	default:
		return ""
	}
}
