package placementtest

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// generator creates small clusters from few values, so that a pod's needs often almost match what a node offers.
// About one object in thirty is invalid on purpose.
type generator struct {
	*rand.Rand
	// easy clusters have room and few taints, so that the later filters decide.
	easy bool
}

const gpu = corev1.ResourceName("example.com/gpu")

// NewRandomCluster returns the random cluster of a seed.
func NewRandomCluster(seed uint64) *Cluster {
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
		c.Nodes = append(c.Nodes, g.newNode(i))
	}
	g.addStorage(c)
	g.addDeviceClasses(c)
	for i := range g.IntN(26) {
		p := g.newPod(fmt.Sprintf("placed-%d", i))
		p.Spec.NodeName = c.Nodes[g.IntN(len(c.Nodes))].Name
		if g.chance(1, 12) {
			p.DeletionTimestamp = &metav1.Time{Time: metav1.Unix(1, 0).Time}
		}
		if g.chance(1, 10) {
			g.setResizeStatus(p)
		}
		if g.chance(1, 20) {
			p.Status.Phase = pick(g, corev1.PodSucceeded, corev1.PodFailed)
		}
		c.Pods = append(c.Pods, p)
	}
	for i := range g.IntN(6) / 2 {
		c.Pods = append(c.Pods, g.newPendingPod(fmt.Sprintf("waiting-%d", i), c.Nodes))
	}
	for i := range 6 + g.IntN(8) {
		p := g.newPod(fmt.Sprintf("candidate-%d", i))
		if g.chance(1, 30) {
			p.Spec.NodeName = c.Nodes[g.IntN(len(c.Nodes))].Name
		}
		c.Candidates = append(c.Candidates, p)
	}
	g.addEphemeralClaims(c)
	return c
}

// newPendingPod returns a pending pod. Most of them are nominated to a node.
func (g generator) newPendingPod(name string, nodes []*corev1.Node) *corev1.Pod {
	p := g.newPod(name)
	if g.chance(4, 5) {
		p.Status.NominatedNodeName = nodes[g.IntN(len(nodes))].Name
	}
	switch g.IntN(12) {
	case 0:
		p.Status.NominatedNodeName = "unknown"
	case 1:
		p.DeletionTimestamp = &metav1.Time{Time: metav1.Unix(1, 0).Time}
	case 2:
		p.Spec.SchedulerName = pick(g, corev1.DefaultSchedulerName, "volcano")
	}
	return p
}

// addDeviceClasses adds device classes. Some offer an extended resource.
func (g generator) addDeviceClasses(c *Cluster) {
	for i := range g.IntN(8) / 6 * (1 + g.IntN(2)) {
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("class-%d", i)}}
		if g.chance(2, 3) {
			offered := pick(g, string(gpu), "example.com/fpga")
			class.Spec.ExtendedResourceName = &offered
		}
		c.DeviceClasses = append(c.DeviceClasses, class)
	}
}

// NewRandomNode returns a random node, made like the nodes of NewRandomCluster.
func NewRandomNode(g *rand.Rand, i int) *corev1.Node { return generator{Rand: g}.newNode(i) }

func (g generator) chance(n, of int) bool { return g.IntN(of) < n }

func pick[T any](g generator, list ...T) T { return list[g.IntN(len(list))] }

func pickQuantity(g generator, list ...string) resource.Quantity {
	return resource.MustParse(pick(g, list...))
}

