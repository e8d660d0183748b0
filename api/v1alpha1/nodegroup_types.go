package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodeGroup is a set of alike nodes whose machines one cloud counts as one group.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="slipway.dev/schema-generation=8"
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ng,categories=slipway
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Cloud",type=string,JSONPath=`.spec.cloud.provider`
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.cloud.group`
// +kubebuilder:printcolumn:name="Min",type=integer,JSONPath=`.spec.minimum`
// +kubebuilder:printcolumn:name="Max",type=integer,JSONPath=`.spec.maximum`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Leaving",type=integer,JSONPath=`.status.leaving`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Accepted")].message`
type NodeGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeGroupSpec `json:"spec"`
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

// NodeGroupSpec says which nodes belong together and how they may come and go.
//
// +kubebuilder:validation:XValidation:rule="!has(self.maximum) || self.minimum <= self.maximum",message="minimum must not be above maximum"
// +kubebuilder:validation:XValidation:rule="!has(self.scaleUp) || has(self.maximum)",message="scaleUp needs maximum: how many nodes the group may have"
type NodeGroupSpec struct {
	// NodeSelector selects the group's nodes by their labels. A node belongs to one group at most, and control-plane nodes
	// to none: a group whose selector says otherwise is not accepted.
	//
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="an empty selector would select every node: give matchLabels or matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || !self.matchLabels.exists(k, k == 'node-role.kubernetes.io/control-plane' || k == 'node-role.kubernetes.io/master')",message="control-plane nodes belong to no group"
	NodeSelector metav1.LabelSelector `json:"nodeSelector"`

	// Cloud says where the group's machines are.
	Cloud CloudGroup `json:"cloud"`

	// Minimum is how many nodes the group keeps at least. A retirement that would lead below it is not begun.
	//
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	Minimum int32 `json:"minimum"`

	// Maximum is how many nodes the group may have; none is no bound of Slipway's.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Maximum *int32 `json:"maximum,omitempty"`

	// ScaleUp has the group get machines for the pods that find no room; without it none come.
	//
	// +optional
	ScaleUp *ScaleUp `json:"scaleUp,omitempty"`

	// ScaleDown says which nodes leave by themselves; without it none do.
	//
	// +optional
	ScaleDown *ScaleDown `json:"scaleDown,omitempty"`

	// DisruptionBudgets bound how many of the group's nodes may be unavailable at once, counting those that others make
	// unavailable. Of those that apply the smallest counts. With an empty list one node leaves at a time; when there are some and
	// none applies at the moment, none bounds it.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	DisruptionBudgets []DisruptionBudget `json:"disruptionBudgets,omitempty"`

	// Drain says how the pods of a leaving node are treated.
	//
	// +optional
	Drain DrainPolicy `json:"drain,omitempty"`

	// Cooldowns are the times in which nobody leaves.
	//
	// +optional
	Cooldowns Cooldowns `json:"cooldowns,omitempty"`

	// Replacement says when a machine is ordered in the place of one that the cloud takes away. Never is for groups that
	// somebody else grows, such as the cluster autoscaler.
	//
	// +optional
	// +kubebuilder:default=Always
	Replacement ReplacementPolicy `json:"replacement,omitempty"`

	// ClusterAutoscalerScaleDownDisabled sets the annotation cluster-autoscaler.kubernetes.io/scale-down-disabled on the
	// group's nodes, so that cluster-autoscaler leaves their removal to Slipway. It is taken off when this is switched off
	// or the group is deleted.
	//
	// +optional
	ClusterAutoscalerScaleDownDisabled bool `json:"clusterAutoscalerScaleDownDisabled,omitempty"`
}

// CloudGroup names a group of machines in a cloud.
type CloudGroup struct {
	// Provider is azure, openstack, cloudpool or the name of a plugin.
	//
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	Provider string `json:"provider"`

	// Group is the group's name as its cloud has it, such as that of a scale set or an agent pool; the provider's
	// documentation says what it takes.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Group string `json:"group"`
}

// ScaleDown says which nodes leave by themselves.
type ScaleDown struct {
	// IdleByLabel retires nodes without a pod of a kind.
	//
	// +optional
	IdleByLabel *IdleByLabel `json:"idleByLabel,omitempty"`

	// Underused retires nodes that are used little and whose pods fit elsewhere.
	//
	// +optional
	Underused *UnderusedNodes `json:"underused,omitempty"`
}

