// Package saved holds the objects that placement reads of a cluster as a document, so that a plan can be asked for, and
// explained, away from the cluster and later.
package saved

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/placement"
)

// Objects is everything that a snapshot is told.
type Objects struct {
	// Time is when the cluster was read. Durations in annotations are held against it.
	Time           time.Time                       `json:"time,omitzero"`
	Namespaces     []*corev1.Namespace             `json:"namespaces,omitempty"`
	Nodes          []*corev1.Node                  `json:"nodes,omitempty"`
	Pods           []*corev1.Pod                   `json:"pods,omitempty"`
	Budgets        []*policyv1.PodDisruptionBudget `json:"budgets,omitempty"`
	Claims         []*corev1.PersistentVolumeClaim `json:"claims,omitempty"`
	Volumes        []*corev1.PersistentVolume      `json:"volumes,omitempty"`
	StorageClasses []*storagev1.StorageClass       `json:"storageClasses,omitempty"`
	CSINodes       []*storagev1.CSINode            `json:"csiNodes,omitempty"`
	CSIDrivers     []*storagev1.CSIDriver          `json:"csiDrivers,omitempty"`
	Attachments    []*storagev1.VolumeAttachment   `json:"attachments,omitempty"`
	DeviceClasses  []*resourcev1.DeviceClass       `json:"deviceClasses,omitempty"`
}

// Snapshot feeds the objects to a new snapshot, as informers would.
func (o *Objects) Snapshot() (*placement.Snapshot, error) {
	s := placement.New()
	return s, errors.Join(
		feed(o.Namespaces, s.SetNamespace), feed(o.Nodes, s.SetNode), feed(o.Pods, s.SetPod),
		feed(o.Budgets, s.SetPodDisruptionBudget), feed(o.Claims, s.SetPersistentVolumeClaim),
		feed(o.Volumes, s.SetPersistentVolume), feed(o.StorageClasses, s.SetStorageClass), feed(o.CSINodes, s.SetCSINode),
		feed(o.CSIDrivers, s.SetCSIDriver), feed(o.Attachments, s.SetVolumeAttachment),
		feed(o.DeviceClasses, s.SetDeviceClass))
}

func feed[T any](list []T, set func(T) error) error {
	for _, o := range list {
		if err := set(o); err != nil {
			return err
		}
	}
	return nil
}

// Write writes the objects as one JSON document. What placement does not read and what may be private is left out:
// managed fields, environment, commands and arguments of containers.
func (o *Objects) Write(w io.Writer) error {
	stripped := *o
	stripped.Pods = make([]*corev1.Pod, len(o.Pods))
	for i, p := range o.Pods {
		stripped.Pods[i] = strip(p)
	}
	if err := json.NewEncoder(w).Encode(&stripped); err != nil {
		return fmt.Errorf("write the saved cluster: %w", err)
	}
	return nil
}

// Read reads what Write has written.
func Read(r io.Reader) (*Objects, error) {
	var o Objects
	if err := json.NewDecoder(r).Decode(&o); err != nil {
		return nil, fmt.Errorf("read the saved cluster: %w", err)
	}
	return &o, nil
}

// strip copies a pod without what placement does not read of it.
func strip(p *corev1.Pod) *corev1.Pod {
	out := p.DeepCopy()
	out.ManagedFields = []metav1.ManagedFieldsEntry(nil)
	for _, containers := range [][]corev1.Container{out.Spec.InitContainers, out.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Env, c.EnvFrom, c.Command, c.Args = nil, nil, nil, nil
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		}
	}
	return out
}
