package saved

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// CopyPod returns a copy of what placement reads from a pod. The copy shares no data that would be changed.
func CopyPod(o *corev1.Pod) *corev1.Pod { return new(redactor).copyPod(o) }

func (r *redactor) copyPod(o *corev1.Pod) *corev1.Pod {
	s, t := &o.Spec, &o.Status
	return &corev1.Pod{
		ObjectMeta: r.copyMeta(&o.ObjectMeta, r.replaceNamespaceUnlessKubeSystem(o.Namespace), r.replacePodName(o.Namespace, o.Name), r.copyLabels(o.Labels), r.copyRelevantAnnotations(o.Annotations)),
		Spec: corev1.PodSpec{
			NodeName: r.replaceName(nodes, s.NodeName), NodeSelector: r.copyLabels(s.NodeSelector), Affinity: r.copyAffinity(s.Affinity),
			Tolerations:               mapList(s.Tolerations, r.copyToleration),
			TopologySpreadConstraints: mapList(s.TopologySpreadConstraints, r.copySpreadConstraint),
			InitContainers:            mapList(s.InitContainers, r.copyContainer), Containers: mapList(s.Containers, r.copyContainer),
			EphemeralContainers: copyEphemeralMountOptions(s.EphemeralContainers),
			Overhead:            r.copyResourceList(s.Overhead), Resources: r.copyRequests(s.Resources), Priority: s.Priority,
			Volumes:         r.copyPlacementVolumes(o),
			ResourceClaims:  mapList(s.ResourceClaims, r.copyResourceClaim),
			SchedulingGates: mapList(s.SchedulingGates, r.copySchedulingGate), SchedulingGroup: r.copySchedulingGroup(s.SchedulingGroup),
			SchedulerName: r.replaceNonDefaultScheduler(s.SchedulerName), HostNetwork: s.HostNetwork, HostUsers: s.HostUsers,
		},
		Status: corev1.PodStatus{
			Phase: t.Phase, NominatedNodeName: r.replaceName(nodes, t.NominatedNodeName), Conditions: copyReadyAndResizeConditions(t.Conditions),
			ContainerStatuses:     mapList(t.ContainerStatuses, r.copyContainerStatusResources),
			InitContainerStatuses: mapList(t.InitContainerStatuses, r.copyContainerStatusResources),
			Resources:             r.copyRequests(t.Resources), AllocatedResources: r.copyResourceList(t.AllocatedResources),
		},
	}
}

func (r *redactor) copyAffinity(a *corev1.Affinity) *corev1.Affinity {
	if a == nil {
		return nil
	}
	out := &corev1.Affinity{}
	if a.NodeAffinity != nil {
		required := r.copyNodeSelector(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		out.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}
	}
	if p := a.PodAffinity; p != nil {
		out.PodAffinity = &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  mapList(p.RequiredDuringSchedulingIgnoredDuringExecution, r.copyPodAffinityTerm),
			PreferredDuringSchedulingIgnoredDuringExecution: mapList(p.PreferredDuringSchedulingIgnoredDuringExecution, r.copyWeightedTerm),
		}
	}
	if p := a.PodAntiAffinity; p != nil {
		out.PodAntiAffinity = &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  mapList(p.RequiredDuringSchedulingIgnoredDuringExecution, r.copyPodAffinityTerm),
			PreferredDuringSchedulingIgnoredDuringExecution: mapList(p.PreferredDuringSchedulingIgnoredDuringExecution, r.copyWeightedTerm),
		}
	}
	return out
}

func (r *redactor) copyPodAffinityTerm(t corev1.PodAffinityTerm) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{
		TopologyKey: r.replaceUnknownKey(t.TopologyKey), Namespaces: mapList(t.Namespaces, r.replaceNamespaceUnlessKubeSystem),
		LabelSelector: r.copyLabelSelector(t.LabelSelector), NamespaceSelector: r.copyLabelSelector(t.NamespaceSelector),
		MatchLabelKeys: mapList(t.MatchLabelKeys, r.replaceUnknownKey), MismatchLabelKeys: mapList(t.MismatchLabelKeys, r.replaceUnknownKey),
	}
}

