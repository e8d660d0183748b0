package oracle

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/slipway-dev/slipway/internal/placement"
)

// Cluster is everything that either judge is told. Pods without a node name are pending: they are the ones judged.
type Cluster struct {
	Namespaces     []*corev1.Namespace             `json:"namespaces,omitempty"`
	Nodes          []*corev1.Node                  `json:"nodes,omitempty"`
	Pods           []*corev1.Pod                   `json:"pods,omitempty"`
	Candidates     []*corev1.Pod                   `json:"candidates,omitempty"`
	Claims         []*corev1.PersistentVolumeClaim `json:"claims,omitempty"`
	Volumes        []*corev1.PersistentVolume      `json:"volumes,omitempty"`
	StorageClasses []*storagev1.StorageClass       `json:"storageClasses,omitempty"`
	CSINodes       []*storagev1.CSINode            `json:"csiNodes,omitempty"`
	CSIDrivers     []*storagev1.CSIDriver          `json:"csiDrivers,omitempty"`
	Attachments    []*storagev1.VolumeAttachment   `json:"attachments,omitempty"`
}

// placed lists the pods that are on a node of the cluster.
func (c *Cluster) placed() []*corev1.Pod {
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

// Snapshot tells placement the cluster.
func (c *Cluster) Snapshot() (*placement.Snapshot, error) {
	s := placement.New()
	return s, errors.Join(
		feed(c.Pods, s.SetPod), feed(c.Nodes, s.SetNode), feed(c.Namespaces, s.SetNamespace),
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
