package saved

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
)

// copyObjects copies all objects. Pods come before claims, because the names of generated claims depend on them.
func (r *redactor) copyObjects(o *Objects) *Objects {
	out := &Objects{Time: o.Time}
	out.Namespaces = mapList(o.Namespaces, r.copyNamespace)
	out.Nodes = mapList(o.Nodes, r.copyNode)
	out.Pods = mapList(o.Pods, r.copyPod)
	out.PDBs = mapList(o.PDBs, r.copyPDBSelectorAndStatus)
	out.Claims = mapList(o.Claims, r.copyClaim)
	out.Volumes = mapList(o.Volumes, r.copyVolume)
	out.StorageClasses = mapList(o.StorageClasses, r.copyStorageClass)
	out.CSINodes = mapList(o.CSINodes, r.copyCSINode)
	out.CSIDrivers = mapList(o.CSIDrivers, r.copyCSIDriver)
	out.Attachments = mapList(o.Attachments, r.copyAttachment)
	out.DeviceClasses = mapList(o.DeviceClasses, r.copyDeviceClass)
	out.PodGroups = mapList(o.PodGroups, r.copyPodGroup)
	return out
}

func (r *redactor) copyNode(o *corev1.Node) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: r.copyMeta(&o.ObjectMeta, "", r.replaceName(nodes, o.Name), r.copyLabels(o.Labels), r.copyRelevantAnnotations(o.Annotations)),
		Spec: corev1.NodeSpec{
			Unschedulable: o.Spec.Unschedulable,
			Taints: mapList(o.Spec.Taints, func(t corev1.Taint) corev1.Taint {
				return corev1.Taint{Key: r.replaceUnknownKey(t.Key), Value: r.replaceUnknownValue(t.Value), Effect: t.Effect, TimeAdded: t.TimeAdded}
			}),
		},
		Status: corev1.NodeStatus{
			Allocatable: r.copyResourceList(o.Status.Allocatable), DeclaredFeatures: o.Status.DeclaredFeatures,
		},
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		}
	}
	return n
}

func (r *redactor) copyPDBSelectorAndStatus(o *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
	s, t := &o.Spec, &o.Status
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: r.copyMeta(&o.ObjectMeta, r.replaceNamespaceUnlessKubeSystem(o.Namespace), r.recordOrReplaceName(budgets, o.Namespace, o.Name), nil, nil),
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: r.copyLabelSelector(s.Selector), UnhealthyPodEvictionPolicy: s.UnhealthyPodEvictionPolicy,
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

// replaceClaimName replaces the name of a claim. The name of a claim generated for a pod's volume is composed of the
// replaced names of both.
func (r *redactor) replaceClaimName(namespace, name string) string {
	if of, ok := r.generatedClaims[claimKey{namespace, name}]; ok && r.isSealed {
		return r.replacePodName(namespace, of.pod) + "-" + r.replaceName(podVolumes, of.volume)
	}
	return r.recordOrReplaceName(claims, namespace, name)
}

func (r *redactor) copyClaim(o *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: r.copyMeta(&o.ObjectMeta, r.replaceNamespaceUnlessKubeSystem(o.Namespace), r.replaceClaimName(o.Namespace, o.Name), nil, r.copyRelevantAnnotations(o.Annotations)),
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: r.replaceName(volumes, o.Spec.VolumeName), AccessModes: o.Spec.AccessModes,
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: o.Status.Phase},
	}
	if o.Spec.StorageClassName != nil {
		class := r.replaceName(storageClasses, *o.Spec.StorageClassName)
		c.Spec.StorageClassName = &class
	}
	return c
}

// zoneKeys are the labels that name the zones of a volume.
var zoneKeys = [...]string{
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
}

// zoneSeparator separates the zones of a volume.
const zoneSeparator = "__"