// IdleByLabel keeps a node for as long as a pod of a kind is on it. A node is idle when it has had none for the
// cooldown, or in so many checks in a row. A node on which such a pod was seen is never idle before the cooldown: the
// checks are for those that never had one, or whose last one ended while no manager looked.
//
// +kubebuilder:validation:XValidation:rule="!has(self.checks) || self.checks == 0 || has(self.checkEvery)",message="checks needs checkEvery, the time between two of them"
type IdleByLabel struct {
	// PodSelector selects the pods that keep a node, Pending or Running.
	//
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="an empty selector would let every DaemonSet pod keep its node: give matchLabels or matchExpressions"
	PodSelector metav1.LabelSelector `json:"podSelector"`

	// Namespaces are where the pods are looked for; none is all.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	Namespaces []string `json:"namespaces,omitempty"`

	// Cooldown is how long a node has to be without such a pod, counted from when the last one ended, or from when the
	// manager first found it without. That time is written on the Node, so that a restart does not begin it anew.
	//
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	Cooldown metav1.Duration `json:"cooldown,omitempty"`

	// CheckEvery is the time between two checks that look at every node of the group, those that never had such a pod
	// included; none is no checks.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	CheckEvery *metav1.Duration `json:"checkEvery,omitempty"`

	// Checks is how many checks in a row have to find a node idle. 0 with checkEvery is 2.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Checks int32 `json:"checks,omitempty"`

	// KeepUnused keeps the nodes that have not had such a pod yet, such as those that wait for the first one.
	//
	// +optional
	KeepUnused bool `json:"keepUnused,omitempty"`

	// KeepForPending keeps the nodes while a selected pod is Pending that only this group could run: one that would fit
	// an empty node of the group, and that no other node takes as it is now.
	//
	// +optional
	// +kubebuilder:default=true
	KeepForPending *bool `json:"keepForPending,omitempty"`
}

// ReplacementPolicy is when a machine is ordered in the place of one that the cloud takes away.
//
// +kubebuilder:validation:Enum=Always;WhenNeeded;Never
type ReplacementPolicy string

// When a machine is ordered in the place of another.
const (
	// ReplaceAlways orders one for each: before the node is drained if its pods would have nowhere to go, or else once
	// the machine is gone.
	ReplaceAlways ReplacementPolicy = "Always"
	// ReplaceWhenNeeded orders one only if pods have nowhere to go, or the group falls below its minimum.
	ReplaceWhenNeeded ReplacementPolicy = "WhenNeeded"
	ReplaceNever      ReplacementPolicy = "Never"
)

// DisruptionBudget bounds how many of a group's nodes may be unavailable at once.
//
// +kubebuilder:validation:XValidation:rule="has(self.schedule) == has(self.duration)",message="schedule and duration belong together: when the window opens, and for how long"
// +kubebuilder:validation:XValidation:rule="!has(self.timeZone) || has(self.schedule)",message="timeZone is that of schedule, which is missing"
type DisruptionBudget struct {
	// Nodes is a count, or a percentage of the group's nodes, rounded up so that a small group can move at all; 0 and 0%
	// forbid every disruption.
	//
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^(100|[0-9]{1,2})%$`
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 0",message="want a count from 0 on, or a percentage from 0% to 100%"
	Nodes intstr.IntOrString `json:"nodes"`

	// Reasons are those of the retirements that this budget bounds; none is all of them.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	Reasons []Reason `json:"reasons,omitempty"`

	// Schedule is when the budget's window opens, as five fields of cron (minute, hour, day of month, month, day of week) or
	// one of @hourly, @daily, @weekly, @monthly, @yearly. Without one the budget always applies.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|\S+\s+\S+\s+\S+\s+\S+\s+\S+)$`
	// +kubebuilder:validation:MaxLength=128
	Schedule string `json:"schedule,omitempty"`

	// Duration is for how long the window stays open.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="must be at least 1m"
	Duration *metav1.Duration `json:"duration,omitempty"`

	// TimeZone is the schedule's, as the IANA database names it, such as Europe/Stockholm. None is UTC.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$`
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}

// Protection is what becomes of pods that ask not to be evicted.
//
// +kubebuilder:validation:Enum=Respect;Evict
type Protection string

