package placementtest

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/slipway-dev/slipway/internal/placement"
)

// Cluster is the objects of a scenario. Candidates are pods to be judged; they are not in the snapshot.
type Cluster struct {
	Namespaces     []*corev1.Namespace             `json:"namespaces,omitempty"`
	Nodes          []*corev1.Node                  `json:"nodes,omitempty"`
	Pods           []*corev1.Pod                   `json:"pods,omitempty"`
	Budgets        []*policyv1.PodDisruptionBudget `json:"budgets,omitempty"`
	Candidates     []*corev1.Pod                   `json:"candidates,omitempty"`
	Claims         []*corev1.PersistentVolumeClaim `json:"claims,omitempty"`
	Volumes        []*corev1.PersistentVolume      `json:"volumes,omitempty"`
	StorageClasses []*storagev1.StorageClass       `json:"storageClasses,omitempty"`
	CSINodes       []*storagev1.CSINode            `json:"csiNodes,omitempty"`
	CSIDrivers     []*storagev1.CSIDriver          `json:"csiDrivers,omitempty"`
	Attachments    []*storagev1.VolumeAttachment   `json:"attachments,omitempty"`
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

// Snapshot feeds the cluster to a new snapshot, as informers would.
func (c *Cluster) Snapshot() (*placement.Snapshot, error) {
	s := placement.New()
	return s, errors.Join(
		feed(c.Pods, s.SetPod), feed(c.Nodes, s.SetNode), feed(c.Budgets, s.SetPodDisruptionBudget), feed(c.Namespaces, s.SetNamespace),
		feed(c.Claims, s.SetPersistentVolumeClaim), feed(c.Volumes, s.SetPersistentVolume),
		feed(c.StorageClasses, s.SetStorageClass), feed(c.CSINodes, s.SetCSINode), feed(c.CSIDrivers, s.SetCSIDriver),
		feed(c.Attachments, s.SetVolumeAttachment))
}

func feed[T any](list []T, set func(T) error) error {
	for _, o := range list {
		if err := set(o); err != nil {
			return err
		}
	}
	return nil
}
