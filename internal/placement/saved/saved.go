// Package saved stores the objects that placement reads in a file, so that plans can be made and explained later,
// without the cluster.
package saved

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Objects holds everything that a snapshot is built from.
type Objects struct {
	// Time is when the cluster was read. Durations in annotations are evaluated at this time.
	Time           time.Time                       `json:"time,omitzero"`
	Namespaces     []*corev1.Namespace             `json:"namespaces,omitempty"`
	Nodes          []*corev1.Node                  `json:"nodes,omitempty"`
	Pods           []*corev1.Pod                   `json:"pods,omitempty"`
	PDBs           []*policyv1.PodDisruptionBudget `json:"budgets,omitempty"`
	Claims         []*corev1.PersistentVolumeClaim `json:"claims,omitempty"`
	Volumes        []*corev1.PersistentVolume      `json:"volumes,omitempty"`
	StorageClasses []*storagev1.StorageClass       `json:"storageClasses,omitempty"`
	CSINodes       []*storagev1.CSINode            `json:"csiNodes,omitempty"`
	CSIDrivers     []*storagev1.CSIDriver          `json:"csiDrivers,omitempty"`
	Attachments    []*storagev1.VolumeAttachment   `json:"attachments,omitempty"`
	DeviceClasses  []*resourcev1.DeviceClass       `json:"deviceClasses,omitempty"`
	PodGroups      []*schedulingv1beta1.PodGroup   `json:"podGroups,omitempty"`
}

// BuildSnapshot builds a snapshot from the objects.
func (o *Objects) BuildSnapshot() (*snapshot.Snapshot, error) {
	s := snapshot.New()
	return s, errors.Join(
		setAll(o.Namespaces, s.SetNamespace), setAll(o.Nodes, s.SetNode), setAll(o.Pods, s.SetPod),
		setAll(o.PDBs, s.PDBs.Set), setAll(o.Claims, s.Storage.SetPersistentVolumeClaim),
		setAll(o.Volumes, s.Storage.SetPersistentVolume), setAll(o.StorageClasses, s.Storage.SetStorageClass), setAll(o.CSINodes, s.Storage.SetCSINode),
		setAll(o.CSIDrivers, s.Storage.SetCSIDriver), setAll(o.Attachments, s.Storage.SetVolumeAttachment),
		setAll(o.DeviceClasses, s.Storage.SetDeviceClass), setAll(o.PodGroups, s.PodGroups.Set))
}

func setAll[T any](list []T, setOne func(T) error) error {
	for _, o := range list {
		if err := setOne(o); err != nil {
			return err
		}
	}
	return nil
}
