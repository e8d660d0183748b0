package plan

import (
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentresource "k8s.io/component-helpers/resource"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// LearnTemplate returns what the nodes of one template have in common: the smallest resources, and the labels, taints and declared
// features that all have. It leaves out what identifies a node or describes its current state. startup are the keys of taints that a
// node has only while it starts. It returns nil without nodes.
func LearnTemplate(name string, nodes []*corev1.Node, startup []string) *v1alpha1.LearnedTemplate {
	if len(nodes) == 0 {
		return nil
	}
	first := nodes[0]
	out := &v1alpha1.LearnedTemplate{Name: name, Labels: maps.Clone(first.Labels), DeclaredFeatures: slices.Clone(first.Status.DeclaredFeatures)}
	delete(out.Labels, corev1.LabelHostname)
	for _, n := range nodes {
		out.DeclaredFeatures = slices.DeleteFunc(out.DeclaredFeatures, func(f string) bool { return !slices.Contains(n.Status.DeclaredFeatures, f) })
		maps.DeleteFunc(out.Labels, func(key, value string) bool { return value == n.Name || n.Labels[key] != value })
		out.Allocatable = intersectMinResources(out.Allocatable, n.Status.Allocatable)
		out.Capacity = intersectMinResources(out.Capacity, n.Status.Capacity)
	}
	for _, t := range first.Spec.Taints {
		if isTemporaryTaint(t.Key, startup) || slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return !hasTaint(n, t) }) {
			continue
		}
		out.Taints = append(out.Taints, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	return out
}

func hasTaint(n *corev1.Node, t corev1.Taint) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(o corev1.Taint) bool { return o.MatchTaint(&t) && o.Value == t.Value })
}

// intersectMinResources returns the smaller amount of each resource. It leaves out resources that are in one list only. If a is
// nil, it returns b.
func intersectMinResources(a, b corev1.ResourceList) corev1.ResourceList {
	if a == nil {
		return b.DeepCopy()
	}
	for name, has := range a {
		if other, ok := b[name]; !ok {
			delete(a, name)
		} else if other.Cmp(has) < 0 {
			a[name] = other.DeepCopy()
		}
	}
	return a
}

// TemplateSource has everything that is known about the nodes of a template.
type TemplateSource struct {
	// Template is what the cloud reports, or what a configuration declares there.
	Template cloud.Template
	// Declared are the allocatable resources that the NodeGroup declares. nil means none.
	Declared corev1.ResourceList
	// Learned is what nodes of the template have shown. Siblings is what the nodes of the group have in common. Each is
	// nil if there were no such nodes.
	Learned, Siblings *v1alpha1.LearnedTemplate
	// NodesLongGone means that no node of the template has existed for a long time.
	NodesLongGone bool
}

// defaultMaxPods is the default of the kubelet.
const defaultMaxPods = 110

// NewTemplateNode returns an example Node of a template, or nil if its resources are unknown. It takes the resources
// from earlier nodes, else from the declaration in the NodeGroup, else from the capacity minus an estimate. When no node
// of the template has existed for a long time, it adds declared resources that the earlier nodes lacked, and declared
// labels and taints.
func NewTemplateNode(g *v1alpha1.NodeGroup, s TemplateSource) *corev1.Node {
	t := &s.Template
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
	switch {
	case s.Learned != nil:
		n.Status.Allocatable, n.Status.Capacity = s.Learned.Allocatable.DeepCopy(), s.Learned.Capacity.DeepCopy()
		if s.NodesLongGone {
			s.addMissingResources(n)
		}
	case len(s.Declared) > 0:
		n.Status.Allocatable, n.Status.Capacity = withPodCapacity(s.Declared, t.Capacity), t.Capacity.DeepCopy()
	case isCapacityKnown(t.Capacity):
		n.Status.Allocatable, n.Status.Capacity = withPodCapacity(computeAllocatable(&t.NodeShape), t.Capacity), t.Capacity.DeepCopy()
	default:
		return nil
	}
	if !isCapacityKnown(n.Status.Capacity) {
		n.Status.Capacity = n.Status.Allocatable.DeepCopy()
	}
	setLabelsAndTaints(n, g, &s)
	if t.Zone != "" {
		n.Labels[corev1.LabelTopologyZone] = t.Zone
	}
	for _, l := range []*v1alpha1.LearnedTemplate{s.Siblings, s.Learned} { // earlier nodes of the template come first
		if l != nil && len(l.DeclaredFeatures) > 0 {
			n.Status.DeclaredFeatures = slices.Clone(l.DeclaredFeatures)
		}
	}
	return n
}

