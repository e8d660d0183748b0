package saved

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// Pod returns a copy of what placement reads of a pod, which shares nothing with it that would be changed.
func Pod(o *corev1.Pod) *corev1.Pod { return new(renamer).podObject(o) }

func (r *renamer) podObject(o *corev1.Pod) *corev1.Pod {
	s, t := &o.Spec, &o.Status
	return &corev1.Pod{
		ObjectMeta: r.meta(&o.ObjectMeta, r.namespace(o.Namespace), r.pod(o.Namespace, o.Name), r.labels(o.Labels), r.annotations(o.Annotations)),
		Spec: corev1.PodSpec{
			NodeName: r.name(nodes, s.NodeName), NodeSelector: r.labels(s.NodeSelector), Affinity: r.affinity(s.Affinity),
			Tolerations:               each(s.Tolerations, r.toleration),
			TopologySpreadConstraints: each(s.TopologySpreadConstraints, r.spread),
			InitContainers:            each(s.InitContainers, r.container), Containers: each(s.Containers, r.container),
			EphemeralContainers: ephemeralContainers(s.EphemeralContainers),
			Overhead:            r.quantities(s.Overhead), Resources: r.requirements(s.Resources), Priority: s.Priority,
			Volumes:         r.podVolumes(o),
			ResourceClaims:  each(s.ResourceClaims, r.resourceClaim),
			SchedulingGates: each(s.SchedulingGates, r.gate), SchedulingGroup: group(s.SchedulingGroup),
			SchedulerName: r.scheduler(s.SchedulerName), HostNetwork: s.HostNetwork, HostUsers: s.HostUsers,
		},
		Status: corev1.PodStatus{
			Phase: t.Phase, NominatedNodeName: r.name(nodes, t.NominatedNodeName), Conditions: podConditions(t.Conditions),
			ContainerStatuses:     each(t.ContainerStatuses, r.containerStatus),
			InitContainerStatuses: each(t.InitContainerStatuses, r.containerStatus),
			Resources:             r.requirements(t.Resources), AllocatedResources: r.quantities(t.AllocatedResources),
		},
	}
}

func (r *renamer) affinity(a *corev1.Affinity) *corev1.Affinity {
	if a == nil {
		return nil
	}
	out := &corev1.Affinity{}
	if a.NodeAffinity != nil {
		required := r.nodeSelector(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		out.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}
	}
	if p := a.PodAffinity; p != nil {
		out.PodAffinity = &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  each(p.RequiredDuringSchedulingIgnoredDuringExecution, r.term),
			PreferredDuringSchedulingIgnoredDuringExecution: each(p.PreferredDuringSchedulingIgnoredDuringExecution, r.weighted),
		}
	}
	if p := a.PodAntiAffinity; p != nil {
		out.PodAntiAffinity = &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  each(p.RequiredDuringSchedulingIgnoredDuringExecution, r.term),
			PreferredDuringSchedulingIgnoredDuringExecution: each(p.PreferredDuringSchedulingIgnoredDuringExecution, r.weighted),
		}
	}
	return out
}

func (r *renamer) term(t corev1.PodAffinityTerm) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{
		TopologyKey: r.key(t.TopologyKey), Namespaces: each(t.Namespaces, r.namespace),
		LabelSelector: r.labelSelector(t.LabelSelector), NamespaceSelector: r.labelSelector(t.NamespaceSelector),
		MatchLabelKeys: each(t.MatchLabelKeys, r.key), MismatchLabelKeys: each(t.MismatchLabelKeys, r.key),
	}
}

func (r *renamer) weighted(t corev1.WeightedPodAffinityTerm) corev1.WeightedPodAffinityTerm {
	return corev1.WeightedPodAffinityTerm{Weight: t.Weight, PodAffinityTerm: r.term(t.PodAffinityTerm)}
}

func (r *renamer) toleration(t corev1.Toleration) corev1.Toleration {
	return corev1.Toleration{
		Key: r.key(t.Key), Operator: t.Operator, Value: r.value(t.Value), Effect: t.Effect,
		TolerationSeconds: t.TolerationSeconds,
	}
}

func (r *renamer) spread(t corev1.TopologySpreadConstraint) corev1.TopologySpreadConstraint {
	return corev1.TopologySpreadConstraint{
		MaxSkew: t.MaxSkew, TopologyKey: r.key(t.TopologyKey), WhenUnsatisfiable: t.WhenUnsatisfiable,
		LabelSelector: r.labelSelector(t.LabelSelector), MinDomains: t.MinDomains, NodeAffinityPolicy: t.NodeAffinityPolicy,
		NodeTaintsPolicy: t.NodeTaintsPolicy, MatchLabelKeys: each(t.MatchLabelKeys, r.key),
	}
}