func (r *redactor) copyWeightedTerm(t corev1.WeightedPodAffinityTerm) corev1.WeightedPodAffinityTerm {
	return corev1.WeightedPodAffinityTerm{Weight: t.Weight, PodAffinityTerm: r.copyPodAffinityTerm(t.PodAffinityTerm)}
}

func (r *redactor) copyToleration(t corev1.Toleration) corev1.Toleration {
	return corev1.Toleration{
		Key: r.replaceUnknownKey(t.Key), Operator: t.Operator, Value: r.replaceUnknownValue(t.Value), Effect: t.Effect,
		TolerationSeconds: t.TolerationSeconds,
	}
}

func (r *redactor) copySpreadConstraint(t corev1.TopologySpreadConstraint) corev1.TopologySpreadConstraint {
	return corev1.TopologySpreadConstraint{
		MaxSkew: t.MaxSkew, TopologyKey: r.replaceUnknownKey(t.TopologyKey), WhenUnsatisfiable: t.WhenUnsatisfiable,
		LabelSelector: r.copyLabelSelector(t.LabelSelector), MinDomains: t.MinDomains, NodeAffinityPolicy: t.NodeAffinityPolicy,
		NodeTaintsPolicy: t.NodeTaintsPolicy, MatchLabelKeys: mapList(t.MatchLabelKeys, r.replaceUnknownKey),
	}
}

func (r *redactor) copyContainer(c corev1.Container) corev1.Container {
	out := corev1.Container{
		Name: r.replaceName(containers, c.Name), Resources: *r.copyRequests(&c.Resources), RestartPolicy: c.RestartPolicy,
		RestartPolicyRules: mapList(c.RestartPolicyRules, func(rule corev1.ContainerRestartRule) corev1.ContainerRestartRule {
			return corev1.ContainerRestartRule{Action: rule.Action, ExitCodes: rule.ExitCodes}
		}),
	}
	out.VolumeMounts = copyMountOptionPresence(c.VolumeMounts)
	for _, p := range c.Ports {
		if p.HostPort <= 0 {
			continue
		}
		if !knownAddresses[p.HostIP] {
			p.HostIP = r.replaceName(addresses, p.HostIP)
		}
		out.Ports = append(out.Ports, corev1.ContainerPort{HostPort: p.HostPort, HostIP: p.HostIP, Protocol: p.Protocol})
	}
	return out
}

// copyEphemeralMountOptions copies only mounts with options. Ephemeral containers request nothing.
func copyEphemeralMountOptions(list []corev1.EphemeralContainer) []corev1.EphemeralContainer {
	var out []corev1.EphemeralContainer
	for i := range list {
		if mounts := copyMountOptionPresence(list[i].VolumeMounts); len(mounts) > 0 {
			out = append(out, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{VolumeMounts: mounts}})
		}
	}
	return out
}

// copyMountOptionPresence keeps one option per mount with options, because not every node supports these.
func copyMountOptionPresence(list []corev1.VolumeMount) []corev1.VolumeMount {
	var out []corev1.VolumeMount
	for _, m := range list {
		if len(m.BindMountOptions) > 0 {
			out = append(out, corev1.VolumeMount{BindMountOptions: []string{string(corev1.BindMountOptionNoExec)}})
		}
	}
	return out
}

// copyRequests copies the requests. Limits do not matter to scheduling.
func (r *redactor) copyRequests(q *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if q == nil {
		return nil
	}
	return &corev1.ResourceRequirements{Requests: r.copyResourceList(q.Requests)}
}

func (r *redactor) copyContainerStatusResources(c corev1.ContainerStatus) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: r.replaceName(containers, c.Name), Resources: r.copyRequests(c.Resources),
		AllocatedResources: r.copyResourceList(c.AllocatedResources),
	}
}

// copyReadyAndResizeConditions copies the Ready condition, and why a resize is pending.
func copyReadyAndResizeConditions(list []corev1.PodCondition) []corev1.PodCondition {
	var out []corev1.PodCondition
	for _, c := range list {
		switch c.Type {
		case corev1.PodReady:
			out = append(out, corev1.PodCondition{Type: c.Type, Status: c.Status})
		case corev1.PodResizePending:
			kept := corev1.PodCondition{Type: c.Type, Status: c.Status}
			if c.Reason == corev1.PodReasonInfeasible || c.Reason == corev1.PodReasonDeferred {
				kept.Reason = c.Reason
			}
			out = append(out, kept)
		}
	}
	return out
}

