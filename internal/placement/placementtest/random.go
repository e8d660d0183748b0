package placementtest

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// generator makes small clusters out of small vocabularies, so that what a pod asks for is often nearly, and sometimes
// exactly, what a node offers. About one object in thirty is malformed on purpose.
type generator struct {
	*rand.Rand
	// easy clusters have room and few taints, so that the predicates that come late decide.
	easy bool
}

const (
	gpu      = corev1.ResourceName("example.com/gpu")
	fastDisk = "fast.csi.example.com"
	slowDisk = "slow.csi.example.com"
)

// Random makes the cluster that belongs to a seed.
func Random(seed uint64) *Cluster {
	g := generator{Rand: rand.New(rand.NewPCG(seed, 4)), easy: seed%3 != 0}
	c := &Cluster{}
	for _, name := range []string{"red", "green", "blue"} {
		if g.chance(6, 7) {
			c.Namespaces = append(c.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name:   name,
				Labels: map[string]string{"team": pick(g, "x", "y"), "name": name},
			}})
		}
	}
	for i := range 3 + g.IntN(6) {
		c.Nodes = append(c.Nodes, g.node(i))
	}
	g.storage(c)
	for i := range g.IntN(26) {
		p := g.pod(fmt.Sprintf("placed-%d", i))
		p.Spec.NodeName = c.Nodes[g.IntN(len(c.Nodes))].Name
		if g.chance(1, 12) {
			p.DeletionTimestamp = &metav1.Time{Time: metav1.Unix(1, 0).Time}
		}
		if g.chance(1, 10) {
			g.resize(p)
		}
		c.Pods = append(c.Pods, p)
	}
	for i := range 6 + g.IntN(8) {
		p := g.pod(fmt.Sprintf("candidate-%d", i))
		if g.chance(1, 30) {
			p.Spec.NodeName = c.Nodes[g.IntN(len(c.Nodes))].Name
		}
		c.Candidates = append(c.Candidates, p)
	}
	g.own(c)
	return c
}

// RandomNode makes a node as Random does.
func RandomNode(g *rand.Rand, i int) *corev1.Node { return generator{Rand: g}.node(i) }

func (g generator) chance(n, of int) bool { return g.IntN(of) < n }

func pick[T any](g generator, list ...T) T { return list[g.IntN(len(list))] }

func quantity(g generator, list ...string) resource.Quantity {
	return resource.MustParse(pick(g, list...))
}

func (g generator) node(i int) *corev1.Node {
	name := fmt.Sprintf("node-%d", i)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	if g.chance(14, 15) {
		n.Labels[corev1.LabelHostname] = name
	}
	if g.chance(9, 10) {
		n.Labels[corev1.LabelTopologyZone] = pick(g, "z1", "z2", "z3")
	}
	if g.chance(1, 12) {
		n.Labels[corev1.LabelFailureDomainBetaZone] = pick(g, "z1", "z2")
	}
	if g.chance(1, 4) {
		n.Labels[corev1.LabelTopologyRegion] = pick(g, "r1", "r2")
	}
	if g.chance(1, 2) {
		n.Labels["pool"] = pick(g, "a", "b", "")
	}
	if g.chance(1, 3) {
		n.Labels["generation"] = pick(g, "1", "2", "7", "old")
	}
	n.Spec.Unschedulable = g.chance(1, 12)
	taints := g.IntN(5) / 2
	if g.easy {
		taints = g.IntN(10) / 9
	}
	for range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{
			Key:   pick(g, "gpu", "spot", corev1.TaintNodeUnschedulable),
			Value: pick(g, "", "only", "5"), Effect: pick(g, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule),
		})
	}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU:    quantity(g, "0", "1", "2", "4", "8"),
		corev1.ResourceMemory: quantity(g, "1Gi", "2Gi", "4Gi", "16Gi"),
		corev1.ResourcePods:   quantity(g, "3", "5", "10", "110"),
	}
	if g.easy {
		n.Status.Allocatable[corev1.ResourceCPU] = quantity(g, "8", "16")
		n.Status.Allocatable[corev1.ResourceMemory] = quantity(g, "16Gi", "64Gi")
		n.Status.Allocatable[corev1.ResourcePods] = quantity(g, "10", "110")
	}
	if g.easy || g.chance(2, 3) {
		n.Status.Allocatable[corev1.ResourceEphemeralStorage] = quantity(g, "1Gi", "10Gi")
	}
	if g.chance(1, 3) {
		n.Status.Allocatable[gpu] = quantity(g, "0", "1", "2", "4")
	}
	if g.chance(1, 4) {
		n.Status.Allocatable["hugepages-2Mi"] = quantity(g, "4Mi", "64Mi")
	}
	if g.chance(1, 3) {
		n.Status.DeclaredFeatures = []string{pick(g, "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport")}
	}
	if !g.easy && g.chance(1, 20) {
		n.Status.Allocatable = nil
	}
	return n
}