func (r *renamer) container(c corev1.Container) corev1.Container {
	out := corev1.Container{
		Name: r.name(containers, c.Name), Resources: *r.requirements(&c.Resources), RestartPolicy: c.RestartPolicy,
		RestartPolicyRules: each(c.RestartPolicyRules, func(rule corev1.ContainerRestartRule) corev1.ContainerRestartRule {
			return corev1.ContainerRestartRule{Action: rule.Action, ExitCodes: rule.ExitCodes}
		}),
	}
	out.VolumeMounts = mountsWithOptions(c.VolumeMounts)
	for _, p := range c.Ports {
		if p.HostPort <= 0 {
			continue
		}
		if !knownAddresses[p.HostIP] {
			p.HostIP = r.name(addresses, p.HostIP)
		}
		out.Ports = append(out.Ports, corev1.ContainerPort{HostPort: p.HostPort, HostIP: p.HostIP, Protocol: p.Protocol})
	}
	return out
}

// ephemeralContainers keeps what they need of a node. They request nothing.
func ephemeralContainers(list []corev1.EphemeralContainer) []corev1.EphemeralContainer {
	var out []corev1.EphemeralContainer
	for i := range list {
		if mounts := mountsWithOptions(list[i].VolumeMounts); len(mounts) > 0 {
			out = append(out, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{VolumeMounts: mounts}})
		}
	}
	return out
}

// mountsWithOptions keeps that mounts have options, which not every node supports.
func mountsWithOptions(list []corev1.VolumeMount) []corev1.VolumeMount {
	var out []corev1.VolumeMount
	for _, m := range list {
		if len(m.BindMountOptions) > 0 {
			out = append(out, corev1.VolumeMount{BindMountOptions: []string{string(corev1.BindMountOptionNoExec)}})
		}
	}
	return out
}

// requirements keeps the requests; limits do not matter to scheduling.
func (r *renamer) requirements(q *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if q == nil {
		return nil
	}
	return &corev1.ResourceRequirements{Requests: r.quantities(q.Requests)}
}

func (r *renamer) containerStatus(c corev1.ContainerStatus) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: r.name(containers, c.Name), Resources: r.requirements(c.Resources),
		AllocatedResources: r.quantities(c.AllocatedResources),
	}
}

// podConditions keeps whether the pod is ready, and why it cannot be resized.
func podConditions(list []corev1.PodCondition) []corev1.PodCondition {
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

// podVolumes keeps the volumes that matter to where a pod can be. The claim that is made for an ephemeral volume is
// called after the pod and the volume; see claim.
func (r *renamer) podVolumes(o *corev1.Pod) []corev1.Volume {
	var out []corev1.Volume
	for i := range o.Spec.Volumes {
		v := &o.Spec.Volumes[i]
		kept := corev1.Volume{Name: r.name(podVolumes, v.Name)}
		switch {
		case v.PersistentVolumeClaim != nil:
			kept.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: r.claim(o.Namespace, v.PersistentVolumeClaim.ClaimName),
			}
		case v.Ephemeral != nil:
			kept.Ephemeral = &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}
			if r.made != nil {
				r.made[claimKey{o.Namespace, ephemeral.VolumeClaimName(o, v)}] = podVolume{o.Name, v.Name}
			}
		case v.HostPath != nil:
			kept.HostPath = &corev1.HostPathVolumeSource{}
		case v.EmptyDir != nil:
			kept.EmptyDir = &corev1.EmptyDirVolumeSource{Medium: v.EmptyDir.Medium}
		default:
			kept.VolumeSource = r.disk(&v.VolumeSource)
		}
		if kept.VolumeSource != (corev1.VolumeSource{}) {
			out = append(out, kept)
		}
	}
	return out
}

// disk keeps of a volume that is named in the pod itself what tells it from others.
func (r *renamer) disk(v *corev1.VolumeSource) (out corev1.VolumeSource) {
	name := func(s string) string { return r.name(disks, s) }
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
			CephMonitors: each(v.RBD.CephMonitors, name), RBDPool: name(v.RBD.RBDPool), RBDImage: name(v.RBD.RBDImage),
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

func (r *renamer) resourceClaim(c corev1.PodResourceClaim) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{Name: r.name(requests, c.Name)}
}

func (r *renamer) gate(g corev1.PodSchedulingGate) corev1.PodSchedulingGate {
	return corev1.PodSchedulingGate{Name: r.name(gates, g.Name)}
}

func group(g *corev1.PodSchedulingGroup) *corev1.PodSchedulingGroup {
	if g == nil {
		return nil
	}
	return &corev1.PodSchedulingGroup{}
}

func (r *renamer) namespaceObject(o *corev1.Namespace) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.namespace(o.Name), Labels: r.labels(o.Labels)}}
}
