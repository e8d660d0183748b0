package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ScaleUpPolicy says which kind of machine is taken when several would help.
//
// +kubebuilder:validation:Enum=LeastWaste;LeastCost;Priority
type ScaleUpPolicy string

// The policies.
const (
	LeastWaste ScaleUpPolicy = "LeastWaste" // leaves the least cpu and memory unused
	LeastCost  ScaleUpPolicy = "LeastCost"  // costs the least for what the pods ask
	ByPriority ScaleUpPolicy = "Priority"   // the first of the list that helps
)

// ScaleUp has a group get machines for the pods that find no room. Groups of a higher priority are asked first; those of
// one priority and one policy compete with each other.
type ScaleUp struct {
	// Templates are the kinds of machines that the group may get, the preferred one first; none is all that the cloud has
	// for it, in the cloud's order.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Templates []MachineTemplate `json:"templates,omitempty"`

	// Policy says which kind of machine is taken when several would help.
	//
	// +optional
	// +kubebuilder:default=LeastWaste
	Policy ScaleUpPolicy `json:"policy,omitempty"`

	// Priority orders the groups: a group is asked when those of a higher one cannot help.
	//
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`

	// KeepMinimum orders machines while the group has fewer than spec.minimum. Without it machines are ordered for pods alone, and
	// the minimum keeps nodes from leaving.
	//
	// +optional
	// +kubebuilder:default=true
	KeepMinimum *bool `json:"keepMinimum,omitempty"`

	// Limits are the most that the group's machines may have together.
	//
	// +optional
	Limits ScaleUpLimits `json:"limits,omitempty"`

	// JoinTimeout is how long a machine may take from the order until its Node is Ready. After that it is no help any
	// more: one that never had a Node is deleted, and its kind left alone for a while.
	//
	// +optional
	// +kubebuilder:default="15m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s')",message="must be at least 10s"
	JoinTimeout *metav1.Duration `json:"joinTimeout,omitempty"`

	// HeadRoom is room that is kept free for pods to come.
	//
	// +optional
	HeadRoom *HeadRoom `json:"headRoom,omitempty"`

	// StartupTaints are the keys of taints that a node has only while it starts: pods are counted on it though they do not
	// tolerate them.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=316
	StartupTaints []string `json:"startupTaints,omitempty"`
}

// MachineTemplate is a kind of machine, and what is known of its nodes before there is one.
type MachineTemplate struct {
	// Name is the cloud's own, a size or a flavour.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Allocatable is what pods may take of a node of this kind, that of DaemonSets included. It counts until a node of the
	// kind has shown what it has; without it a careful guess is made from what the cloud says of the machine.
	//
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// ScaleUpLimits are the most that a group's machines may have together.
type ScaleUpLimits struct {
	// +optional
	CPU *resource.Quantity `json:"cpu,omitempty"`
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// HeadRoom is room that is kept free on a group's nodes: so many pods that request so much would find a place at once.
type HeadRoom struct {
	// Slots is for how many pods.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Slots int32 `json:"slots"`

	// Requests are those of each of the pods.
	//
	// +kubebuilder:validation:XValidation:rule="size(self) > 0",message="want what each pod requests, such as cpu and memory"
	Requests corev1.ResourceList `json:"requests"`
}

// UnderusedNodes retires nodes that are used little, when the pods on them fit on other nodes, and no machine would have to
// come back for them. A node is used little when the requests for cpu and for memory are both below their thresholds, or
// when it has few pods of its own. Pods of DaemonSets, pods of the node's own, and finished ones do not count.
type UnderusedNodes struct {
	// CPUBelow is the share of the allocatable cpu, in percent.
	//
	// +optional
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	CPUBelow *int32 `json:"cpuBelow,omitempty"`

	// MemoryBelow is the share of the allocatable memory, in percent.
	//
	// +optional
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MemoryBelow *int32 `json:"memoryBelow,omitempty"`

	// PodsAtMost makes a node with so few pods one that is used little, whatever they request.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	PodsAtMost *int32 `json:"podsAtMost,omitempty"`

	// AllOf takes the place of cpuBelow, memoryBelow and podsAtMost: a node is used little when each bound that is given here holds.
	//
	// +optional
	AllOf *UnderusedBounds `json:"allOf,omitempty"`

	// Consolidate retires a node whenever its pods fit on others, however much it is used.
	//
	// +optional
	Consolidate bool `json:"consolidate,omitempty"`

	// Cooldown is how long a node has to be one that could go. Since when it is so is written on the Node, and counts for the manager that
	// observed it: another one begins the cooldown anew.
	//
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	Cooldown *metav1.Duration `json:"cooldown,omitempty"`
}

// UnderusedBounds are what a node that is used little has at most. One that is not given does not count.
//
// +kubebuilder:validation:MinProperties=1
type UnderusedBounds struct {
	// CPUAtMost is the share of the allocatable cpu that pods may request, in percent.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	CPUAtMost *int32 `json:"cpuAtMost,omitempty"`

	// MemoryAtMost is the share of the allocatable memory that pods may request, in percent.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MemoryAtMost *int32 `json:"memoryAtMost,omitempty"`

	// PodsAtMost is how many pods there may be.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	PodsAtMost *int32 `json:"podsAtMost,omitempty"`
}

// ProvisioningStatus is what is known of the instances that are provisioning. It holds the only record of launches.
type ProvisioningStatus struct {
	// Provisioning is how many instances were requested and have no usable Node yet.
	//
	// +optional
	Provisioning int32 `json:"provisioning"`

	// Launches are the requests whose instances are not all usable yet, or whose result their NodeRetirement has not noted. Each is written before the cloud is asked. The write fails if
	// another process has written since, and then the cloud is not asked.
	//
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=256
	Launches []Launch `json:"launches,omitempty"`

	// BackOffs are the templates that are not requested for a while.
	//
	// +optional
	// +listType=map
	// +listMapKey=template
	// +kubebuilder:validation:MaxItems=64
	BackOffs []BackOff `json:"backOffs,omitempty"`

	// Learned is what nodes of the group have shown that their template has.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Learned []LearnedTemplate `json:"learned,omitempty"`
}

// MaxLaunches is how many launches the status of a NodeGroup holds.
const MaxLaunches = 256

// LaunchState is how far a launch is.
//
// +kubebuilder:validation:Enum=Requested;Provisioning;Ready;Failed
type LaunchState string

// The states of a launch.
const (
	LaunchRequested    LaunchState = "Requested"    // the cloud is asked, and its answer is not known
	LaunchProvisioning LaunchState = "Provisioning" // the cloud has accepted it
	LaunchReady        LaunchState = "Ready"        // its instances are usable; kept until its owner has noted that
	LaunchFailed       LaunchState = "Failed"       // the cloud has refused it or could not make all of it
)

// Launch is one request for instances.
type Launch struct {
	// ID tells it from others.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID    string      `json:"id"`
	State LaunchState `json:"state"`
	// Template is the cloud's own name of what is launched; empty for a group without spec.scaleUp.
	//
	// +optional
	Template string `json:"template,omitempty"`
	// Count is how many of its instances have not been seen.
	//
	// +optional
	Count int32 `json:"count"`
	// For is the object that wants it; not set for pods, the minimum and headroom.
	//
	// +optional
	For *LaunchOwner `json:"for,omitempty"`
	// RequestedAt is when the cloud was asked.
	RequestedAt metav1.Time `json:"requestedAt"`
	// AnsweredAt is when the cloud had answered; not set until then.
	//
	// +optional
	AnsweredAt *metav1.Time `json:"answeredAt,omitempty"`
	// Named are those of its instances that the cloud has named and that have not been seen, by provider ID.
	//
	// +optional
	// +listType=atomic
	Named []string `json:"named,omitempty"`
	// Unrequested says that the cloud was not asked: it fills a group whose size counts an instance that is not there. The launch is open for
	// as long as the size counts it.
	//
	// +optional
	Unrequested bool `json:"unrequested,omitempty"`
	// OperationID is the cloud's name for its work on the launch. It is empty once that is over.
	//
	// +optional
	OperationID string `json:"operationID,omitempty"`
	// Reason is one word, such as NoQuota, NeverJoined or InstanceVanished, on why the cloud could not make its instances or none of them is
	// usable.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	// Instances are those of its instances that have been seen, and whose Nodes have not been usable yet. Of a launch that is Ready it is the
	// one that is.
	//
	// +optional
	// +listType=map
	// +listMapKey=providerID
	Instances []LaunchedInstance `json:"instances,omitempty"`
}

// LaunchOwner is the object that wants a launch.
type LaunchOwner struct {
	// Kind is NodeRetirement for a replacement, or PoolUpdate for a cloudpool.
	Kind string `json:"kind"`
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// NodeUID is the UID of the Node whose instance is replaced.
	//
	// +optional
	NodeUID types.UID `json:"nodeUID,omitempty"`
}

// LaunchedInstance is an instance of a launch.
type LaunchedInstance struct {
	ProviderID string `json:"providerID"`
	// Since is when it was first seen.
	Since metav1.Time `json:"since"`
}

// IsForRetirement reports whether a NodeRetirement wants a launch, and notes its result.
func (l *Launch) IsForRetirement() bool { return l.For != nil && l.For.Kind == LaunchForRetirement }

// LaunchForRetirement is the kind of the owner of a replacement.
const LaunchForRetirement = "NodeRetirement"

// Open reports whether instances of a launch may still come.
func (l *Launch) Open() bool { return l.State != LaunchReady && l.State != LaunchFailed }

// LearnedTemplate is what the nodes of one kind of machine have in common.
type LearnedTemplate struct {
	Name string `json:"name"`
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// +optional
	// +listType=atomic
	Taints []corev1.Taint `json:"taints,omitempty"`
}

// BackOff is a kind of machine that is left alone for a while.
type BackOff struct {
	// Template is the kind's name.
	Template string `json:"template"`
	// Reason is one word, such as NoQuota, NoCapacity, Invalid or NeverJoined.
	Reason string `json:"reason"`
	// +optional
	Message string      `json:"message,omitempty"`
	Until   metav1.Time `json:"until"`
	// Failures is how many orders have failed in a row.
	Failures int32 `json:"failures"`
}
