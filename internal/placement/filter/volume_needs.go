package filter

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/slipway-dev/slipway/internal/placement"
)

// volumeNeeds holds what scheduling reads from a pod's volumes. It is resolved against the storage objects on demand.
type volumeNeeds struct {
	claims []claimRef
	disks  []corev1.Volume  // inline volumes that pods cannot share freely
	inTree []string         // in-tree plugins of inline volumes
	pod    placement.PodKey // owner of ephemeral claims
	uid    string

	view       volumeView
	generation uint64
}

type claimRef struct {
	key       placement.PodKey
	ephemeral bool
}

// volumeView is the resolved state of a pod's claims at one generation of the storage objects.
type volumeView struct {
	refusal          *placement.Reason // refuses every node
	undecidable      *placement.Reason
	readWriteOncePod []placement.PodKey // claims with access mode ReadWriteOncePod
	bound            []*volume          // nil for a volume that does not exist
	selectedNodes    []string           // nodes that the scheduler has already chosen for an unbound claim
	limited          []limitedClaim     // unbound claims with a volume that is not provisioned for every node
	zones            []zoneLabel
	attachables      []attachable
	inTree           []string          // in-tree plugins of claims that a CSI driver may handle
	wrongOwner       *placement.Reason // an ephemeral claim belongs to another pod
}

// limitedClaim is an unbound claim with a volume that is provisioned for some nodes or none.
type limitedClaim struct {
	topologies []labels.Selector // a volume is provisioned for the nodes that one of these selects
	bindable   *placement.Reason // why another node may be accepted; nil if the class has no volume
}

func (c *limitedClaim) isProvisionedFor(n *Node) bool {
	return slices.ContainsFunc(c.topologies, func(s labels.Selector) bool { return s.Matches(labels.Set(n.Object.Labels)) })
}

// attachable is one volume that counts against the attach limit of its driver.
type attachable struct{ driver, handle string }

// readVolumeNeeds returns nil if scheduling reads nothing from the pod's volumes.
func readVolumeNeeds(o *corev1.Pod) *volumeNeeds {
	var needs volumeNeeds
	for i := range o.Spec.Volumes {
		v := &o.Spec.Volumes[i]
		switch {
		case v.PersistentVolumeClaim != nil:
			key := placement.PodKey{Namespace: o.Namespace, Name: v.PersistentVolumeClaim.ClaimName}
			needs.claims = append(needs.claims, claimRef{key, false})
		case v.Ephemeral != nil:
			key := placement.PodKey{Namespace: o.Namespace, Name: ephemeral.VolumeClaimName(o, v)}
			needs.claims = append(needs.claims, claimRef{key, true})
			needs.pod, needs.uid = placement.PodKey{Namespace: o.Namespace, Name: o.Name}, string(o.UID)
		default:
			if plugin := findInlineInTreePlugin(v); plugin != "" {
				needs.inTree = append(needs.inTree, plugin)
			}
		}
		if v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.ISCSI != nil || v.RBD != nil {
			needs.disks = append(needs.disks, *v)
		}
	}
	if len(needs.claims)+len(needs.disks)+len(needs.inTree) == 0 {
		return nil
	}
	return &needs
}

func (v *volumeNeeds) writeTo(e *KeyEncoder) {
	e.WriteBool(v != nil)
	if v == nil {
		return
	}
	e.WriteCount(len(v.claims))
	for _, c := range v.claims {
		e.WriteText(c.key.Name)
		e.WriteBool(c.ephemeral)
	}
	e.WriteText(v.pod.Name)
	e.WriteText(v.uid)
	e.WriteTexts(v.inTree)
	e.WriteCount(len(v.disks))
	for i := range v.disks {
		writeInlineDiskKey(e, &v.disks[i])
	}
}

func writeInlineDiskKey(e *KeyEncoder, v *corev1.Volume) {
	switch {
	case v.GCEPersistentDisk != nil:
		e.WriteText("gce")
		e.WriteText(v.GCEPersistentDisk.PDName)
		e.WriteBool(v.GCEPersistentDisk.ReadOnly)
	case v.AWSElasticBlockStore != nil:
		e.WriteText("ebs")
		e.WriteText(v.AWSElasticBlockStore.VolumeID)
	case v.ISCSI != nil:
		e.WriteText("iscsi")
		e.WriteText(v.ISCSI.IQN)
		e.WriteBool(v.ISCSI.ReadOnly)
	default:
		e.WriteText("rbd")
		e.WriteTexts(v.RBD.CephMonitors)
		e.WriteText(v.RBD.RBDPool)
		e.WriteText(v.RBD.RBDImage)
		e.WriteBool(v.RBD.ReadOnly)
	}
}