func (g generator) newNode(i int) *corev1.Node {
	name := fmt.Sprintf("node-%d", i)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
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
		corev1.ResourceCPU:    pickQuantity(g, "0", "1", "2", "4", "8"),
		corev1.ResourceMemory: pickQuantity(g, "1Gi", "2Gi", "4Gi", "16Gi"),
		corev1.ResourcePods:   pickQuantity(g, "3", "5", "10", "110"),
	}
	if g.easy {
		n.Status.Allocatable[corev1.ResourceCPU] = pickQuantity(g, "8", "16")
		n.Status.Allocatable[corev1.ResourceMemory] = pickQuantity(g, "16Gi", "64Gi")
		n.Status.Allocatable[corev1.ResourcePods] = pickQuantity(g, "10", "110")
	}
	if g.easy || g.chance(2, 3) {
		n.Status.Allocatable[corev1.ResourceEphemeralStorage] = pickQuantity(g, "1Gi", "10Gi")
	}
	if g.chance(1, 3) {
		n.Status.Allocatable[gpu] = pickQuantity(g, "0", "1", "2", "4")
	}
	if g.chance(1, 4) {
		n.Status.Allocatable["hugepages-2Mi"] = pickQuantity(g, "4Mi", "64Mi")
		n.Status.Allocatable["hugepages-1Gi"] = pickQuantity(g, "0", "1Gi", "4Gi")
	}
	if g.chance(1, 3) {
		n.Status.DeclaredFeatures = pick(g, []string{"RestartAllContainersOnContainerExits"}, []string{"UserNamespacesHostNetworkSupport"},
			[]string{"Unheard", "VolumeBindMountOptions"})
	}
	if !g.easy && g.chance(1, 20) {
		n.Status.Allocatable = nil
	}
	return n
}

// newPod returns a random pod with a controller. A pod without a controller needs no room elsewhere.
func (g generator) newPod(name string) *corev1.Pod {
	controller := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pick(g, "red", "green", "blue"), Name: name, UID: types.UID(name),
		Labels:          map[string]string{"app": pick(g, "a", "b", "c")},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: types.UID(name), Controller: &controller}},
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
	g.addContainers(p)
	if g.chance(1, 3) {
		p.Spec.Tolerations = g.newTolerations()
	}
	if g.chance(1, 6) {
		p.Spec.NodeSelector = map[string]string{pick(g, "pool", corev1.LabelTopologyZone): pick(g, "a", "b", "z1", "")}
	}
	if g.chance(1, 4) && (!g.easy || g.chance(1, 4)) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: g.newNodeSelector()}}
	}
	if g.chance(1, 3) {
		g.addPodAffinity(p)
	}
	if g.chance(1, 3) {
		for range 1 + g.IntN(8)/2 {
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, g.newSpreadConstraint())
		}
	}
	if g.chance(1, 4) {
		g.addVolumes(p)
	}
	if g.chance(1, 30) {
		no := false
		p.Spec.HostNetwork, p.Spec.HostUsers = true, &no
	}
	if g.chance(1, 60) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device"}}
	}
	if g.chance(1, 40) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "quota"}, {Name: "review"}}[:1+g.IntN(2)]
	}
	return p
}

func (g generator) newRequests() corev1.ResourceList {
	list := corev1.ResourceList{}
	if g.chance(4, 5) {
		list[corev1.ResourceCPU] = pickQuantity(g, "0", "100m", "500m", "1", "2", "3500m")
	}
	if g.chance(4, 5) {
		list[corev1.ResourceMemory] = pickQuantity(g, "128Mi", "512Mi", "1Gi", "3Gi")
	}
	if g.chance(1, 8) {
		list[corev1.ResourceEphemeralStorage] = pickQuantity(g, "100Mi", "2Gi")
	}
	if g.chance(1, 10) {
		list[gpu] = pickQuantity(g, "0", "1", "2")
	}
	if g.chance(1, 15) {
		list[pick[corev1.ResourceName](g, "hugepages-2Mi", "hugepages-1Gi")] = pickQuantity(g, "2Mi", "8Mi", "1Gi")
	}
	if g.chance(1, 60) {
		list["deviceclass.resource.kubernetes.io/class-0"] = pickQuantity(g, "1")
	}
	if g.chance(1, 40) {
		list[pick(g, corev1.ResourceCPU, corev1.ResourceMemory)] = pickQuantity(g, "-1", "-500m", "9e15", "1")
	}
	if g.chance(1, 40) {
		list[pick[corev1.ResourceName](g, "example", "requests.cpu", "kubernetes.io/thing", "bad name/x")] = pickQuantity(g, "1")
	}
	if len(list) == 0 {
		return nil // as the API server decodes it
	}
	return list
}

