package kubeapi

import (
	"encoding/json"
	"strconv"
	"time"
)

// ObjectMeta holds the fields of metav1.ObjectMeta that this package reads.
type ObjectMeta struct {
	Name                       string            `json:"name,omitempty"`
	Namespace                  string            `json:"namespace,omitempty"`
	UID                        string            `json:"uid,omitempty"`
	ResourceVersion            string            `json:"resourceVersion,omitempty"`
	Labels                     map[string]string `json:"labels,omitempty"`
	Annotations                map[string]string `json:"annotations,omitempty"`
	OwnerReferences            []OwnerReference  `json:"ownerReferences,omitempty"`
	Finalizers                 []string          `json:"finalizers,omitempty"`
	CreationTimestamp          time.Time         `json:"creationTimestamp,omitzero"`
	DeletionTimestamp          *time.Time        `json:"deletionTimestamp,omitempty"`
	DeletionGracePeriodSeconds *int64            `json:"deletionGracePeriodSeconds,omitempty"`
}

// GetMeta returns the object's metadata. Functions for several types use it.
func (m *ObjectMeta) GetMeta() *ObjectMeta { return m }

// OwnerReference holds the fields of metav1.OwnerReference.
type OwnerReference struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller *bool  `json:"controller,omitempty"`
}

// Node holds the fields of corev1.Node that are read.
type Node struct {
	ObjectMeta `json:"metadata"`

	Spec   NodeSpec   `json:"spec"`
	Status NodeStatus `json:"status"`
}

// NodeSpec holds the fields of corev1.NodeSpec that are read.
type NodeSpec struct {
	ProviderID    string  `json:"providerID,omitempty"`
	Unschedulable bool    `json:"unschedulable,omitempty"`
	Taints        []Taint `json:"taints,omitempty"`
}

// Taint holds all fields of corev1.Taint. A patch writes the whole list of taints, including taints that other programs
// set.
type Taint struct {
	Key       string  `json:"key"`
	Value     string  `json:"value,omitempty"`
	Effect    string  `json:"effect"`
	TimeAdded *string `json:"timeAdded,omitempty"` // a string, so that it is written back unchanged
}

// NodeStatus holds the fields of corev1.NodeStatus that are read.
type NodeStatus struct {
	Conditions []Condition `json:"conditions,omitempty"`
	NodeInfo   NodeInfo    `json:"nodeInfo,omitzero"`
}

// NodeInfo holds the fields of corev1.NodeSystemInfo that are read.
type NodeInfo struct {
	SystemUUID string `json:"systemUUID,omitempty"`
}

// Condition holds the fields of corev1.NodeCondition and corev1.PodCondition that are read.
type Condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	Reason             string    `json:"reason,omitempty"`
	Message            string    `json:"message,omitempty"`
	LastTransitionTime time.Time `json:"lastTransitionTime,omitzero"`
}

// Pod holds the fields of corev1.Pod that are read.
type Pod struct {
	ObjectMeta `json:"metadata"`

	Spec   PodSpec   `json:"spec"`
	Status PodStatus `json:"status"`
}

// PodSpec holds the fields of corev1.PodSpec that are read.
type PodSpec struct {
	NodeName                      string   `json:"nodeName,omitempty"`
	Priority                      *int32   `json:"priority,omitempty"`
	PriorityClassName             string   `json:"priorityClassName,omitempty"`
	TerminationGracePeriodSeconds *int64   `json:"terminationGracePeriodSeconds,omitempty"`
	Volumes                       []Volume `json:"volumes,omitempty"`
	// EvictionResponders are asked by an EvictionRequest before the pod is evicted (Kubernetes 1.37, KEP-4563).
	EvictionResponders []EvictionResponder `json:"evictionResponders,omitempty"`
	// SchedulingGroup is set from Kubernetes 1.36 on, with the feature gate GenericWorkload.
	SchedulingGroup *PodSchedulingGroup `json:"schedulingGroup,omitempty"`
}

// PodSchedulingGroup holds the fields of corev1.PodSchedulingGroup.
type PodSchedulingGroup struct {
	PodGroupName string `json:"podGroupName,omitempty"`
}

// EmptyDirVolume holds the fields of corev1.EmptyDirVolumeSource that are read. Medium is empty or Memory.
type EmptyDirVolume struct {
	Medium string `json:"medium,omitempty"`
}