// addMissingResources adds declared resources that the nodes of the template did not show, such as a device without its
// plugin.
func (s *TemplateSource) addMissingResources(n *corev1.Node) {
	said := s.Declared
	if len(said) == 0 {
		said = computeAllocatable(&s.Template.NodeShape)
	}
	for name, amount := range said {
		for _, list := range []*corev1.ResourceList{&n.Status.Allocatable, &n.Status.Capacity} {
			if has := (*list)[name]; !has.IsZero() {
				continue
			}
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[name] = amount.DeepCopy()
		}
	}
}

// setLabelsAndTaints sets the labels and taints of a Node. They come from earlier nodes of the template, or else from the
// group's other nodes, and from the group's selector, which every node of the group matches. What the cloud declares
// counts if there were no earlier nodes, or if they are long gone.
func setLabelsAndTaints(n *corev1.Node, g *v1alpha1.NodeGroup, s *TemplateSource) {
	if s.Learned != nil {
		maps.Copy(n.Labels, s.Learned.Labels)
		n.Spec.Taints = slices.Clone(s.Learned.Taints)
	} else {
		s.setSiblingLabelsAndTaints(n)
	}
	maps.Copy(n.Labels, g.Spec.NodeSelector.MatchLabels)
	if s.Learned != nil && !s.NodesLongGone {
		return
	}
	maps.Copy(n.Labels, s.Template.Labels)
	for _, t := range s.Template.Taints {
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(o corev1.Taint) bool { return o.MatchTaint(&t) })
		n.Spec.Taints = append(n.Spec.Taints, t)
	}
}

// setSiblingLabelsAndTaints sets what the group's other nodes and the name of the template say about a Node.
func (s *TemplateSource) setSiblingLabelsAndTaints(n *corev1.Node) {
	n.Labels[corev1.LabelOSStable], n.Labels[corev1.LabelArchStable] = "linux", "amd64"
	if s.Siblings != nil {
		maps.Copy(n.Labels, s.Siblings.Labels)
		n.Spec.Taints = slices.Clone(s.Siblings.Taints)
	}
	for _, key := range []string{corev1.LabelInstanceType, corev1.LabelInstanceTypeStable} {
		n.Labels[key] = s.Template.Name
	}
}

// isCapacityKnown reports whether the capacity has more than a number of pods. Some clouds report only that.
func isCapacityKnown(capacity corev1.ResourceList) bool {
	_, pods := capacity[corev1.ResourcePods]
	return len(capacity) > 1 || len(capacity) == 1 && !pods
}

// withPodCapacity adds the number of pods to a list of resources that lacks it. The number comes from the capacity or is
// the default of the kubelet.
func withPodCapacity(list, capacity corev1.ResourceList) corev1.ResourceList {
	out := list.DeepCopy()
	if _, ok := out[corev1.ResourcePods]; ok {
		return out
	}
	out[corev1.ResourcePods] = *resource.NewQuantity(defaultMaxPods, resource.DecimalSI)
	if pods, ok := capacity[corev1.ResourcePods]; ok {
		out[corev1.ResourcePods] = pods
	}
	return out
}

// reservationTier says which share, in thousandths, is reserved of each unit between the previous tier and upTo.
type reservationTier struct {
	upTo, thousandths int64
}

const gibi = 1 << 30

// What managed clusters reserve for the system and the kubelet
// (https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes#memory_and_cpu_reservations). Most other
// clusters reserve less, so that a pod which fits here fits there too.
var (
	cpuReservationTiers    = []reservationTier{{1000, 60}, {2000, 10}, {4000, 5}, {1 << 40, 2}}
	memoryReservationTiers = []reservationTier{{4 * gibi, 250}, {8 * gibi, 200}, {16 * gibi, 100}, {128 * gibi, 60}, {1 << 60, 20}}
)

// evictionThresholdBytes is the memory that the kubelet keeps free by eviction.
const evictionThresholdBytes = 100 << 20

