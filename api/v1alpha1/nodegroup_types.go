package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodeGroup is a set of similar nodes. Their instances belong to one group of one cloud.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="slipway.dev/schema-generation=12"
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.minSize,statuspath=.status.nodes
// +kubebuilder:resource:scope=Cluster,shortName=ng,categories=slipway
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Cloud",type=string,JSONPath=`.spec.cloud.provider`
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.cloud.group`
// +kubebuilder:printcolumn:name="Min",type=integer,JSONPath=`.spec.minSize`
// +kubebuilder:printcolumn:name="Max",type=integer,JSONPath=`.spec.maxSize`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Retiring",type=integer,JSONPath=`.status.retiring`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type NodeGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired behavior of the group.
	Spec NodeGroupSpec `json:"spec"`
	// status is the last observed state of the group.
	//
	// +optional
	Status NodeGroupStatus `json:"status,omitempty"`
}

// NodeGroupList is a list of NodeGroups.
//
// +kubebuilder:object:root=true
type NodeGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeGroup `json:"items"`
}

// NodeGroupSpec defines which nodes belong to the group, and when nodes are added and retired.
//
// Fields with the prefix Deprecated are old names. Only [NodeGroupSpec.UnmarshalJSON] reads them.
//
// minSize has no default in the schema: the API server would set it beside the old name minimum, and the object would
// contradict itself. The value 0 counts where neither is set.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.maxSize) || has(self.maximum)) || (has(self.minSize) ? self.minSize : has(self.minimum) ? self.minimum : 0) <= (has(self.maxSize) ? self.maxSize : self.maximum)",message="minSize must not be above maxSize"
// +kubebuilder:validation:XValidation:rule="!has(self.scaleUp) || has(self.maxSize) || has(self.maximum)",message="scaleUp requires maxSize"
// +kubebuilder:validation:XValidation:rule="!has(self.minSize) || !has(self.minimum) || self.minimum == 0 || self.minimum == self.minSize",message="minimum is the old name of minSize and has another value: remove minimum"
// +kubebuilder:validation:XValidation:rule="!has(self.maxSize) || !has(self.maximum) || self.maximum == self.maxSize",message="maximum is the old name of maxSize and has another value: remove maximum"
type NodeGroupSpec struct {
	// nodeSelector selects the nodes of the group by their labels. A node belongs to at most one group. A group that
	// selects a control-plane node, or a node of an older group, is not accepted.
	//
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="an empty selector would select every node: give matchLabels or matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || !self.matchLabels.exists(k, k == 'node-role.kubernetes.io/control-plane' || k == 'node-role.kubernetes.io/master')",message="control-plane nodes belong to no group"
	NodeSelector metav1.LabelSelector `json:"nodeSelector"`

	// cloud is the group of instances in the cloud.
	Cloud CloudGroup `json:"cloud"`

	// minSize is the lowest number of nodes in the group; 0 if not set. Slipway does not start a retirement that would
	// leave fewer nodes.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinSize int32 `json:"minSize"`

	// maxSize is the highest number of nodes in the group; no limit if not set. scaleUp requires it.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxSize *int32 `json:"maxSize,omitempty"`

	// minimum is the old name of minSize. Deprecated: use minSize.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	DeprecatedMinSize *int32 `json:"minimum,omitempty"`

	// maximum is the old name of maxSize. Deprecated: use maxSize.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	DeprecatedMaxSize *int32 `json:"maximum,omitempty"`

	// scaleUp launches instances for unschedulable pods. If not set, none are launched for them.
	//
	// +optional
	ScaleUp *ScaleUp `json:"scaleUp,omitempty"`

	// scaleDown defines which nodes Slipway retires on its own. If not set, it retires none on its own.
	//
	// +optional
	ScaleDown *ScaleDown `json:"scaleDown,omitempty"`

	// disruptionBudgets limit how many nodes of the group may be unavailable at the same time. All unavailable
	// nodes count. The smallest budget that applies now is used. If the list is empty, one node is
	// retired at a time. If it has budgets and none applies now, any number is allowed.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	DisruptionBudgets []DisruptionBudget `json:"disruptionBudgets,omitempty"`

	// drain configures how pods are evicted from a node that is retired.
	//
	// +optional
	Drain DrainPolicy `json:"drain,omitempty"`

	// cooldowns are periods without retirements by scaleDown.
	//
	// +optional
	Cooldowns Cooldowns `json:"cooldowns,omitempty"`

	// replacement defines when a replacement is launched for an instance that the cloud takes away. Use Never if another
	// autoscaler, such as the cluster autoscaler, adds nodes to the group.
	//
	// +optional
	// +kubebuilder:default=Always
	Replacement ReplacementPolicy `json:"replacement,omitempty"`

	// clusterAutoscalerScaleDownDisabled sets the annotation cluster-autoscaler.kubernetes.io/scale-down-disabled on the
	// nodes of the group. The cluster autoscaler then does not remove them. Slipway removes the annotation when this field
	// is set to false or the group is deleted.
	//
	// +optional
	ClusterAutoscalerScaleDownDisabled bool `json:"clusterAutoscalerScaleDownDisabled,omitempty"`
}

// CloudGroup identifies a group of instances in a cloud.
type CloudGroup struct {
	// provider is azure, openstack, cloudpool or the name of a plugin.
	//
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	Provider string `json:"provider"`

	// group is the name of the group in the cloud, such as a scale set or an agent pool. The documentation of the provider
	// describes the format.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Group string `json:"group"`
}

// ScaleDown defines which nodes Slipway retires on its own.
//
// +kubebuilder:validation:XValidation:rule="!has(self.underutilized) || !has(self.underused) || dyn(self.underused) == dyn(self.underutilized)",message="underused is the old name of underutilized and has another value: remove underused"
type ScaleDown struct {
	// idleByLabel retires nodes that run no pod that matches a selector.
	//
	// +optional
	IdleByLabel *IdleByLabel `json:"idleByLabel,omitempty"`

	// underutilized retires underutilized nodes if their pods fit on other nodes.
	//
	// +optional
	Underutilized *UnderutilizedRule `json:"underutilized,omitempty"`

	// underused is the old name of underutilized. Deprecated: use underutilized.
	//
	// +optional
	DeprecatedUnderutilized *UnderutilizedRule `json:"underused,omitempty"`
}

// IdleByLabel keeps a node while a selected pod is on it. A node is idle when it had no selected pod for the cooldown, or
// in a number of consecutive checks. If the manager saw a selected pod on the node, the cooldown always counts. The checks
// find nodes that never had one, or had the last one while no manager was running.
//
// +kubebuilder:validation:XValidation:rule="!has(self.checks) || self.checks == 0 || has(self.checkEvery)",message="checks requires checkEvery, the time between two checks"
type IdleByLabel struct {
	// podSelector selects the pods that keep a node. Only Pending and Running pods count.
	//
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="an empty selector would let every DaemonSet pod keep its node: give matchLabels or matchExpressions"
	PodSelector metav1.LabelSelector `json:"podSelector"`

	// namespaces are the namespaces of the selected pods; all namespaces if not set.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	Namespaces []string `json:"namespaces,omitempty"`

	// cooldown is how long a node must have no selected pod before it is retired. It starts when the last pod ends, or when
	// the manager first finds the node without one. The start time is stored on the Node, so it survives a restart.
	//
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	Cooldown metav1.Duration `json:"cooldown,omitempty"`

	// checkEvery is the time between two checks. A check covers every node of the group, also nodes that never had a
	// selected pod. If not set, the cooldown alone counts.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	CheckEvery *metav1.Duration `json:"checkEvery,omitempty"`

	// checks is how many consecutive checks must find a node idle. If it is 0 and checkEvery is set, 2 checks are needed.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Checks int32 `json:"checks,omitempty"`

	// keepUnused keeps nodes that never had a selected pod, such as nodes that wait for their first one.
	//
	// +optional
	KeepUnused bool `json:"keepUnused,omitempty"`

	// keepForPending keeps the nodes of the group while a selected pod is Pending that only this group can run. Such a pod
	// fits on an empty node of the group, and on no other node as it is now.
	//
	// +optional
	// +kubebuilder:default=true
	KeepForPending *bool `json:"keepForPending,omitempty"`
}

// ReplacementPolicy defines when a replacement is launched for an instance that the cloud takes away.
//
// +kubebuilder:validation:Enum=Always;WhenNeeded;Never
type ReplacementPolicy string

// The replacement policies.
const (
	// ReplaceAlways replaces each instance. The replacement is launched before the drain if the pods fit on no other node,
	// and otherwise after the instance is gone.
	ReplaceAlways ReplacementPolicy = "Always"
	// ReplaceWhenNeeded replaces an instance if its pods fit on no other node, or if the group falls below minSize.
	ReplaceWhenNeeded ReplacementPolicy = "WhenNeeded"
	ReplaceNever      ReplacementPolicy = "Never"
)

// DisruptionBudget limits how many nodes of a group may be unavailable at the same time.
//
// +kubebuilder:validation:XValidation:rule="has(self.schedule) == has(self.duration)",message="schedule and duration must be set together"
// +kubebuilder:validation:XValidation:rule="!has(self.timeZone) || has(self.schedule)",message="timeZone requires schedule"
type DisruptionBudget struct {
	// nodes is a number, or a percentage of the nodes of the group. A percentage is rounded up, so that a small group can
	// be retired at all. 0 and 0% forbid every disruption.
	//
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^(100|[0-9]{1,2})%$`
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 0",message="must be a number of at least 0, or a percentage from 0% to 100%"
	Nodes intstr.IntOrString `json:"nodes"`

	// reasons are the retirement reasons that this budget limits; all reasons if not set.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	Reasons []Reason `json:"reasons,omitempty"`

	// schedule is when the budget starts to apply. It has five cron fields (minute, hour, day of month, month, day of
	// week), or is one of @hourly, @daily, @weekly, @monthly, @yearly. If not set, the budget always applies.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|\S+\s+\S+\s+\S+\s+\S+\s+\S+)$`
	// +kubebuilder:validation:MaxLength=128
	Schedule string `json:"schedule,omitempty"`

	// duration is how long the budget applies each time.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="must be at least 1m"
	Duration *metav1.Duration `json:"duration,omitempty"`

	// timeZone is the time zone of the schedule in the IANA database, such as Europe/Stockholm; UTC if not set.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$`
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}