func (g generator) storage(c *Cluster) {
	wait, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	c.StorageClasses = []*storagev1.StorageClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: fastDisk, VolumeBindingMode: &wait},
		{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Provisioner: slowDisk, VolumeBindingMode: &now},
		{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &wait},
		{ObjectMeta: metav1.ObjectMeta{Name: "broken"}, Provisioner: slowDisk},
	}
	for i := range 6 {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("volume-%d", i), Labels: map[string]string{}}}
		v.Spec.StorageClassName = pick(g, "slow", "slow", "fast", "")
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: pick(g, fastDisk, slowDisk), VolumeHandle: fmt.Sprintf("handle-%d", i)}
		if g.chance(1, 3) {
			v.Labels[pick(g, corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone)] = pick(g, "z1", "z2", "z1__z3", "z1__")
		}
		if g.chance(1, 3) {
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: g.nodeSelector()}
		}
		if g.chance(1, 20) {
			v.Spec.CSI = nil
			v.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}
		}
		if g.chance(9, 10) {
			c.Volumes = append(c.Volumes, v)
		}
	}
	for _, ns := range []string{"red", "green", "blue"} {
		for i := range 5 {
			if g.chance(9, 10) {
				c.Claims = append(c.Claims, g.claim(ns, i))
			}
		}
	}
	for _, n := range c.Nodes {
		if g.chance(1, 2) {
			c.CSINodes = append(c.CSINodes, g.csiNode(n.Name))
		}
		for i := range g.IntN(4) / 2 {
			volume := fmt.Sprintf("volume-%d", g.IntN(7))
			c.Attachments = append(c.Attachments, &storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("attachment-%s-%d", n.Name, i)},
				Spec: storagev1.VolumeAttachmentSpec{
					NodeName: n.Name, Attacher: pick(g, fastDisk, slowDisk, ""),
					Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
				},
			})
		}
	}
	if g.chance(1, 6) {
		yes := true
		c.CSIDrivers = append(c.CSIDrivers, &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: fastDisk},
			Spec:       storagev1.CSIDriverSpec{StorageCapacity: &yes},
		})
	}
}

func (g generator) claim(ns string, i int) *corev1.PersistentVolumeClaim {
	class := pick(g, "fast", "slow", "slow", "local", "")
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: fmt.Sprintf("claim-%d", i),
		Annotations: map[string]string{},
	}}
	c.Spec.StorageClassName = &class
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{pick(g, corev1.ReadWriteOnce, corev1.ReadWriteOnce, corev1.ReadWriteMany, corev1.ReadWriteOncePod)}
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

func (g generator) csiNode(name string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if g.chance(1, 10) {
		n.Annotations = map[string]string{corev1.MigratedPluginsAnnotationKey: "kubernetes.io/aws-ebs"}
	}
	for _, driver := range []string{fastDisk, slowDisk, "ebs.csi.aws.com"} {
		d := storagev1.CSINodeDriver{Name: driver, NodeID: name}
		if g.chance(1, 2) {
			limit := int32(g.IntN(4))
			d.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
		}
		n.Spec.Drivers = append(n.Spec.Drivers, d)
	}
	return n
}

func (g generator) pod(name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pick(g, "red", "green", "blue"), Name: name, UID: types.UID(name),
		Labels: map[string]string{"app": pick(g, "a", "b", "c")},
	}}
	if g.chance(1, 2) {
		p.Labels["tier"] = pick(g, "web", "db")
	}
	if g.chance(1, 3) {
		p.Labels["pod-template-hash"] = pick(g, "1", "2")
	}
	if g.chance(1, 3) {
		priority := int32(g.IntN(3))
		p.Spec.Priority = &priority
	}
	g.containers(p)
	if g.chance(1, 3) {
		p.Spec.Tolerations = g.tolerations()
	}
	if g.chance(1, 6) {
		p.Spec.NodeSelector = map[string]string{pick(g, "pool", corev1.LabelTopologyZone): pick(g, "a", "b", "z1", "")}
	}
	if g.chance(1, 4) && (!g.easy || g.chance(1, 4)) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: g.nodeSelector()}}
	}
	if g.chance(1, 3) {
		g.podAffinity(p)
	}
	if g.chance(1, 3) {
		for range 1 + g.IntN(2) {
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, g.spread())
		}
	}
	if g.chance(1, 4) {
		g.volumes(p)
	}
	if g.chance(1, 30) {
		no := false
		p.Spec.HostNetwork, p.Spec.HostUsers = true, &no
	}
	if g.chance(1, 60) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device"}}
	}
	return p
}