// currentView returns the view for the current generation of the storage objects.
func (v *volumeNeeds) currentView(st *Storage) *volumeView {
	if v.generation != st.generation {
		v.view, v.generation = st.buildVolumeView(v), st.generation
	}
	return &v.view
}

// buildVolumeView resolves the claims plugin by plugin, like the scheduler's PreFilter.
func (st *Storage) buildVolumeView(needs *volumeNeeds) volumeView {
	var view volumeView
	st.resolveReadWriteOncePodClaims(needs, &view)
	st.resolveBinding(needs, &view)
	st.resolveZones(needs, &view)
	st.resolveAttachableVolumes(needs, &view)
	return view
}

func (v *volumeView) setRefusal(predicate, text string) {
	if v.refusal == nil {
		v.refusal = &placement.Reason{Predicate: predicate, Message: text, Scheduler: text}
	}
}

// resolveReadWriteOncePodClaims implements the PreFilter of VolumeRestrictions.
func (st *Storage) resolveReadWriteOncePodClaims(needs *volumeNeeds, view *volumeView) {
	for _, r := range needs.claims {
		if r.ephemeral {
			continue
		}
		c := st.claims[r.key]
		if c == nil {
			view.setRefusal(restrictionsPredicate, formatNotFound("persistentvolumeclaim", r.key.Name))
			return
		}
		if c.readWriteOncePod && !slices.Contains(view.readWriteOncePod, r.key) {
			view.readWriteOncePod = append(view.readWriteOncePod, r.key)
		}
	}
}

func formatNotFound(resource, name string) string {
	return fmt.Sprintf("%s %q not found", resource, name)
}

// resolveBinding implements the PreFilter of VolumeBinding.
func (st *Storage) resolveBinding(needs *volumeNeeds, out *volumeView) {
	for _, r := range needs.claims {
		if text := st.findClaimProblem(needs, r); text != "" {
			out.setRefusal(bindingPredicate, text)
			return
		}
	}
	immediate := false
	for _, r := range needs.claims {
		c := st.claims[r.key]
		if c.bound {
			out.bound = append(out.bound, st.volumes[c.volumeName])
			continue
		}
		delayed, text := st.waitsForFirstConsumer(c)
		if text != "" {
			out.setRefusal(bindingPredicate, text)
			return
		}
		if !delayed || c.volumeName != "" {
			immediate = true
			continue
		}
		st.resolveUnboundClaim(c, out)
	}
	if immediate {
		out.setRefusal(bindingPredicate, "pod has unbound immediate PersistentVolumeClaims")
	}
}

// findClaimProblem returns the scheduler's text for a claim that cannot be used, or an empty string.
func (st *Storage) findClaimProblem(needs *volumeNeeds, r claimRef) string {
	c := st.claims[r.key]
	switch {
	case c == nil && r.ephemeral:
		return fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", r.key.Name)
	case c == nil:
		return formatNotFound("persistentvolumeclaim", r.key.Name)
	case c.lost:
		return fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", c.name, c.volumeName)
	case c.deleting:
		return fmt.Sprintf("persistentvolumeclaim %q is being deleted", c.name)
	case r.ephemeral && c.owner != needs.uid:
		return fmt.Sprintf("PVC %s/%s was not created for pod %s (pod is not owner)", r.key.Namespace, c.name, needs.pod)
	default:
		return ""
	}
}

// waitsForFirstConsumer reports whether an unbound claim waits for its first consumer. The text is the scheduler's
// error, if any.
func (st *Storage) waitsForFirstConsumer(c *claim) (waits bool, problem string) {
	class := st.storageClasses[c.storageClass]
	if c.storageClass == "" || class == nil {
		return false, ""
	}
	if class.mode == nil {
		return false, fmt.Sprintf("VolumeBindingMode not set for StorageClass %q", c.storageClass)
	}
	return *class.mode == storagev1.VolumeBindingWaitForFirstConsumer, ""
}