func computeReservation(amount int64, tiers []reservationTier) (reserved int64) {
	from := int64(0)
	for _, t := range tiers {
		if amount <= from {
			break
		}
		reserved += (min(amount, t.upTo) - from) * t.thousandths / 1000
		from = t.upTo
	}
	return reserved
}

// computeAllocatable returns what pods may use of an instance: the capacity minus the declared reservation, or an
// estimate.
func computeAllocatable(s *cloud.NodeShape) corev1.ResourceList {
	if s.Reserved == nil {
		return guessAllocatable(s.Capacity)
	}
	out := s.Capacity.DeepCopy()
	for name, reserved := range s.Reserved {
		if has, ok := out[name]; ok && reserved.Sign() > 0 {
			if has.Sub(reserved); has.Sign() < 0 {
				has = resource.Quantity{Format: has.Format}
			}
			out[name] = has
		}
	}
	return out
}

// guessAllocatable estimates what pods may use from the capacity alone.
func guessAllocatable(capacity corev1.ResourceList) corev1.ResourceList {
	out := capacity.DeepCopy()
	if cpu, ok := out[corev1.ResourceCPU]; ok {
		out[corev1.ResourceCPU] = *resource.NewMilliQuantity(cpu.MilliValue()-computeReservation(cpu.MilliValue(), cpuReservationTiers), resource.DecimalSI)
	}
	if memory, ok := out[corev1.ResourceMemory]; ok {
		bytes := memory.Value()
		out[corev1.ResourceMemory] = *resource.NewQuantity(max(0, bytes-computeReservation(bytes, memoryReservationTiers)-evictionThresholdBytes), resource.BinarySI)
	}
	return out
}

// listDaemonSetPods returns the pods of DaemonSets that placement would put on a new node together.
func listDaemonSetPods(n *corev1.Node, daemons []*appsv1.DaemonSet) (pods []*corev1.Pod, err error) {
	const name = "new"
	empty := snapshot.New()
	whole := n.DeepCopy()
	whole.Name = name
	if err := empty.SetNode(whole); err != nil {
		return nil, err
	}
	for _, d := range daemons {
		p := newDaemonSetPod(d)
		verdict, err := empty.JudgeNewPod(p, name)
		if err != nil {
			return nil, fmt.Errorf("DaemonSet %s/%s: %w", d.Namespace, d.Name, err)
		}
		if verdict.Outcome == placement.Blocked {
			continue
		}
		pods = append(pods, p)
		placed := p.DeepCopy()
		placed.Spec.NodeName = name
		if err := empty.SetPod(placed); err != nil {
			return nil, fmt.Errorf("DaemonSet %s/%s: %w", d.Namespace, d.Name, err)
		}
	}
	return pods, nil
}

// newDaemonSetPod returns the pod of a DaemonSet, with the tolerations that its controller adds
// (https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations).
func newDaemonSetPod(d *appsv1.DaemonSet) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Spec: *d.Spec.Template.Spec.DeepCopy()}
	p.Namespace, p.Name = d.Namespace, d.Name
	setPodDefaults(p)
	for _, key := range []string{
		corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeDiskPressure, corev1.TaintNodeMemoryPressure,
		corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable, corev1.TaintNodeNetworkUnavailable,
	} {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	return p
}

// setPodDefaults sets the defaults that the API server sets in Pods but not in pod templates, as far as scheduling reads them: requests
// from limits, and the host ports of the host network (SetDefaults_Pod in k8s.io/kubernetes/pkg/apis/core/v1).
func setPodDefaults(p *corev1.Pod) {
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			setMissingRequests(&c.Resources, c.Resources.Requests)
			for j := range c.Ports {
				if port := &c.Ports[j]; p.Spec.HostNetwork && port.HostPort == 0 {
					port.HostPort = port.ContainerPort
				}
			}
		}
	}
	if r := p.Spec.Resources; r != nil {
		requested := componentresource.AggregateContainerRequests(p, componentresource.PodResourcesOptions{})
		maps.Copy(requested, r.Requests)
		setMissingRequests(r, requested)
	}
}

// setMissingRequests requests the limit of each resource that is not requested.
func setMissingRequests(r *corev1.ResourceRequirements, requested corev1.ResourceList) {
	for name, limit := range r.Limits {
		if _, ok := requested[name]; ok {
			continue
		}
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[name] = limit
	}
}