func (g generator) newContainer(name string) corev1.Container {
	c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: g.newRequests()}}
	if g.chance(1, 6) {
		c.Ports = g.newHostPorts()
	}
	if g.chance(1, 60) {
		c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
	}
	if g.chance(1, 60) {
		c.VolumeMounts = []corev1.VolumeMount{{Name: "v0", MountPath: "/v0", BindMountOptions: []string{"noexec"}}}
	}
	return c
}

func (g generator) addContainers(p *corev1.Pod) {
	always := corev1.ContainerRestartPolicyAlways
	for i := range 1 + g.IntN(2) {
		p.Spec.Containers = append(p.Spec.Containers, g.newContainer(fmt.Sprintf("c%d", i)))
	}
	for i := range g.IntN(6) / 3 * (1 + g.IntN(4)) {
		c := g.newContainer(fmt.Sprintf("i%d", i))
		if g.chance(1, 2) {
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for i := range g.IntN(12) / 10 * (1 + g.IntN(3)) {
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon(g.newContainer(fmt.Sprintf("e%d", i))),
		})
	}
	if g.chance(1, 10) {
		p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: pickQuantity(g, "50m", "250m")}
		if g.chance(1, 2) {
			p.Spec.Overhead = g.newRequests()
		}
	}
	if g.chance(1, 10) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: g.newRequests()}
	}
}

// setResizeStatus sets the status of an in-place resize.
func (g generator) setResizeStatus(p *corev1.Pod) {
	statuses := func(list []corev1.Container) []corev1.ContainerStatus {
		var out []corev1.ContainerStatus
		for i := range list {
			status := corev1.ContainerStatus{Name: list[i].Name}
			if g.chance(3, 4) {
				status.Resources = &corev1.ResourceRequirements{Requests: g.newRequests()}
			}
			if g.chance(3, 4) {
				status.AllocatedResources = g.newRequests()
			}
			if g.chance(7, 8) {
				out = append(out, status)
			}
		}
		return out
	}
	p.Status.ContainerStatuses, p.Status.InitContainerStatuses = statuses(p.Spec.Containers), statuses(p.Spec.InitContainers)
	if g.chance(1, 3) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Reason: pick(g, corev1.PodReasonInfeasible, corev1.PodReasonDeferred)}}
	}
	if g.chance(1, 4) || p.Spec.Resources != nil && g.chance(1, 2) {
		p.Status.Resources = &corev1.ResourceRequirements{Requests: g.newRequests()}
	}
	if g.chance(1, 4) || p.Spec.Resources != nil && g.chance(1, 2) {
		p.Status.AllocatedResources = g.newRequests()
	}
}

func (g generator) newHostPorts() []corev1.ContainerPort {
	return []corev1.ContainerPort{{
		HostPort: int32(g.IntN(3) * 4040), ContainerPort: 80,
		HostIP:   pick(g, "", "0.0.0.0", "127.0.0.1", "::", "10.0.0.5", "10.0.0.6", "fd00::5"),
		Protocol: pick(g, "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP),
	}}
}

func (g generator) newTolerations() []corev1.Toleration {
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

func (g generator) newNodeSelector() *corev1.NodeSelector {
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

func (g generator) newLabelSelector() *metav1.LabelSelector {
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

func (g generator) newAffinityTerm() corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{
		LabelSelector: g.newLabelSelector(),
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

func (g generator) addPodAffinity(p *corev1.Pod) {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	if g.chance(1, 2) {
		p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{}
		for range 1 + g.IntN(4)/3 {
			p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(
				p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, g.newAffinityTerm())
		}
	} else {
		p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
		for range 1 + g.IntN(4)/3 {
			p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(
				p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, g.newAffinityTerm())
		}
	}
	if g.chance(1, 10) {
		if p.Spec.Affinity.PodAntiAffinity == nil {
			p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		p.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: g.newAffinityTerm()}}
	}
}

func (g generator) newSpreadConstraint() corev1.TopologySpreadConstraint {
	c := corev1.TopologySpreadConstraint{
		MaxSkew: int32(1 + g.IntN(2)), LabelSelector: g.newLabelSelector(),
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
