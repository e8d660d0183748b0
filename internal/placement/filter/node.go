package filter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
)

// Node is one node of the snapshot. Its ID is reused after the node is deleted.
type Node struct {
	ID            int32
	Object        *corev1.Node // reduced to what is read: metadata, taints, unschedulable, readiness
	Present       bool         // false for an unused slot
	RemovedByPlan bool         // a plan has removed it
	ClosedByPlan  bool         // a plan places no pods on it

	Allocatable   []int64 // by resource
	Used          []int64
	maxPods       int64
	Pods          []*Pod
	Facts         noderules.Facts
	APIServerPods int32 // number of API server pods
	ports         map[hostPort]int32
	volumePods    map[*PodClass]int32 // pods per class, of classes with volumes that scheduling reads
	features      nodedeclaredfeatures.FeatureSet

	csiDrivers
}

// trimNode copies only what is read from a node, to save memory.
func trimNode(o *corev1.Node) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: o.Name, UID: o.UID, Labels: o.Labels, Annotations: o.Annotations,
			CreationTimestamp: o.CreationTimestamp, DeletionTimestamp: o.DeletionTimestamp,
		},
		Spec:   corev1.NodeSpec{Taints: o.Spec.Taints, Unschedulable: o.Spec.Unschedulable, ProviderID: o.Spec.ProviderID},
		Status: corev1.NodeStatus{Conditions: keepReadyCondition(o.Status.Conditions)},
	}
}

func keepReadyCondition(conditions []corev1.NodeCondition) []corev1.NodeCondition {
	for _, c := range conditions {
		if c.Type == corev1.NodeReady {
			return []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return nil
}

// Name returns the name of the Node object.
func (n *Node) Name() string { return n.Object.Name }

// SumUsedShares returns the sum of the used shares of cpu and memory, from 0 to 2. It is 0 if nothing is allocatable.
func (n *Node) SumUsedShares() float64 {
	var load float64
	for _, r := range []int32{ResourceCPU, ResourceMemory} {
		if allocatable := AmountAt(n.Allocatable, r); allocatable > 0 {
			load += float64(AmountAt(n.Used, r)) / float64(allocatable)
		}
	}
	return load
}

// AdjustUsage adds (sign 1) or removes (sign -1) the resources, ports and volumes that a pod uses on the node.
func (n *Node) AdjustUsage(p *Pod, sign int64) {
	takes := p.Usage
	if p.IsMovedByPlan() {
		takes = p.Class.Usage
	}
	for _, a := range takes {
		for int(a.Resource) >= len(n.Used) {
			n.Used = append(n.Used, 0)
		}
		n.Used[a.Resource] += sign * a.Value
	}
	for _, port := range p.Class.ports {
		if n.ports == nil {
			n.ports = map[hostPort]int32{}
		}
		if n.ports[port] += int32(sign); n.ports[port] == 0 {
			delete(n.ports, port)
		}
	}
	if p.Class.volumes != nil {
		if n.volumePods == nil {
			n.volumePods = map[*PodClass]int32{}
		}
		if n.volumePods[p.Class] += int32(sign); n.volumePods[p.Class] == 0 {
			delete(n.volumePods, p.Class)
		}
	}
}

// CanReceivePods reports whether pods can be placed on the node.
func (n *Node) CanReceivePods() bool {
	return n.Present && !n.RemovedByPlan && !n.ClosedByPlan && n.APIServerPods == 0 && n.Facts.CanReceivePods()
}

// Availability reports whether a node counts as serving its group, and whether it is being removed.
func (n *Node) Availability() (serves, leaving bool) {
	reason, leaving := n.Facts.UnavailableReason(false)
	return reason == "", leaving
}

// ResourcePodCount is the pseudo resource for the number of pods.
const ResourcePodCount int32 = -1

// FreeAmount returns the unused amount of a resource, at least 0.
func (n *Node) FreeAmount(resource int32) int64 {
	if resource == ResourcePodCount {
		return max(0, n.maxPods-int64(len(n.Pods)))
	}
	return max(0, AmountAt(n.Allocatable, resource)-AmountAt(n.Used, resource))
}

// SwapPods exchanges a pod with the pod at an index. It restores the order from before the pod was removed.
func (n *Node) SwapPods(p *Pod, index int32) {
	other := n.Pods[index]
	n.Pods[index], n.Pods[p.IndexInNode] = p, other
	p.IndexInNode, other.IndexInNode = index, p.IndexInNode
}

// SetObject stores the state of a node object.
func (n *Node) SetObject(o *corev1.Node, t *ResourceTable) {
	n.Object = trimNode(o)
	n.Facts = fromcorev1.NodeFacts(o)
	n.Allocatable = t.ToSlice(o.Status.Allocatable)
	pods := o.Status.Allocatable[corev1.ResourcePods]
	n.maxPods = pods.Value()
	n.features = nodedeclaredfeatures.DefaultFramework.TryMap(o.Status.DeclaredFeatures)
}

// IsUpToDate reports whether the object changes nothing that is stored of the node.
func (n *Node) IsUpToDate(o *corev1.Node, t *ResourceTable) bool {
	pods := o.Status.Allocatable[corev1.ResourcePods]
	return n.maxPods == pods.Value() && equality.Semantic.DeepEqual(n.Object, trimNode(o)) &&
		slices.Equal(n.Allocatable, t.ToSlice(o.Status.Allocatable)) &&
		n.features.Equal(nodedeclaredfeatures.DefaultFramework.TryMap(o.Status.DeclaredFeatures))
}

// HasSameLabelsAndTaints reports whether labels and taints are equal. Topology domains and eligibility depend on them.
func (n *Node) HasSameLabelsAndTaints(o *corev1.Node) bool {
	a, b := n.Object, o
	if len(a.Spec.Taints) != len(b.Spec.Taints) || !labels.Equals(a.Labels, b.Labels) {
		return false
	}
	for i := range a.Spec.Taints {
		if !a.Spec.Taints[i].MatchTaint(&b.Spec.Taints[i]) || a.Spec.Taints[i].Value != b.Spec.Taints[i].Value {
			return false
		}
	}
	return true
}