func (g generator) requests() corev1.ResourceList {
	list := corev1.ResourceList{}
	if g.chance(4, 5) {
		list[corev1.ResourceCPU] = quantity(g, "0", "100m", "500m", "1", "2", "3500m")
	}
	if g.chance(4, 5) {
		list[corev1.ResourceMemory] = quantity(g, "128Mi", "512Mi", "1Gi", "3Gi")
	}
	if g.chance(1, 8) {
		list[corev1.ResourceEphemeralStorage] = quantity(g, "100Mi", "2Gi")
	}
	if g.chance(1, 10) {
		list[gpu] = quantity(g, "0", "1", "2")
	}
	if g.chance(1, 15) {
		list["hugepages-2Mi"] = quantity(g, "2Mi", "8Mi")
	}
	if g.chance(1, 40) {
		list[pick(g, corev1.ResourceCPU, corev1.ResourceMemory, gpu)] = quantity(g, "-1", "-500m", "9e15", "1")
	}
	if g.chance(1, 40) {
		list[pick[corev1.ResourceName](g, "example", "requests.cpu", "kubernetes.io/thing", "bad name/x")] = quantity(g, "1")
	}
	return list
}

func (g generator) containers(p *corev1.Pod) {
	always := corev1.ContainerRestartPolicyAlways
	for i := range 1 + g.IntN(2) {
		c := corev1.Container{Name: fmt.Sprintf("c%d", i), Resources: corev1.ResourceRequirements{Requests: g.requests()}}
		if g.chance(1, 6) {
			c.Ports = g.ports()
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	for i := range g.IntN(6) / 3 * (1 + g.IntN(2)) {
		c := corev1.Container{Name: fmt.Sprintf("i%d", i), Resources: corev1.ResourceRequirements{Requests: g.requests()}}
		if g.chance(1, 2) {
			c.RestartPolicy = &always
		}
		if g.chance(1, 4) {
			c.Ports = g.ports()
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	if g.chance(1, 10) {
		p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: quantity(g, "50m", "250m")}
	}
	if g.chance(1, 10) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: g.requests()}
	}
	if g.chance(1, 40) {
		p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
	}
}

func (g generator) resize(p *corev1.Pod) {
	for i := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name:      p.Spec.Containers[i].Name,
			Resources: &corev1.ResourceRequirements{Requests: g.requests()}, AllocatedResources: g.requests(),
		})
	}
	if g.chance(1, 3) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Reason: pick(g, corev1.PodReasonInfeasible, corev1.PodReasonDeferred)}}
	}
	if p.Spec.Resources != nil && g.chance(1, 2) {
		p.Status.Resources = &corev1.ResourceRequirements{Requests: g.requests()}
		p.Status.AllocatedResources = g.requests()
	}
}

func (g generator) ports() []corev1.ContainerPort {
	return []corev1.ContainerPort{{
		HostPort: int32(g.IntN(3) * 4040), ContainerPort: 80,
		HostIP: pick(g, "", "0.0.0.0", "127.0.0.1", "::"), Protocol: pick(g, "", corev1.ProtocolTCP, corev1.ProtocolUDP),
	}}
}

func (g generator) tolerations() []corev1.Toleration {
	var list []corev1.Toleration
	for range 1 + g.IntN(2) {
		list = append(list, corev1.Toleration{
			Key:      pick(g, "gpu", "spot", "", corev1.TaintNodeUnschedulable),
			Operator: pick(g, "", corev1.TolerationOpExists, corev1.TolerationOpEqual, corev1.TolerationOpGt, "Odd"),
			Value:    pick(g, "", "only", "4"), Effect: pick(g, "", corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute),
		})
	}
	return list
}

