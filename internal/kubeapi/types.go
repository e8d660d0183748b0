package kubeapi

import (
	"encoding/json"
	"strconv"
	"time"
)

// ObjectMeta is metav1.ObjectMeta, as far as it is read.
type ObjectMeta struct {
	Name                       string            `json:"name,omitempty"`
	Namespace                  string            `json:"namespace,omitempty"`
	UID                        string            `json:"uid,omitempty"`
	ResourceVersion            string            `json:"resourceVersion,omitempty"`
	Labels                     map[string]string `json:"labels,omitempty"`
	Annotations                map[string]string `json:"annotations,omitempty"`
	OwnerReferences            []OwnerReference  `json:"ownerReferences,omitempty"`
	CreationTimestamp          time.Time         `json:"creationTimestamp,omitzero"`
	DeletionTimestamp          *time.Time        `json:"deletionTimestamp,omitempty"`
	DeletionGracePeriodSeconds *int64            `json:"deletionGracePeriodSeconds,omitempty"`
}

// GetMeta lets generic code reach the metadata of any object here.
func (m *ObjectMeta) GetMeta() *ObjectMeta { return m }

// OwnerReference is metav1.OwnerReference.
type OwnerReference struct {
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller *bool  `json:"controller,omitempty"`
}

// Node is corev1.Node, as far as it is read.
type Node struct {
	ObjectMeta `json:"metadata"`

	Spec   NodeSpec   `json:"spec"`
	Status NodeStatus `json:"status"`
}

// NodeSpec is corev1.NodeSpec, as far as it is read.
type NodeSpec struct {
	ProviderID    string  `json:"providerID,omitempty"`
	Unschedulable bool    `json:"unschedulable,omitempty"`
	Taints        []Taint `json:"taints,omitempty"`
}

// Taint is corev1.Taint, whole: a patch of the list writes back every element, other people's included.
type Taint struct {
	Key       string  `json:"key"`
	Value     string  `json:"value,omitempty"`
	Effect    string  `json:"effect"`
	TimeAdded *string `json:"timeAdded,omitempty"` // kept as text, so that it is written back to the letter
}

// NodeStatus is corev1.NodeStatus, as far as it is read.
type NodeStatus struct {
	Conditions []Condition `json:"conditions,omitempty"`
	NodeInfo   NodeInfo    `json:"nodeInfo,omitzero"`
}

// NodeInfo is corev1.NodeSystemInfo, as far as it is read.
type NodeInfo struct {
	SystemUUID string `json:"systemUUID,omitempty"`
}

// Condition is corev1.NodeCondition and corev1.PodCondition, as far as both are read.
type Condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	Reason             string    `json:"reason,omitempty"`
	Message            string    `json:"message,omitempty"`
	LastTransitionTime time.Time `json:"lastTransitionTime,omitzero"`
}

// Pod is corev1.Pod, as far as it is read.
type Pod struct {
	ObjectMeta `json:"metadata"`

	Spec   PodSpec   `json:"spec"`
	Status PodStatus `json:"status"`
}

// PodSpec is corev1.PodSpec, as far as it is read.
type PodSpec struct {
	NodeName                      string   `json:"nodeName,omitempty"`
	Priority                      *int32   `json:"priority,omitempty"`
	PriorityClassName             string   `json:"priorityClassName,omitempty"`
	TerminationGracePeriodSeconds *int64   `json:"terminationGracePeriodSeconds,omitempty"`
	Volumes                       []Volume `json:"volumes,omitempty"`
}

// EmptyDirVolume is corev1.EmptyDirVolumeSource, as far as it is read: Medium is empty, or Memory.
type EmptyDirVolume struct {
	Medium string `json:"medium,omitempty"`
}

// Volume is corev1.Volume, as far as it is read.
type Volume struct {
	Name                  string          `json:"name"`
	EmptyDir              *EmptyDirVolume `json:"emptyDir,omitempty"`
	HostPath              *struct{}       `json:"hostPath,omitempty"`
	PersistentVolumeClaim *struct {
		ClaimName string `json:"claimName"`
	} `json:"persistentVolumeClaim,omitempty"`
	// Ephemeral is a generic ephemeral volume, whose claim is named <pod>-<volume>.
	Ephemeral *json.RawMessage `json:"ephemeral,omitempty"`
}

// PodStatus is corev1.PodStatus, as far as it is read.
type PodStatus struct {
	Phase             string            `json:"phase,omitempty"`
	Reason            string            `json:"reason,omitempty"`
	Conditions        []Condition       `json:"conditions,omitempty"`
	ContainerStatuses []ContainerStatus `json:"containerStatuses,omitempty"`
}

