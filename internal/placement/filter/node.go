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

// Node is one machine of the snapshot. Its slot is reused when the node is deleted.
type Node struct {
	ID      int32
	Object  *corev1.Node // trimmed to what is read: metadata, taints, unschedulable
	Present bool         // the slot holds a node
	Out     bool         // a plan has taken it away

	Allocatable []int64 // by resource
	Used        []int64
	maxPods     int64
	Pods        []*Pod
	Facts       noderules.Facts
	APIServers  int32 // pods that are API servers
	ports       map[hostPort]int32
	volumePods  map[*Class]int32 // pods per class with volumes that scheduling reads
	features    nodedeclaredfeatures.FeatureSet

	csiNode  bool             // there is one; it says:
	limits   map[string]int64 // CSI driver to the number of volumes it can attach
	drivers  []string
	migrated []string // in-tree plugins whose volumes are bound as those of CSI drivers
}

// trimNode keeps what is read of a node, so that status and managed fields are not held.
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

// Name returns the name of the node.
func (n *Node) Name() string { return n.Object.Name }

// Load sums the shares of cpu and memory that the pods of the node take; a node with nothing allocatable has none.
func (n *Node) Load() float64 {
	var load float64
	for _, r := range []int32{ResourceCPU, ResourceMemory} {
		if allocatable := At(n.Allocatable, r); allocatable > 0 {
			load += float64(At(n.Used, r)) / float64(allocatable)
		}
	}
	return load
}

// Take adds (sign 1) or takes off (sign -1) what a pod uses of the node.
func (n *Node) Take(p *Pod, sign int64) {
	takes := p.Takes
	if p.Moved {
		takes = p.Class.Takes
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
			n.volumePods = map[*Class]int32{}
		}
		if n.volumePods[p.Class] += int32(sign); n.volumePods[p.Class] == 0 {
			delete(n.volumePods, p.Class)
		}
	}
}

// Target reports whether pods may be sent to a node.
func (n *Node) Target() bool {
	return n.Present && !n.Out && n.APIServers == 0 && n.Facts.ReceivesPods()
}

// Available reports whether a node counts as serving its group, and whether it is leaving.
func (n *Node) Available() (serves, leaving bool) {
	reason, leaving := n.Facts.Unavailable(false)
	return reason == "", leaving
}

// PodCount stands for the number of pods among the resources.
const PodCount int32 = -1

// Free is what is left of a resource, never less than nothing.
func (n *Node) Free(r int32) int64 {
	if r == PodCount {
		return max(0, n.maxPods-int64(len(n.Pods)))
	}
	return max(0, At(n.Allocatable, r)-At(n.Used, r))
}

// Swap exchanges the places of a pod and of the one at a place, restoring the order that taking the pod off has changed.
func (n *Node) Swap(p *Pod, place int32) {
	other := n.Pods[place]
	n.Pods[place], n.Pods[p.Place] = p, other
	p.Place, other.Place = place, p.Place
}

// Read takes over an object.
func (n *Node) Read(o *corev1.Node, t *ResourceTable) {
	n.Object = trimNode(o)
	n.Facts = fromcorev1.Node(o)
	n.Allocatable = t.Dense(o.Status.Allocatable)
	pods := o.Status.Allocatable[corev1.ResourcePods]
	n.maxPods = pods.Value()
	n.features = nodedeclaredfeatures.DefaultFramework.TryMap(o.Status.DeclaredFeatures)
}

// IsUpToDate reports whether an object has nothing new for the node.
func (n *Node) IsUpToDate(o *corev1.Node, t *ResourceTable) bool {
	pods := o.Status.Allocatable[corev1.ResourcePods]
	return n.maxPods == pods.Value() && equality.Semantic.DeepEqual(n.Object, trimNode(o)) &&
		slices.Equal(n.Allocatable, t.Dense(o.Status.Allocatable)) &&
		n.features.Equal(nodedeclaredfeatures.DefaultFramework.TryMap(o.Status.DeclaredFeatures))
}

// HasTopologyOf reports whether labels and taints, on which domains and eligibility rest, are the same.
func (n *Node) HasTopologyOf(o *corev1.Node) bool {
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
