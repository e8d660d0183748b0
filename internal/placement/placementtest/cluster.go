package placementtest

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement/saved"
)

// Cluster is the objects of a scenario. Candidates are pods to be judged; they are not in the snapshot.
type Cluster struct {
	saved.Objects
	Candidates []*corev1.Pod `json:"candidates,omitempty"`
}

// Placed lists the pods that are on a node of the cluster.
func (c *Cluster) Placed() []*corev1.Pod {
	known := map[string]bool{}
	for _, n := range c.Nodes {
		known[n.Name] = true
	}
	var list []*corev1.Pod
	for _, p := range c.Pods {
		if known[p.Spec.NodeName] {
			list = append(list, p)
		}
	}
	return list
}