// ContainerStatus is corev1.ContainerStatus, as far as it is read.
type ContainerStatus struct {
	Name  string `json:"name"`
	State struct {
		Terminated *struct {
			ExitCode   int       `json:"exitCode"`
			Reason     string    `json:"reason,omitempty"`
			FinishedAt time.Time `json:"finishedAt,omitzero"`
		} `json:"terminated,omitempty"`
	} `json:"state"`
}

// PodDisruptionBudget is policyv1.PodDisruptionBudget, as far as it is read.
type PodDisruptionBudget struct {
	ObjectMeta `json:"metadata"`

	Spec struct {
		// Selector nil selects nothing, an empty one selects every pod of the namespace (policy/v1).
		Selector       *LabelSelector  `json:"selector,omitempty"`
		MinAvailable   json.RawMessage `json:"minAvailable,omitempty"`
		MaxUnavailable json.RawMessage `json:"maxUnavailable,omitempty"`
	} `json:"spec"`
	Status struct {
		DisruptionsAllowed int32           `json:"disruptionsAllowed"`
		CurrentHealthy     int32           `json:"currentHealthy"`
		DesiredHealthy     int32           `json:"desiredHealthy"`
		ExpectedPods       int32           `json:"expectedPods"`
		DisruptedPods      map[string]any  `json:"disruptedPods,omitempty"`
		ObservedGeneration json.RawMessage `json:"observedGeneration,omitempty"`
	} `json:"status"`
}

// LabelSelector is metav1.LabelSelector.
type LabelSelector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []struct {
		Key      string   `json:"key"`
		Operator string   `json:"operator"`
		Values   []string `json:"values,omitempty"`
	} `json:"matchExpressions,omitempty"`
}

// VolumeAttachment is storagev1.VolumeAttachment, as far as it is read.
type VolumeAttachment struct {
	ObjectMeta `json:"metadata"`

	Spec struct {
		NodeName string `json:"nodeName"`
		Source   struct {
			PersistentVolumeName *string `json:"persistentVolumeName,omitempty"`
		} `json:"source"`
	} `json:"spec"`
}

// PersistentVolumeClaim is corev1.PersistentVolumeClaim, as far as it is read.
type PersistentVolumeClaim struct {
	ObjectMeta `json:"metadata"`

	Spec struct {
		VolumeName string `json:"volumeName,omitempty"`
	} `json:"spec"`
}

// ObjectReference is corev1.ObjectReference, as far as it is written.
type ObjectReference struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Name       string `json:"name,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	UID        string `json:"uid,omitempty"`
}

// Event is corev1.Event, as far as it is written.
type Event struct {
	APIVersion     string          `json:"apiVersion"`
	Kind           string          `json:"kind"`
	Metadata       ObjectMeta      `json:"metadata"`
	InvolvedObject ObjectReference `json:"involvedObject"`
	Type           string          `json:"type"` // Normal or Warning
	Reason         string          `json:"reason"`
	Message        string          `json:"message"`
	Source         struct {
		Component string `json:"component"`
		Host      string `json:"host,omitempty"`
	} `json:"source"`
	FirstTimestamp time.Time `json:"firstTimestamp"`
	LastTimestamp  time.Time `json:"lastTimestamp"`
	Count          int32     `json:"count"`
}

// Lease is coordinationv1.Lease, as far as it is used.
type Lease struct {
	ObjectMeta `json:"metadata"`

	Spec LeaseSpec `json:"spec"`
}

// LeaseSpec is coordinationv1.LeaseSpec, as far as it is used.
type LeaseSpec struct {
	HolderIdentity       string    `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds int32     `json:"leaseDurationSeconds,omitempty"` // the API server wants more than 0, or none
	AcquireTime          MicroTime `json:"acquireTime,omitzero"`
	RenewTime            MicroTime `json:"renewTime,omitzero"`
	LeaseTransitions     int32     `json:"leaseTransitions,omitempty"`
}

// MicroTime is metav1.MicroTime: a time that is written with six digits of the second, neither more nor fewer, as the
// API server reads no other.
type MicroTime struct{ time.Time }

// MarshalJSON writes the six digits.
func (t MicroTime) MarshalJSON() ([]byte, error) {
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05.000000Z07:00"`)), nil
}

// Version returns a resourceVersion as a number, of which a later one is greater, and 0 if it is no number
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions).
func Version(resourceVersion string) uint64 {
	v, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return v
}
