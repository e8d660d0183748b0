package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ScaleUpPolicy defines how the template of a launch is chosen if several templates help.
//
// +kubebuilder:validation:Enum=LeastWaste;LeastCost;Priority
type ScaleUpPolicy string

// The policies.
const (
	LeastWaste    ScaleUpPolicy = "LeastWaste" // the least unused cpu and memory
	LeastCost     ScaleUpPolicy = "LeastCost"  // the lowest cost for the requests of the pods
	FirstTemplate ScaleUpPolicy = "Priority"   // the first template in the list that helps
)

// ScaleUp launches instances for unschedulable pods. Groups of a higher priority are tried first. Groups with the same
// priority and policy compete with each other.
//
// enforceMinSize has no default in the schema, for the reason that minSize has none.
//
// +kubebuilder:validation:XValidation:rule="!has(self.enforceMinSize) || !has(self.keepMinimum) || self.keepMinimum || self.keepMinimum == self.enforceMinSize",message="keepMinimum is the old name of enforceMinSize and has another value: remove keepMinimum"
// +kubebuilder:validation:XValidation:rule="!has(self.headroom) || !has(self.headRoom) || dyn(self.headRoom) == dyn(self.headroom)",message="headRoom is the old name of headroom and has another value: remove headRoom"
type ScaleUp struct {
	// templates are the instance types that the group may launch, in order of preference. If not set, all instance types
	// that the cloud has for the group are used, in the order of the cloud.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Templates []InstanceTemplate `json:"templates,omitempty"`

	// policy defines how a template is chosen if several templates help.
	//
	// +optional
	// +kubebuilder:default=LeastWaste
	Policy ScaleUpPolicy `json:"policy,omitempty"`

	// priority orders the groups. A group is tried if no group of a higher priority helps.
	//
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`

	// enforceMinSize launches instances while the group has fewer nodes than minSize; true if not set. If false, instances
	// are launched only for pods, and minSize only limits scale-down.
	//
	// +optional
	EnforceMinSize *bool `json:"enforceMinSize,omitempty"`

	// keepMinimum is the old name of enforceMinSize. Deprecated: use enforceMinSize.
	//
	// +optional
	DeprecatedEnforceMinSize *bool `json:"keepMinimum,omitempty"`

	// limits are the highest total resources of the instances in the group.
	//
	// +optional
	Limits ScaleUpLimits `json:"limits,omitempty"`

	// joinTimeout is how long an instance may take from the request until its Node is Ready. After that it does not count
	// as provisioning. An instance that never had a Node is deleted, and its template is not used for a while.
	//
	// +optional
	// +kubebuilder:default="15m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s')",message="must be at least 10s"
	JoinTimeout *metav1.Duration `json:"joinTimeout,omitempty"`

	// headroom is spare capacity that is kept free for future pods.
	//
	// +optional
	Headroom *Headroom `json:"headroom,omitempty"`

	// headRoom is the old name of headroom. Deprecated: use headroom.
	//
	// +optional
	DeprecatedHeadroom *Headroom `json:"headRoom,omitempty"`

	// startupTaints are the keys of taints that a node has only while it starts. Scale-up assumes that pods tolerate them.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=316
	StartupTaints []string `json:"startupTaints,omitempty"`
}

// InstanceTemplate is an instance type, and what its nodes offer before the first one exists.
type InstanceTemplate struct {
	// name is the name of the instance type in the cloud, such as a VM size or a flavor.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// allocatable is what a node of this template offers to pods, including DaemonSet pods. It is used until the first
	// node of the template has joined. If not set, it is estimated from the data of the cloud.
	//
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// ScaleUpLimits are the highest total resources of the instances in a group.
type ScaleUpLimits struct {
	// cpu is the highest total number of CPUs.
	//
	// +optional
	CPU *resource.Quantity `json:"cpu,omitempty"`
	// memory is the highest total memory.
	//
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// Headroom is spare capacity on the nodes of a group: room for a number of pods of one size.
type Headroom struct {
	// slots is the number of pods that must fit.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Slots int32 `json:"slots"`

	// requests are the resource requests of each of these pods.
	//
	// +kubebuilder:validation:XValidation:rule="size(self) > 0",message="must have at least one resource, such as cpu or memory"
	Requests corev1.ResourceList `json:"requests"`
}

// UnderutilizedRule retires underutilized nodes if their pods fit on other nodes, so that no new instance is needed for
// them. A node is underutilized if its cpu and memory requests are both below their thresholds, or if it runs few pods.
// DaemonSet pods, static pods and finished pods do not count.
type UnderutilizedRule struct {
	// cpuBelow is the threshold for cpu requests, in percent of the allocatable cpu.
	//
	// +optional
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	CPUBelow *int32 `json:"cpuBelow,omitempty"`

	// memoryBelow is the threshold for memory requests, in percent of the allocatable memory.
	//
	// +optional
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MemoryBelow *int32 `json:"memoryBelow,omitempty"`

	// podsAtMost makes a node with at most this number of pods underutilized, regardless of their requests.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	PodsAtMost *int32 `json:"podsAtMost,omitempty"`

	// allOf replaces cpuBelow, memoryBelow and podsAtMost. A node is underutilized if it is within all limits given here.
	//
	// +optional
	AllOf *UnderutilizedLimits `json:"allOf,omitempty"`

	// consolidate retires a node if its pods fit on other nodes, even if it is not underutilized.
	//
	// +optional
	Consolidate bool `json:"consolidate,omitempty"`

	// cooldown is how long a node must be removable before it is retired. The start time is stored on the Node. It is
	// valid only for the manager that wrote it: a new manager restarts the cooldown.
	//
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	Cooldown *metav1.Duration `json:"cooldown,omitempty"`
}

// UnderutilizedLimits are the limits within which a node is underutilized. A limit that is not set does not count.
//
// +kubebuilder:validation:MinProperties=1
type UnderutilizedLimits struct {
	// cpuAtMost is the limit for cpu requests, in percent of the allocatable cpu.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	CPUAtMost *int32 `json:"cpuAtMost,omitempty"`

	// memoryAtMost is the limit for memory requests, in percent of the allocatable memory.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MemoryAtMost *int32 `json:"memoryAtMost,omitempty"`

	// podsAtMost is the limit for the number of pods.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	PodsAtMost *int32 `json:"podsAtMost,omitempty"`
}

// ProvisioningStatus describes the instances that are provisioning. It holds the only record of launches.
type ProvisioningStatus struct {
	// provisioning is the number of requested instances that have no usable Node yet.
	//
	// +optional
	Provisioning int32 `json:"provisioning"`

	// launches are the requests that are not finished. A launch is finished when all of its instances are usable and its
	// owner has recorded the result. Each launch is written before the cloud is asked. If the write fails because another
	// process wrote first, the cloud is not asked.
	//
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=256
	Launches []Launch `json:"launches,omitempty"`

	// backOffs are the templates that are not launched for a while.
	//
	// +optional
	// +listType=map
	// +listMapKey=template
	// +kubebuilder:validation:MaxItems=64
	BackOffs []BackOff `json:"backOffs,omitempty"`

	// learned describes the nodes of each template, as observed on existing nodes, and their price.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Learned []LearnedTemplate `json:"learned,omitempty"`
}

// MaxLaunches is the highest number of launches in the status of a NodeGroup.
const MaxLaunches = 256

// LaunchState is the progress of a launch.
//
// +kubebuilder:validation:Enum=Requested;Provisioning;Ready;Failed
type LaunchState string

// The states of a launch.
const (
	LaunchRequested    LaunchState = "Requested"    // the cloud is asked, and its answer is not known yet
	LaunchProvisioning LaunchState = "Provisioning" // the cloud has accepted the request
	LaunchReady        LaunchState = "Ready"        // its instances are usable; kept until its owner has recorded that
	LaunchFailed       LaunchState = "Failed"       // the cloud has refused it, or could not create all instances
)

// Launch is one request for instances.
type Launch struct {
	// id identifies the launch.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// state is the progress of the launch.
	State LaunchState `json:"state"`
	// template is the name of the instance type in the cloud. It is empty for a group without scaleUp.
	//
	// +optional
	Template string `json:"template,omitempty"`
	// count is the number of its instances that were not observed yet.
	//
	// +optional
	Count int32 `json:"count"`
	// for is the object that requested the launch. It is not set for pods, minSize and headroom.
	//
	// +optional
	For *LaunchOwner `json:"for,omitempty"`
	// requestedAt is when the cloud was asked.
	RequestedAt metav1.Time `json:"requestedAt"`
	// answeredAt is when the cloud answered. It is not set before that.
	//
	// +optional
	AnsweredAt *metav1.Time `json:"answeredAt,omitempty"`
	// named are the provider IDs that the cloud has announced and that were not observed yet.
	//
	// +optional
	// +listType=atomic
	Named []string `json:"named,omitempty"`
	// unrequested means that the cloud was not asked, because the size of its group already counts an instance that does
	// not exist. The launch is open while the size counts it.
	//
	// +optional
	Unrequested bool `json:"unrequested,omitempty"`
	// operationID is the ID of the operation in the cloud. It is empty once the operation has ended.
	//
	// +optional
	OperationID string `json:"operationID,omitempty"`
	// reason is one word, such as NoQuota, NeverJoined or InstanceVanished. It says why the cloud could not create its
	// instances, or why none of them is usable.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// message describes the reason.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// instances are the observed instances without a usable Node. In the state Ready it is the usable one.
	//
	// +optional
	// +listType=map
	// +listMapKey=providerID
	Instances []LaunchedInstance `json:"instances,omitempty"`
}

// LaunchOwner is the object that requested a launch.
type LaunchOwner struct {
	// kind is NodeRetirement for a replacement, or PoolUpdate for a cloudpool.
	Kind string `json:"kind"`
	// name is the name of the object.
	//
	// +optional
	Name string `json:"name,omitempty"`
	// uid is the UID of the object.
	//
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// nodeUID is the UID of the Node of the replaced instance.
	//
	// +optional
	NodeUID types.UID `json:"nodeUID,omitempty"`
}

// LaunchedInstance is an instance of a launch.
type LaunchedInstance struct {
	// providerID identifies the instance.
	ProviderID string `json:"providerID"`
	// since is when the instance was first observed.
	Since metav1.Time `json:"since"`
}

// IsForRetirement reports whether a NodeRetirement requested the launch, and so records its result.
func (l *Launch) IsForRetirement() bool { return l.For != nil && l.For.Kind == LaunchForRetirement }

// LaunchForRetirement is the kind of the owner of a replacement.
const LaunchForRetirement = "NodeRetirement"

// IsOpen reports whether more instances of a launch may still appear.
func (l *Launch) IsOpen() bool { return l.State != LaunchReady && l.State != LaunchFailed }

// LearnedTemplate is what the nodes of one template have in common.
type LearnedTemplate struct {
	// name is the name of the template.
	Name string `json:"name"`
	// allocatable is status.allocatable of its nodes.
	//
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// capacity is status.capacity of its nodes.
	//
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// labels are the labels that all of its nodes have.
	//
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// taints are the taints that all of its nodes have.
	//
	// +optional
	// +listType=atomic
	Taints []corev1.Taint `json:"taints,omitempty"`
	// declaredFeatures are the entries of status.declaredFeatures that all of its nodes have.
	//
	// +optional
	// +listType=atomic
	DeclaredFeatures []string `json:"declaredFeatures,omitempty"`
	// cost is the price of one instance for one hour, such as "0.192". It is from the manager's configuration of the cloud or
	// from the cloud's plugin, in the unit that the user has chosen there. It is not set if it is unknown.
	//
	// +optional
	Cost string `json:"cost,omitempty"`
}

// BackOff is a template that is not launched for a while.
type BackOff struct {
	// template is the name of the template.
	Template string `json:"template"`
	// reason is one word, such as NoQuota, NoCapacity, Invalid or NeverJoined.
	Reason string `json:"reason"`
	// message describes the reason.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// until is when the template may be launched again.
	Until metav1.Time `json:"until"`
	// failures is the number of consecutive failed launches.
	Failures int32 `json:"failures"`
}
