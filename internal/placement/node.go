package placement

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/nodedeclaredfeatures"
)

// node is one machine of the snapshot. Its slot is reused when the node is deleted.
type node struct {
	id      int32
	object  *corev1.Node // trimmed to what is read: metadata, taints, unschedulable
	present bool         // the slot holds a node
	out     bool         // a plan has taken it away

	allocatable []int64 // by resource
	used        []int64
	maxPods     int64
	pods        []*pod
	ports       map[hostPort]int32
	volumePods  map[*class]int32 // pods per class with volumes that scheduling reads
	features    nodedeclaredfeatures.FeatureSet

	limits   map[string]int64 // CSI driver to the number of volumes it can attach; nil without a CSINode
	csiNode  bool
	migrated string // annotation of the CSINode that names migrated in-tree plugins
}

// trim keeps what is read of a node, so that status and managed fields are not held.
func trim(o *corev1.Node) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: o.Name, UID: o.UID, Labels: o.Labels, Annotations: o.Annotations,
			CreationTimestamp: o.CreationTimestamp, DeletionTimestamp: o.DeletionTimestamp,
		},
		Spec:   corev1.NodeSpec{Taints: o.Spec.Taints, Unschedulable: o.Spec.Unschedulable, ProviderID: o.Spec.ProviderID},
		Status: corev1.NodeStatus{Conditions: readyCondition(o.Status.Conditions)},
	}
}

func readyCondition(conditions []corev1.NodeCondition) []corev1.NodeCondition {
	for _, c := range conditions {
		if c.Type == corev1.NodeReady {
			return []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return nil
}

func (n *node) name() string { return n.object.Name }

// ready reports whether the node says so itself.
func (n *node) ready() bool {
	return len(n.object.Status.Conditions) > 0 && n.object.Status.Conditions[0].Status == corev1.ConditionTrue
}

// load sums the shares of cpu and memory that the pods of the node take; a node with nothing allocatable has none.
func (n *node) load() float64 {
	var load float64
	for _, r := range []int32{resourceCPU, resourceMemory} {
		if allocatable := at(n.allocatable, r); allocatable > 0 {
			load += float64(at(n.used, r)) / float64(allocatable)
		}
	}
	return load
}

// take adds (sign 1) or takes off (sign -1) what a pod uses of the node.
func (n *node) take(p *pod, sign int64) {
	takes := p.takes
	if p.moved {
		takes = p.class.takes
	}
	for _, a := range takes {
		for int(a.resource) >= len(n.used) {
			n.used = append(n.used, 0)
		}
		n.used[a.resource] += sign * a.value
	}
	for _, port := range p.class.ports {
		if n.ports == nil {
			n.ports = map[hostPort]int32{}
		}
		if n.ports[port] += int32(sign); n.ports[port] == 0 {
			delete(n.ports, port)
		}
	}
	if p.class.volumes != nil {
		if n.volumePods == nil {
			n.volumePods = map[*class]int32{}
		}
		if n.volumePods[p.class] += int32(sign); n.volumePods[p.class] == 0 {
			delete(n.volumePods, p.class)
		}
	}
}