func (r *redactor) copyVolume(o *corev1.PersistentVolume) *corev1.PersistentVolume {
	labels := map[string]string{}
	for _, key := range zoneKeys {
		if value, ok := o.Labels[key]; ok {
			parts := mapList(strings.Split(value, zoneSeparator), func(s string) string { return r.replaceUnknownValue(strings.TrimSpace(s)) })
			labels[key] = strings.Join(parts, zoneSeparator)
		}
	}
	v := &corev1.PersistentVolume{
		ObjectMeta: r.copyMeta(&o.ObjectMeta, "", r.replaceName(volumes, o.Name), labels, r.copyRelevantAnnotations(o.Annotations)),
		Spec:       corev1.PersistentVolumeSpec{StorageClassName: r.replaceName(storageClasses, o.Spec.StorageClassName)},
	}
	if o.Spec.NodeAffinity != nil {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: r.copyNodeSelector(o.Spec.NodeAffinity.Required)}
	}
	switch {
	case o.Spec.CSI != nil:
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
			Driver: r.replaceUnknownDriver(o.Spec.CSI.Driver), VolumeHandle: r.replaceName(handles, o.Spec.CSI.VolumeHandle),
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

func (r *redactor) copyStorageClass(o *storagev1.StorageClass) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:  r.copyMeta(&o.ObjectMeta, "", r.replaceName(storageClasses, o.Name), nil, nil),
		Provisioner: r.replaceUnknownDriver(o.Provisioner), VolumeBindingMode: o.VolumeBindingMode,
		AllowedTopologies: mapList(o.AllowedTopologies, r.copyTopology),
	}
}

func (r *redactor) copyTopology(t corev1.TopologySelectorTerm) corev1.TopologySelectorTerm {
	return corev1.TopologySelectorTerm{MatchLabelExpressions: mapList(t.MatchLabelExpressions,
		func(e corev1.TopologySelectorLabelRequirement) corev1.TopologySelectorLabelRequirement {
			return corev1.TopologySelectorLabelRequirement{Key: r.replaceUnknownKey(e.Key), Values: mapList(e.Values, r.replaceUnknownValue)}
		})}
}

func (r *redactor) copyCSINode(o *storagev1.CSINode) *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: r.copyMeta(&o.ObjectMeta, "", r.replaceName(nodes, o.Name), nil, r.copyRelevantAnnotations(o.Annotations)),
		Spec: storagev1.CSINodeSpec{Drivers: mapList(o.Spec.Drivers, func(d storagev1.CSINodeDriver) storagev1.CSINodeDriver {
			return storagev1.CSINodeDriver{Name: r.replaceUnknownDriver(d.Name), Allocatable: d.Allocatable}
		})},
	}
}

func (r *redactor) copyCSIDriver(o *storagev1.CSIDriver) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: r.copyMeta(&o.ObjectMeta, "", r.replaceUnknownDriver(o.Name), nil, nil),
		Spec: storagev1.CSIDriverSpec{
			StorageCapacity: o.Spec.StorageCapacity, PreventPodSchedulingIfMissing: o.Spec.PreventPodSchedulingIfMissing,
		},
	}
}

func (r *redactor) copyAttachment(o *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: r.copyMeta(&o.ObjectMeta, "", r.replaceName(attachments, o.Name), nil, nil),
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: r.replaceName(nodes, o.Spec.NodeName), Attacher: r.replaceUnknownDriver(o.Spec.Attacher)},
	}
	if o.Spec.Source.PersistentVolumeName != nil {
		name := r.replaceName(volumes, *o.Spec.Source.PersistentVolumeName)
		a.Spec.Source.PersistentVolumeName = &name
	}
	return a
}

func (r *redactor) copyPodGroup(o *schedulingv1beta1.PodGroup) *schedulingv1beta1.PodGroup {
	return &schedulingv1beta1.PodGroup{
		ObjectMeta: r.copyMeta(&o.ObjectMeta, r.replaceNamespaceUnlessKubeSystem(o.Namespace), r.replaceName(podGroups, o.Name), nil, nil),
		Spec:       schedulingv1beta1.PodGroupSpec{DisruptionMode: o.Spec.DisruptionMode},
	}
}

func (r *redactor) copyDeviceClass(o *resourcev1.DeviceClass) *resourcev1.DeviceClass {
	c := &resourcev1.DeviceClass{ObjectMeta: r.copyMeta(&o.ObjectMeta, "", r.replaceName(deviceClasses, o.Name), nil, nil)}
	if o.Spec.ExtendedResourceName != nil {
		name := r.replaceExtendedResource(*o.Spec.ExtendedResourceName)
		c.Spec.ExtendedResourceName = &name
	}
	return c
}