// Protection defines whether protected pods may be evicted.
//
// +kubebuilder:validation:Enum=Respect;Evict
type Protection string

// The values of Protection.
const (
	RespectProtection Protection = "Respect" // a node with a protected pod is not retired
	EvictProtected    Protection = "Evict"   // protected pods are evicted like other pods
)

// SurgeMode defines which pods get a successor before they are evicted.
//
// +kubebuilder:validation:Enum=Never;Annotated;Always
type SurgeMode string

// The values of SurgeMode.
const (
	NeverSurge     SurgeMode = "Never"
	SurgeAnnotated SurgeMode = "Annotated" // only pods that ask for it by annotation
	AlwaysSurge    SurgeMode = "Always"    // all pods that can, unless an annotation forbids it
)

// DrainPolicy configures how pods are evicted. PodDisruptionBudgets are always respected.
type DrainPolicy struct {
	// timeout is how long a drain may take. After that Slipway stops the drain and restores the node.
	//
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// graceSeconds replaces terminationGracePeriodSeconds of every pod. If not set, each pod keeps its own.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	GraceSeconds *int64 `json:"graceSeconds,omitempty"`

	// deleteLocalStorage allows Slipway to evict pods with emptyDir volumes. The data in them is lost.
	//
	// +optional
	DeleteLocalStorage bool `json:"deleteLocalStorage,omitempty"`

	// evictUnmanaged allows Slipway to evict pods without a controller. Nothing recreates such a pod.
	//
	// +optional
	EvictUnmanaged bool `json:"evictUnmanaged,omitempty"`

	// protection defines whether protected pods may be evicted. A pod is protected by one of the annotations
	// slipway.dev/do-not-evict, karpenter.sh/do-not-disrupt and cluster-autoscaler.kubernetes.io/safe-to-evict: "false".
	//
	// +optional
	// +kubebuilder:default=Respect
	Protection Protection `json:"protection,omitempty"`

	// placeholderPods selects pods that only reserve capacity. They do not keep a node, even if they are protected. They
	// are not evicted and end together with the instance.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="an empty selector would make every pod a placeholder: give matchLabels or matchExpressions"
	PlaceholderPods *metav1.LabelSelector `json:"placeholderPods,omitempty"`

	// surge defines which pods get a successor before they are evicted: a pod whose PodDisruptionBudget can never allow its
	// eviction, or without which its owner would have no ready pod. Never means none. Annotated means pods with the
	// annotation slipway.dev/surge: "true", on the pod or its owner. Always means all pods that can surge, except for those
	// with the annotation "false". The manager needs additional rights for it.
	//
	// +optional
	// +kubebuilder:default=Never
	Surge SurgeMode `json:"surge,omitempty"`

	// waitForDetach makes a retirement wait until the volumes of the evicted pods are detached from the instance.
	//
	// +optional
	WaitForDetach bool `json:"waitForDetach,omitempty"`
}