// ClaimVolume holds the fields of corev1.PersistentVolumeClaimVolumeSource that are read.
type ClaimVolume struct {
	ClaimName string `json:"claimName"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

// Volume holds the fields of corev1.Volume that are read.
type Volume struct {
	Name                  string          `json:"name"`
	EmptyDir              *EmptyDirVolume `json:"emptyDir,omitempty"`
	HostPath              *struct{}       `json:"hostPath,omitempty"`
	PersistentVolumeClaim *ClaimVolume    `json:"persistentVolumeClaim,omitempty"`
	// Ephemeral is a generic ephemeral volume. The name of its claim is <pod>-<volume>.
	Ephemeral *json.RawMessage `json:"ephemeral,omitempty"`
}

// PodStatus holds the fields of corev1.PodStatus that are read.
type PodStatus struct {
	Phase                 string            `json:"phase,omitempty"`
	Reason                string            `json:"reason,omitempty"`
	Conditions            []Condition       `json:"conditions,omitempty"`
	ContainerStatuses     []ContainerStatus `json:"containerStatuses,omitempty"`
	InitContainerStatuses []ContainerStatus `json:"initContainerStatuses,omitempty"`
}

// ContainerStatus holds the fields of corev1.ContainerStatus that are read.
type ContainerStatus struct {
	Name         string `json:"name"`
	RestartCount int32  `json:"restartCount,omitempty"`
	State        struct {
		Running *struct {
			StartedAt time.Time `json:"startedAt,omitzero"`
		} `json:"running,omitempty"`
		Terminated *struct {
			ExitCode   int       `json:"exitCode"`
			Reason     string    `json:"reason,omitempty"`
			FinishedAt time.Time `json:"finishedAt,omitzero"`
		} `json:"terminated,omitempty"`
	} `json:"state"`
}

// PodDisruptionBudget holds the fields of policyv1.PodDisruptionBudget that are read.
type PodDisruptionBudget struct {
	ObjectMeta `json:"metadata"`

	Spec struct {
		// Selector selects nothing if nil, and every pod of the namespace if empty (policy/v1).
		Selector       *LabelSelector  `json:"selector,omitempty"`
		MinAvailable   json.RawMessage `json:"minAvailable,omitempty"`
		MaxUnavailable json.RawMessage `json:"maxUnavailable,omitempty"`
		// UnhealthyPodEvictionPolicy is IfHealthyBudget, also if it is empty, or AlwaysAllow.
		UnhealthyPodEvictionPolicy string `json:"unhealthyPodEvictionPolicy,omitempty"`
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

// ExemptsUnready reports whether the eviction API evicts unready pods without counting them against the PodDisruptionBudget.
// EvictionREST.Create in k8s.io/kubernetes/pkg/registry/core/pod/storage has this rule.
func (b *PodDisruptionBudget) ExemptsUnready() bool {
	return b.Spec.UnhealthyPodEvictionPolicy == "AlwaysAllow" || b.Status.DesiredHealthy > 0 && b.Status.CurrentHealthy >= b.Status.DesiredHealthy
}

// CanNeverAllowEviction reports whether a PodDisruptionBudget requires at least as many healthy pods as there are pods. It then
// allows no eviction, even if all pods are healthy.
func CanNeverAllowEviction(desiredHealthy, expectedPods int32) bool {
	return expectedPods > 0 && desiredHealthy >= expectedPods
}

// LabelSelector holds the fields of metav1.LabelSelector.
type LabelSelector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []struct {
		Key      string   `json:"key"`
		Operator string   `json:"operator"`
		Values   []string `json:"values,omitempty"`
	} `json:"matchExpressions,omitempty"`
}

// VolumeAttachment holds the fields of storagev1.VolumeAttachment that are read.
type VolumeAttachment struct {
	ObjectMeta `json:"metadata"`

	Spec struct {
		NodeName string `json:"nodeName"`
		Source   struct {
			PersistentVolumeName *string `json:"persistentVolumeName,omitempty"`
		} `json:"source"`
	} `json:"spec"`
}

// PersistentVolumeClaim holds the fields of corev1.PersistentVolumeClaim that are read.
type PersistentVolumeClaim struct {
	ObjectMeta `json:"metadata"`

	Spec struct {
		VolumeName  string   `json:"volumeName,omitempty"`
		AccessModes []string `json:"accessModes,omitempty"`
	} `json:"spec"`
}

// ObjectReference holds the fields of corev1.ObjectReference that are used.
type ObjectReference struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Name       string `json:"name,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	UID        string `json:"uid,omitempty"`
}

// Event holds the fields of corev1.Event that are written.
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

// Lease holds the fields of coordinationv1.Lease that are used.
type Lease struct {
	ObjectMeta `json:"metadata"`

	Spec LeaseSpec `json:"spec"`
}

// LeaseSpec holds the fields of coordinationv1.LeaseSpec that are used.
type LeaseSpec struct {
	HolderIdentity       string    `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds int32     `json:"leaseDurationSeconds,omitempty"` // the API server requires more than 0, or none
	AcquireTime          MicroTime `json:"acquireTime,omitzero"`
	RenewTime            MicroTime `json:"renewTime,omitzero"`
	LeaseTransitions     int32     `json:"leaseTransitions,omitempty"`
}

// MicroTime is metav1.MicroTime. It is encoded with exactly six digits after the second, because the API server accepts
// no other format.
type MicroTime struct{ time.Time }

// MarshalJSON writes the time in UTC, such as "2006-01-02T15:04:05.000000Z".
func (t MicroTime) MarshalJSON() ([]byte, error) {
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05.000000Z07:00"`)), nil
}

// ParseResourceVersion returns a resourceVersion as a number, which increases with each change. It returns 0 if
// resourceVersion is not a number (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions).
func ParseResourceVersion(resourceVersion string) uint64 {
	v, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return v
}