func (g generator) nodeSelector() *corev1.NodeSelector {
	s := &corev1.NodeSelector{}
	for range g.IntN(3) + g.IntN(2) {
		var t corev1.NodeSelectorTerm
		for range g.IntN(3) {
			t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{
				Key:      pick(g, "pool", corev1.LabelTopologyZone, "generation", corev1.LabelHostname),
				Operator: pick(g, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt),
				Values:   pick(g, []string{"a"}, []string{"z1", "z2"}, []string{"z1"}, []string{"2"}, nil),
			})
		}
		if g.chance(1, 6) {
			for range 1 + g.IntN(2) {
				t.MatchFields = append(t.MatchFields, corev1.NodeSelectorRequirement{
					Key:      pick(g, "metadata.name", "metadata.name", "metadata.other"),
					Operator: pick(g, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn),
					Values:   pick(g, []string{"node-1"}, []string{"node-2"}, []string{"node-1", "node-2"}),
				})
			}
		}
		if g.chance(1, 40) {
			t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{Key: "pool", Operator: "Near"})
		}
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, t)
	}
	return s
}

func (g generator) labelSelector() *metav1.LabelSelector {
	switch g.IntN(12) {
	case 0:
		return nil
	case 1:
		return &metav1.LabelSelector{}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key:      "tier",
			Operator: pick(g, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist),
		}}}
	case 3:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key:      "app",
			Operator: pick(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: []string{"a", "b"},
		}}}
	case 4:
		if g.chance(1, 4) {
			return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}
		}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(g, "a", "b", "c")}}
}

func (g generator) term() corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{
		LabelSelector: g.labelSelector(),
		TopologyKey:   pick(g, corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyZone, "pool"),
	}
	if g.chance(1, 4) {
		t.Namespaces = []string{pick(g, "red", "green"), pick(g, "red", "blue")}
	}
	if g.chance(1, 4) {
		t.NamespaceSelector = pick(g, &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}},
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"y"}}}},
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "odd", Operator: metav1.LabelSelectorOpDoesNotExist}}})
	}
	return t
}

func (g generator) podAffinity(p *corev1.Pod) {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	if g.chance(1, 2) {
		p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{}
		for range 1 + g.IntN(4)/3 {
			p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(
				p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, g.term())
		}
	} else {
		p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
		for range 1 + g.IntN(4)/3 {
			p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(
				p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, g.term())
		}
	}
	if g.chance(1, 10) {
		if p.Spec.Affinity.PodAntiAffinity == nil {
			p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		p.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: g.term()}}
	}
}

func (g generator) spread() corev1.TopologySpreadConstraint {
	c := corev1.TopologySpreadConstraint{
		MaxSkew: int32(1 + g.IntN(2)), LabelSelector: g.labelSelector(),
		TopologyKey:       pick(g, corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyZone, "pool"),
		WhenUnsatisfiable: pick(g, corev1.DoNotSchedule, corev1.DoNotSchedule, corev1.DoNotSchedule, corev1.ScheduleAnyway),
	}
	if g.chance(1, 4) {
		domains := int32(1 + g.IntN(4))
		c.MinDomains = &domains
	}
	if g.chance(1, 3) {
		policy := pick(g, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		c.NodeAffinityPolicy = &policy
	}
	if g.chance(1, 3) {
		policy := pick(g, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		c.NodeTaintsPolicy = &policy
	}
	if g.chance(1, 4) {
		c.MatchLabelKeys = []string{pick(g, "pod-template-hash", "missing")}
	}
	return c
}

func (g generator) volumes(p *corev1.Pod) {
	for i := range 1 + g.IntN(2) {
		v := corev1.Volume{Name: fmt.Sprintf("v%d", i)}
		switch g.IntN(12) {
		case 0:
			v.GCEPersistentDisk = &corev1.GCEPersistentDiskVolumeSource{PDName: pick(g, "d1", "d2"), ReadOnly: g.chance(1, 2)}
		case 1:
			v.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: pick(g, "vol-1", "vol-2")}
		case 2:
			v.ISCSI = &corev1.ISCSIVolumeSource{IQN: pick(g, "i1", "i2"), ReadOnly: g.chance(1, 2)}
		case 3:
			v.RBD = &corev1.RBDVolumeSource{CephMonitors: []string{pick(g, "m1", "m2"), "m3"}, RBDPool: "p", RBDImage: pick(g, "x", "y"), ReadOnly: g.chance(1, 2)}
		case 4:
			v.EmptyDir = &corev1.EmptyDirVolumeSource{}
		case 5:
			v.Ephemeral = &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}
		default:
			v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("claim-%d", g.IntN(5))}
		}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
}

// own makes the claims of generic ephemeral volumes, most of them owned by their pod.
func (g generator) own(c *Cluster) {
	yes := true
	for _, list := range [][]*corev1.Pod{c.Pods, c.Candidates} {
		for _, p := range list {
			for _, v := range p.Spec.Volumes {
				if v.Ephemeral == nil || g.chance(1, 8) {
					continue
				}
				claim := g.claim(p.Namespace, 0)
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