// Cooldowns are periods without retirements by scaleDown.
type Cooldowns struct {
	// afterScaleUp starts when the group last got a node.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	AfterScaleUp *metav1.Duration `json:"afterScaleUp,omitempty"`

	// afterFailure starts when a retirement of the same node was last aborted or refused.
	//
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	AfterFailure *metav1.Duration `json:"afterFailure,omitempty"`
}

// Conditions of a NodeGroup.
const (
	// GroupReady summarizes the other conditions for kubectl wait, Argo CD and Flux: True if the group is accepted, its cloud
	// was read, and nothing stops scale-up. It has the reason and the message of the condition that is not True.
	GroupReady = "Ready"
	// GroupAccepted is True if Slipway manages the group. Otherwise its reason and message say what is wrong.
	GroupAccepted = "Accepted"
	// GroupCloudReachable is True if the last read from the cloud succeeded.
	GroupCloudReachable = "CloudReachable"
	// GroupScaleUpAllowed is False while the Node of an instance that was launched for the group does not match nodeSelector.
	// No more instances are launched then. A group where this never happened does not have the condition.
	GroupScaleUpAllowed = "ScaleUpAllowed"
)

// ReadyReason is the reason of the condition Ready while it is True.
const ReadyReason = "Ready"

// Reasons of the condition Accepted.
const (
	AcceptedReason      = "Accepted"
	InvalidSpec         = "InvalidSpec"
	SelectsControlPlane = "SelectsControlPlane"
	OverlapsGroup       = "OverlapsGroup"
	UnknownCloud        = "UnknownCloud"
	CloudGroupNotFound  = "CloudGroupNotFound"
	CloudRefused        = "CloudRefused"
	CloudRightsMissing  = "CloudRightsMissing"
)