// resolveUnboundClaim decides a claim that waits for its first consumer. The scheduler binds an existing volume, or else has one
// provisioned. So existing volumes matter only on nodes that no volume is provisioned for.
func (st *Storage) resolveUnboundClaim(c *claim, view *volumeView) {
	class := st.storageClasses[c.storageClass]
	newReason := func(why string) *placement.Reason {
		return &placement.Reason{
			Predicate: bindingPredicate,
			Message:   fmt.Sprintf("unbound claim %s of storage class %s: %s", c.name, c.storageClass, why),
		}
	}
	if c.hasSelectedNode {
		view.selectedNodes = append(view.selectedNodes, c.selectedNode)
	}
	provisions := class.provisioner != "" && class.provisioner != noProvisioner
	switch {
	case provisions && st.drivers[class.provisioner].tracksCapacity:
		if view.undecidable == nil {
			view.undecidable = newReason("the driver tracks its storage capacity")
		}
	case !provisions || len(class.topologies) > 0:
		var limited limitedClaim
		if provisions {
			limited.topologies = class.topologies
		}
		if !c.hasSelectedNode && st.volumesPerClass[c.storageClass] > 0 {
			limited.bindable = newReason("an existing volume may be bound to it")
		}
		view.limited = append(view.limited, limited)
	}
}

// resolveZones implements the PreFilter of VolumeZone.
func (st *Storage) resolveZones(needs *volumeNeeds, view *volumeView) {
	for _, r := range needs.claims {
		c := st.claims[r.key]
		if r.ephemeral || c == nil {
			continue
		}
		if c.volumeName != "" {
			v := st.volumes[c.volumeName]
			if v == nil {
				view.setRefusal(zonePredicate, formatNotFound("persistentvolume", c.volumeName))
				return
			}
			view.zones = append(view.zones, v.zones...)
			continue
		}
		if text := st.findUnboundClaimProblem(c); text != "" {
			view.setRefusal(zonePredicate, text)
			return
		}
	}
}

// findUnboundClaimProblem returns the scheduler's text for a claim without a volume, or an empty string if it waits for its
// first consumer.
func (st *Storage) findUnboundClaimProblem(c *claim) string {
	if c.storageClass == "" {
		return "PersistentVolumeClaim had no pv name and storageClass name"
	}
	class := st.storageClasses[c.storageClass]
	switch {
	case class == nil:
		return formatNotFound("storageclass.storage.k8s.io", c.storageClass)
	case class.mode == nil:
		return fmt.Sprintf("VolumeBindingMode not set for StorageClass %q", c.storageClass)
	case *class.mode == storagev1.VolumeBindingWaitForFirstConsumer:
		return ""
	default:
		return "PersistentVolume had no name"
	}
}

// resolveAttachableVolumes finds the volumes that count against attach limits: the CSI volume of a claim, or the volume
// that its storage class would provision.
func (st *Storage) resolveAttachableVolumes(needs *volumeNeeds, view *volumeView) {
	for _, r := range needs.claims {
		c := st.claims[r.key]
		if c == nil {
			continue
		}
		if r.ephemeral && c.owner != needs.uid {
			view.wrongOwner = &placement.Reason{
				Predicate: limitsPredicate,
				Message:   fmt.Sprintf("claim %s was not created for pod %s", c.name, needs.pod),
			}
			return
		}
		v := st.volumes[c.volumeName]
		if c.volumeName == "" || v == nil {
			st.addAttachableOfStorageClass(r, c, view)
			continue
		}
		switch {
		case v.driver != "" || v.handle != "":
			view.addAttachable(attachable{v.driver, v.handle})
		case v.inTree != "":
			view.inTree = append(view.inTree, v.inTree)
		}
	}
}

func (st *Storage) addAttachableOfStorageClass(r claimRef, c *claim, view *volumeView) {
	class := st.storageClasses[c.storageClass]
	if c.storageClass == "" || class == nil {
		return
	}
	if driver, inTree := inTreeDrivers[class.provisioner]; inTree {
		if driver != "" {
			view.inTree = append(view.inTree, class.provisioner)
		}
		return
	}
	view.addAttachable(attachable{class.provisioner, "unbound-" + r.key.String()})
}

func (v *volumeView) addAttachable(a attachable) {
	if a.driver != "" && a.handle != "" && !slices.Contains(v.attachables, a) {
		v.attachables = append(v.attachables, a)
	}
}
