package placementtest

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/slipway-dev/slipway/internal/placement/saved"
)

// Cluster holds the objects of a scenario. Candidates are new pods that are not in the snapshot. Only the real
// scheduler reads Capacities.
type Cluster struct {
	saved.Objects
	Capacities []*storagev1.CSIStorageCapacity `json:"capacities,omitempty"`
	Candidates []*corev1.Pod                   `json:"candidates,omitempty"`
}

// IsFinished reports whether a pod has ended, so that it uses nothing.
func IsFinished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// PendingPods lists the pending pods.
func (c *Cluster) PendingPods() []*corev1.Pod {
	var list []*corev1.Pod
	for _, p := range c.Pods {
		if p.Spec.NodeName == "" && !IsFinished(p) {
			list = append(list, p)
		}
	}
	return list
}

// PlacedPods lists the unfinished pods on a node of the cluster.
func (c *Cluster) PlacedPods() []*corev1.Pod {
	known := map[string]bool{}
	for _, n := range c.Nodes {
		known[n.Name] = true
	}
	var list []*corev1.Pod
	for _, p := range c.Pods {
		if known[p.Spec.NodeName] && !IsFinished(p) {
			list = append(list, p)
		}
	}
	return list
}

// NewTwoNodeCluster returns a cluster of two nodes in one zone, with one pod on the first.
func NewTwoNodeCluster() *Cluster {
	c := &Cluster{}
	c.Nodes = []*corev1.Node{NewNode("first", "zone-a", 4, 16, 10), NewNode("second", "zone-a", 4, 16, 10)}
	c.Pods = []*corev1.Pod{NewPod("web", 0, "first", 500, 512)}
	return c
}
