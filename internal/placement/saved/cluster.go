package saved

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// cluster goes through all objects. Pods come before claims, since some claims are called after them.
func (r *renamer) cluster(o *Objects) *Objects {
	out := &Objects{Time: o.Time}
	out.Namespaces = each(o.Namespaces, r.namespaceObject)
	out.Nodes = each(o.Nodes, r.nodeObject)
	out.Pods = each(o.Pods, r.podObject)
	out.Budgets = each(o.Budgets, r.budgetObject)
	out.Claims = each(o.Claims, r.claimObject)
	out.Volumes = each(o.Volumes, r.volumeObject)
	out.StorageClasses = each(o.StorageClasses, r.storageClassObject)
	out.CSINodes = each(o.CSINodes, r.csiNodeObject)
	out.CSIDrivers = each(o.CSIDrivers, r.csiDriverObject)
	out.Attachments = each(o.Attachments, r.attachmentObject)
	out.DeviceClasses = each(o.DeviceClasses, r.deviceClassObject)
	return out
}

func (r *renamer) nodeObject(o *corev1.Node) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: r.meta(&o.ObjectMeta, "", r.name(nodes, o.Name), r.labels(o.Labels), r.annotations(o.Annotations)),
		Spec: corev1.NodeSpec{
			Unschedulable: o.Spec.Unschedulable,
			Taints: each(o.Spec.Taints, func(t corev1.Taint) corev1.Taint {
				return corev1.Taint{Key: r.key(t.Key), Value: r.value(t.Value), Effect: t.Effect, TimeAdded: t.TimeAdded}
			}),
		},
		Status: corev1.NodeStatus{
			Allocatable: r.quantities(o.Status.Allocatable), DeclaredFeatures: o.Status.DeclaredFeatures,
		},
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		}
	}
	return n
}

func (r *renamer) budgetObject(o *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
	s, t := &o.Spec, &o.Status
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: r.meta(&o.ObjectMeta, r.namespace(o.Namespace), r.within(budgets, o.Namespace, o.Name), nil, nil),
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: r.labelSelector(s.Selector), UnhealthyPodEvictionPolicy: s.UnhealthyPodEvictionPolicy,
		},
		Status: policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: t.ObservedGeneration, DisruptionsAllowed: t.DisruptionsAllowed,
			CurrentHealthy: t.CurrentHealthy, DesiredHealthy: t.DesiredHealthy, ExpectedPods: t.ExpectedPods,
		},
	}
}

type (
	claimKey  struct{ namespace, name string }
	podVolume struct{ pod, volume string }
)

// claim replaces the name of a claim. That of one which is made for a pod's volume is made of theirs.
func (r *renamer) claim(namespace, name string) string {
	if of, ok := r.made[claimKey{namespace, name}]; ok && r.sealed {
		return r.pod(namespace, of.pod) + "-" + r.name(podVolumes, of.volume)
	}
	return r.within(claims, namespace, name)
}

func (r *renamer) claimObject(o *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: r.meta(&o.ObjectMeta, r.namespace(o.Namespace), r.claim(o.Namespace, o.Name), nil, r.annotations(o.Annotations)),
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: r.name(volumes, o.Spec.VolumeName), AccessModes: o.Spec.AccessModes,
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: o.Status.Phase},
	}
	if o.Spec.StorageClassName != nil {
		class := r.name(storageClasses, *o.Spec.StorageClassName)
		c.Spec.StorageClassName = &class
	}
	return c
}

// zoneKeys are the labels by which a volume names the zones that it can be reached from.
var zoneKeys = [...]string{
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
}

// zones separates the zones of a volume.
const zones = "__"