// copyPlacementVolumes copies the volumes that restrict where a pod can run. The claim of an ephemeral volume is named
// after the pod and the volume; see replaceClaimName.
func (r *redactor) copyPlacementVolumes(o *corev1.Pod) []corev1.Volume {
	var out []corev1.Volume
	for i := range o.Spec.Volumes {
		v := &o.Spec.Volumes[i]
		kept := corev1.Volume{Name: r.replaceName(podVolumes, v.Name)}
		switch {
		case v.PersistentVolumeClaim != nil:
			kept.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: r.replaceClaimName(o.Namespace, v.PersistentVolumeClaim.ClaimName),
			}
		case v.Ephemeral != nil:
			kept.Ephemeral = &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}
			if r.generatedClaims != nil {
				r.generatedClaims[claimKey{o.Namespace, ephemeral.VolumeClaimName(o, v)}] = podVolume{o.Name, v.Name}
			}
		case v.HostPath != nil:
			kept.HostPath = &corev1.HostPathVolumeSource{}
		case v.EmptyDir != nil:
			kept.EmptyDir = &corev1.EmptyDirVolumeSource{Medium: v.EmptyDir.Medium}
		default:
			kept.VolumeSource = r.copyDiskIdentity(&v.VolumeSource)
		}
		if kept.VolumeSource != (corev1.VolumeSource{}) {
			out = append(out, kept)
		}
	}
	return out
}

// copyDiskIdentity copies what identifies an inline volume.
func (r *redactor) copyDiskIdentity(v *corev1.VolumeSource) (out corev1.VolumeSource) {
	name := func(s string) string { return r.replaceName(disks, s) }
	switch {
	case v.GCEPersistentDisk != nil:
		d := v.GCEPersistentDisk
		out.GCEPersistentDisk = &corev1.GCEPersistentDiskVolumeSource{PDName: name(d.PDName), ReadOnly: d.ReadOnly}
	case v.AWSElasticBlockStore != nil:
		d := v.AWSElasticBlockStore
		out.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: name(d.VolumeID), ReadOnly: d.ReadOnly}
	case v.ISCSI != nil:
		out.ISCSI = &corev1.ISCSIVolumeSource{IQN: name(v.ISCSI.IQN), ReadOnly: v.ISCSI.ReadOnly}
	case v.RBD != nil:
		out.RBD = &corev1.RBDVolumeSource{
			CephMonitors: mapList(v.RBD.CephMonitors, name), RBDPool: name(v.RBD.RBDPool), RBDImage: name(v.RBD.RBDImage),
			ReadOnly: v.RBD.ReadOnly,
		}
	case v.AzureDisk != nil:
		out.AzureDisk = &corev1.AzureDiskVolumeSource{}
	case v.Cinder != nil:
		out.Cinder = &corev1.CinderVolumeSource{}
	case v.PortworxVolume != nil:
		out.PortworxVolume = &corev1.PortworxVolumeSource{}
	}
	return out
}

func (r *redactor) copyResourceClaim(c corev1.PodResourceClaim) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{Name: r.replaceName(requests, c.Name)}
}

func (r *redactor) copySchedulingGate(g corev1.PodSchedulingGate) corev1.PodSchedulingGate {
	return corev1.PodSchedulingGate{Name: r.replaceName(gates, g.Name)}
}

func (r *redactor) copySchedulingGroup(g *corev1.PodSchedulingGroup) *corev1.PodSchedulingGroup {
	if g == nil || g.PodGroupName == nil {
		return g
	}
	name := r.replaceName(podGroups, *g.PodGroupName)
	return &corev1.PodSchedulingGroup{PodGroupName: &name}
}

func (r *redactor) copyNamespace(o *corev1.Namespace) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.replaceNamespaceUnlessKubeSystem(o.Name), Labels: r.copyLabels(o.Labels)}}
}