// Reasons of the condition ScaleUpAllowed.
const (
	ScaleUpAllowedReason = "Allowed"
	NodeNotSelected      = "NodeNotSelected"
)

// NodeGroupStatus is the last observed state of a NodeGroup.
type NodeGroupStatus struct {
	// observedGeneration is the metadata.generation that the status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// nodes is the number of Nodes in the group.
	//
	// +optional
	Nodes int32 `json:"nodes"`

	// ready is the number of Nodes that are Ready and schedulable.
	//
	// +optional
	Ready int32 `json:"ready"`

	// retiring is the number of Nodes that are being retired.
	//
	// +optional
	Retiring int32 `json:"retiring"`

	// unavailable is the number of Nodes that count as unavailable in disruption budgets. It includes retiring Nodes.
	//
	// +optional
	Unavailable int32 `json:"unavailable"`

	// cloudSize is the desired number of instances in the cloud. It is not set while it is unknown.
	//
	// +optional
	CloudSize *int32 `json:"cloudSize,omitempty"`

	// cloudMinSize is the minimum that the cloud itself enforces, such as the minimum of an agent pool. The higher
	// one of minSize and cloudMinSize counts.
	//
	// +optional
	CloudMinSize int32 `json:"cloudMinSize,omitempty"`

	// cloudMinimum is the old name of cloudMinSize. Deprecated: use cloudMinSize.
	//
	// +optional
	DeprecatedCloudMinSize int32 `json:"cloudMinimum,omitempty"`

	// allowedDisruptions is how many more nodes may be retired now.
	//
	// +optional
	AllowedDisruptions int32 `json:"allowedDisruptions"`

	// lastScaleUp is when the group last got a node.
	//
	// +optional
	LastScaleUp *metav1.Time `json:"lastScaleUp,omitempty"`

	// lastScaleDown is when the last retirement of a node of the group succeeded.
	//
	// +optional
	LastScaleDown *metav1.Time `json:"lastScaleDown,omitempty"`

	// provisioning describes the instances that are provisioning, and holds the launch records.
	//
	// +optional
	Provisioning *ProvisioningStatus `json:"provisioning,omitempty"`

	// conditions are Ready, Accepted, CloudReachable and ScaleUpAllowed.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