func (r *renamer) volumeObject(o *corev1.PersistentVolume) *corev1.PersistentVolume {
	labels := map[string]string{}
	for _, key := range zoneKeys {
		if value, ok := o.Labels[key]; ok {
			parts := each(strings.Split(value, zones), func(s string) string { return r.value(strings.TrimSpace(s)) })
			labels[key] = strings.Join(parts, zones)
		}
	}
	v := &corev1.PersistentVolume{
		ObjectMeta: r.meta(&o.ObjectMeta, "", r.name(volumes, o.Name), labels, r.annotations(o.Annotations)),
		Spec:       corev1.PersistentVolumeSpec{StorageClassName: r.name(storageClasses, o.Spec.StorageClassName)},
	}
	if o.Spec.NodeAffinity != nil {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: r.nodeSelector(o.Spec.NodeAffinity.Required)}
	}
	switch {
	case o.Spec.CSI != nil:
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
			Driver: r.driver(o.Spec.CSI.Driver), VolumeHandle: r.name(handles, o.Spec.CSI.VolumeHandle),
		}
	case o.Spec.AWSElasticBlockStore != nil:
		v.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{}
	case o.Spec.GCEPersistentDisk != nil:
		v.Spec.GCEPersistentDisk = &corev1.GCEPersistentDiskVolumeSource{}
	case o.Spec.AzureDisk != nil:
		v.Spec.AzureDisk = &corev1.AzureDiskVolumeSource{}
	case o.Spec.Cinder != nil:
		v.Spec.Cinder = &corev1.CinderPersistentVolumeSource{}
	case o.Spec.PortworxVolume != nil:
		v.Spec.PortworxVolume = &corev1.PortworxVolumeSource{}
	}
	return v
}

func (r *renamer) storageClassObject(o *storagev1.StorageClass) *storagev1.StorageClass {
	c := &storagev1.StorageClass{
		ObjectMeta:  r.meta(&o.ObjectMeta, "", r.name(storageClasses, o.Name), nil, nil),
		Provisioner: r.driver(o.Provisioner), VolumeBindingMode: o.VolumeBindingMode,
	}
	if len(o.AllowedTopologies) > 0 {
		c.AllowedTopologies = []corev1.TopologySelectorTerm{{}}
	}
	return c
}

func (r *renamer) csiNodeObject(o *storagev1.CSINode) *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: r.meta(&o.ObjectMeta, "", r.name(nodes, o.Name), nil, r.annotations(o.Annotations)),
		Spec: storagev1.CSINodeSpec{Drivers: each(o.Spec.Drivers, func(d storagev1.CSINodeDriver) storagev1.CSINodeDriver {
			return storagev1.CSINodeDriver{Name: r.driver(d.Name), Allocatable: d.Allocatable}
		})},
	}
}

func (r *renamer) csiDriverObject(o *storagev1.CSIDriver) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: r.meta(&o.ObjectMeta, "", r.driver(o.Name), nil, nil),
		Spec: storagev1.CSIDriverSpec{
			StorageCapacity: o.Spec.StorageCapacity, PreventPodSchedulingIfMissing: o.Spec.PreventPodSchedulingIfMissing,
		},
	}
}

func (r *renamer) attachmentObject(o *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: r.meta(&o.ObjectMeta, "", r.name(attachments, o.Name), nil, nil),
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: r.name(nodes, o.Spec.NodeName), Attacher: r.driver(o.Spec.Attacher)},
	}
	if o.Spec.Source.PersistentVolumeName != nil {
		name := r.name(volumes, *o.Spec.Source.PersistentVolumeName)
		a.Spec.Source.PersistentVolumeName = &name
	}
	return a
}

func (r *renamer) deviceClassObject(o *resourcev1.DeviceClass) *resourcev1.DeviceClass {
	c := &resourcev1.DeviceClass{ObjectMeta: r.meta(&o.ObjectMeta, "", r.name(deviceClasses, o.Name), nil, nil)}
	if o.Spec.ExtendedResourceName != nil {
		name := r.resource(*o.Spec.ExtendedResourceName)
		c.Spec.ExtendedResourceName = &name
	}
	return c
}