// What becomes of pods that ask not to be evicted.
const (
	RespectProtection Protection = "Respect" // the node stays for as long as one is on it
	EvictProtected    Protection = "Evict"   // they leave like any other
)

// DrainPolicy says how the pods of a leaving node are treated. Disruption budgets of pods are always honoured.
type DrainPolicy struct {
	// Timeout is how long a drain may take before the node is given back.
	//
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// GraceSeconds replaces every pod's own time to stop; none keeps it.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	GraceSeconds *int64 `json:"graceSeconds,omitempty"`

	// DeleteLocalStorage lets pods with an emptyDir be evicted, whose content is lost.
	//
	// +optional
	DeleteLocalStorage bool `json:"deleteLocalStorage,omitempty"`

	// EvictUnmanaged lets pods be evicted that no controller will replace.
	//
	// +optional
	EvictUnmanaged bool `json:"evictUnmanaged,omitempty"`

	// Protection is what becomes of pods with one of the annotations slipway.dev/do-not-evict,
	// karpenter.sh/do-not-disrupt and cluster-autoscaler.kubernetes.io/safe-to-evict: "false".
	//
	// +optional
	// +kubebuilder:default=Respect
	Protection Protection `json:"protection,omitempty"`

	// PlaceholderPods selects pods that hold room and do no work. They keep no node, whatever protects them: they stay
	// where they are, and go with the machine.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="an empty selector would make every pod a placeholder: give matchLabels or matchExpressions"
	PlaceholderPods *metav1.LabelSelector `json:"placeholderPods,omitempty"`

	// WaitForDetach makes the retirement wait until the volumes of the evicted pods are detached from the machine.
	//
	// +optional
	WaitForDetach bool `json:"waitForDetach,omitempty"`
}

// Cooldowns are the times in which nobody leaves by a scale-down rule.
type Cooldowns struct {
	// AfterScaleUp is counted from when the group last got a node.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	AfterScaleUp *metav1.Duration `json:"afterScaleUp,omitempty"`

	// AfterFailure is counted from when a retirement of the node last was aborted or refused.
	//
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	AfterFailure *metav1.Duration `json:"afterFailure,omitempty"`
}

// Conditions of a NodeGroup.
const (
	// GroupAccepted says whether the group is acted on; if not, its reason and message say what is wrong with it.
	GroupAccepted = "Accepted"
	// GroupCloudReachable says whether the cloud was last read without an error.
	GroupCloudReachable = "CloudReachable"
	// GroupScaleUpAllowed is False while the Node of an instance that was launched for the group does not match its selector: no more
	// are launched then. A group that this has never happened to does not have it.
	GroupScaleUpAllowed = "ScaleUpAllowed"
)

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

// NodeGroupStatus is how the manager finds a NodeGroup.
type NodeGroupStatus struct {
	// ObservedGeneration is the metadata.generation that the rest of the status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Nodes is how many Node objects the group has.
	//
	// +optional
	Nodes int32 `json:"nodes"`

	// Ready is how many of them are Ready and take pods.
	//
	// +optional
	Ready int32 `json:"ready"`

	// Leaving is how many are on their way out.
	//
	// +optional
	Leaving int32 `json:"leaving"`

	// Unavailable is how many are not to be counted on, for whatever reason, those that are leaving included.
	//
	// +optional
	Unavailable int32 `json:"unavailable"`

	// CloudSize is how many machines the cloud means the group to have; none is not known.
	//
	// +optional
	CloudSize *int32 `json:"cloudSize,omitempty"`

	// CloudMinimum is the cloud's own minimum, such as an agent pool's, below which no node leaves either; none is 0.
	//
	// +optional
	CloudMinimum int32 `json:"cloudMinimum,omitempty"`

	// AllowedDisruptions is how many more nodes may leave now.
	//
	// +optional
	AllowedDisruptions int32 `json:"allowedDisruptions"`

	// LastScaleUp is when the group last got a node.
	//
	// +optional
	LastScaleUp *metav1.Time `json:"lastScaleUp,omitempty"`

	// LastScaleDown is when the group last lost one by a retirement.
	//
	// +optional
	LastScaleDown *metav1.Time `json:"lastScaleDown,omitempty"`

	// Provisioning is what is known of the instances that are provisioning, with the record of launches.
	//
	// +optional
	Provisioning *ProvisioningStatus `json:"provisioning,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
