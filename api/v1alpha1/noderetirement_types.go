package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeRetirement takes one node out of service: it cordons and drains the Node, deletes it, and deletes its instance. The
// object outlives the Node, so that the instance is deleted even after a crash. Deleting the NodeRetirement before the Node
// is deleted cancels the retirement, and Slipway restores the node.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="slipway.dev/schema-generation=7"
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nr,categories=slipway
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.spec.reason`
// +kubebuilder:printcolumn:name="Code",type=string,priority=1,JSONPath=`.status.reasons[0].code`
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.status.captured.group`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Drain",type=string,priority=1,JSONPath=`.status.drain.summary`
// +kubebuilder:printcolumn:name="Instance",type=string,priority=1,JSONPath=`.status.captured.instanceName`
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
type NodeRetirement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the node to retire.
	Spec NodeRetirementSpec `json:"spec"`
	// status is the progress of the retirement.
	//
	// +optional
	Status NodeRetirementStatus `json:"status,omitempty"`
}

// NodeRetirementList is a list of NodeRetirements.
//
// +kubebuilder:object:root=true
type NodeRetirementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeRetirement `json:"items"`
}

// Reason is why a node is retired: one word in CamelCase. Disruption budgets and metrics distinguish retirements by it.
//
// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z0-9]*$`
// +kubebuilder:validation:MaxLength=63
type Reason string

// Reasons that Slipway itself gives.
const (
	Requested     Reason = "Requested"     // a user or program requested it
	Idle          Reason = "Idle"          // no selected pod is on the node
	Underutilized Reason = "Underutilized" // its pods fit on other nodes
	Surplus       Reason = "Surplus"       // the desired size of its group is lower
	Notice        Reason = "Notice"        // the cloud takes its instance away
	InstanceGone  Reason = "InstanceGone"  // its instance does not exist any more
	NeverReady    Reason = "NeverReady"    // its instance was launched, and the Node was not Ready in time
)

// NodeRetirementSpec defines which node is retired, and why. Only overrideProtection, keepSize and ttlAfterFinished can be
// changed afterwards.
//
// +kubebuilder:validation:XValidation:rule="self.nodeName == oldSelf.nodeName",message="nodeName is immutable: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.nodeUID) == has(oldSelf.nodeUID) && (!has(self.nodeUID) || self.nodeUID == oldSelf.nodeUID)",message="nodeUID is immutable: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.providerID) == has(oldSelf.providerID) && (!has(self.providerID) || self.providerID == oldSelf.providerID)",message="providerID is immutable: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.group) == has(oldSelf.group) && (!has(self.group) || self.group == oldSelf.group)",message="group is immutable: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.reason) == has(oldSelf.reason) && (!has(self.reason) || self.reason == oldSelf.reason || (oldSelf.reason == 'Underused' && self.reason == 'Underutilized') || (oldSelf.reason == 'MachineGone' && self.reason == 'InstanceGone'))",message="reason is immutable: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.requestedBy) == has(oldSelf.requestedBy) && (!has(self.requestedBy) || self.requestedBy == oldSelf.requestedBy)",message="requestedBy is immutable: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.notice) == has(oldSelf.notice) && (!has(self.notice) || self.notice == oldSelf.notice)",message="notice is immutable: create another NodeRetirement"
type NodeRetirementSpec struct {
	// nodeName is metadata.name of the Node.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	NodeName string `json:"nodeName"`

	// nodeUID is metadata.uid of the Node. If set, a Node with the same name and another UID is refused. If not set, the
	// UID of the Node that is found first counts. It is recorded in status.captured.
	//
	// +optional
	NodeUID types.UID `json:"nodeUID,omitempty"`

	// providerID is the provider ID of the instance. It must equal spec.providerID of the Node if both are set. Set it to
	// retire an instance if it has no Node, or if its Node has no provider ID. The cloud must then report the name of
	// the Node for the instance.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	ProviderID string `json:"providerID,omitempty"`

	// reason is why the node is retired.
	//
	// +optional
	// +kubebuilder:default=Requested
	Reason Reason `json:"reason,omitempty"`

	// requestedBy is the user or program that requested the retirement. It is informational.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RequestedBy string `json:"requestedBy,omitempty"`

	// group is the NodeGroup that the node must belong to. If not set, it is the group that selects the node.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`

	// keepSize keeps the desired size of the group when the instance is deleted, so that the cloud launches another one.
	// Only the provider cloudpool supports it. For other providers the NodeRetirement is refused. By default the size is
	// lowered by one.
	//
	// +optional
	KeepSize bool `json:"keepSize,omitempty"`

	// notice is the notice of the cloud that it takes the instance away. The agent then drains the node, and the retirement
	// starts once the instance is gone. The retirement ends if the notice ends and the instance still exists.
	//
	// +optional
	Notice *NoticeReference `json:"notice,omitempty"`

	// overrideProtection allows Slipway to retire a protected node and to evict protected pods for a limited time.
	//
	// +optional
	OverrideProtection *OverrideProtection `json:"overrideProtection,omitempty"`

	// ttlAfterFinished is how long the object is kept after the retirement has ended. If not set, the setting of the
	// manager counts.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	TTLAfterFinished *metav1.Duration `json:"ttlAfterFinished,omitempty"`
}

// NoticeReference identifies a notice that the agent on the node has reported.
type NoticeReference struct {
	// source is where the notice comes from, such as azure.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Source string `json:"source"`

	// id is the ID of the notice in its source.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ID string `json:"id"`

	// type is what will happen to the instance, such as Preempt.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Type string `json:"type"`
}

// OverrideProtection allows Slipway to retire a protected node and to evict protected pods. An Event on the Node and on the
// NodeRetirement records it.
type OverrideProtection struct {
	// by is who allows it.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	By string `json:"by"`

	// until is when the permission ends.
	Until metav1.Time `json:"until"`

	// why is the reason, for people to read.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Why string `json:"why"`
}

// Phase is the progress of a retirement.
//
// +kubebuilder:validation:Enum=Pending;Cordoned;Draining;Drained;NodeDeleted;InstanceDeleted;Succeeded;Refused;Aborted;Failed
type Phase string

// The phases. A retirement goes through them in this order up to Succeeded. The last three end it early.
const (
	Pending         Phase = "Pending"         // nothing is done yet; the message says why
	Cordoned        Phase = "Cordoned"        // the node is cordoned
	Draining        Phase = "Draining"        // its pods are being evicted
	Drained         Phase = "Drained"         // its pods are gone, and their volumes are detached if that was requested
	NodeDeleted     Phase = "NodeDeleted"     // the Node is deleted; the node cannot be restored any more
	InstanceDeleted Phase = "InstanceDeleted" // the cloud reports that the instance is gone
	Succeeded       Phase = "Succeeded"       // everything is verified
	Refused         Phase = "Refused"         // it was not started, and will not be
	Aborted         Phase = "Aborted"         // it was stopped, and the node is restored
	Failed          Phase = "Failed"          // it cannot continue; reasons say what is left to do
)

// IsFinal reports whether the phase is final.
func (p Phase) IsFinal() bool {
	return p == Succeeded || p == Refused || p == Aborted || p == Failed
}

// Conditions of a NodeRetirement.
const (
	RetirementAdmitted        = "Admitted"        // it may start: budgets and minSize allow it, and no other tool is removing the node
	RetirementDrained         = "Drained"         // the pods are gone
	RetirementNodeDeleted     = "NodeDeleted"     // the Node is deleted; False while finalizers keep it
	RetirementInstanceDeleted = "InstanceDeleted" // the instance is gone
	RetirementBlocked         = "Blocked"         // something delays it; the reason says what
	RetirementSucceeded       = "Succeeded"       // False with a reason if it ended early
)

// NodeRetirementStatus is the progress of a retirement, and the state that it needs to continue after a restart.
type NodeRetirementStatus struct {
	// observedGeneration is the metadata.generation that the status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// phase is the progress of the retirement.
	//
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// message says what is being done, or how the retirement ended.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Message string `json:"message,omitempty"`

	// reasons are the causes that block the retirement, or that ended it early.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Reasons []RetirementReason `json:"reasons,omitempty"`

	// captured identifies the Node and the instance, as they were at the start. It never changes.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="captured is immutable"
	Captured *Captured `json:"captured,omitempty"`

	// times are when each phase was reached.
	//
	// +optional
	Times PhaseTimes `json:"times,omitempty"`

	// drain is the progress of the drain.
	//
	// +optional
	Drain *DrainProgress `json:"drain,omitempty"`

	// operation is the deletion of the instance in the cloud.
	//
	// +optional
	Operation *CloudOperation `json:"operation,omitempty"`

	// instanceGone is true if the instance was found gone before the node was drained.
	//
	// +optional
	InstanceGone bool `json:"instanceGone,omitempty"`

	// machineGone is the old name of instanceGone. Deprecated: use instanceGone.
	//
	// +optional
	DeprecatedInstanceGone bool `json:"machineGone,omitempty"`

	// replacement is the state of the replacement, if a notice takes the instance away.
	//
	// +optional
	Replacement *Replacement `json:"replacement,omitempty"`

	// conditions are Admitted, Drained, NodeDeleted, InstanceDeleted, Blocked and Succeeded.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ReplacementState is the state of a replacement. Earlier versions wrote Ordering, Ordered, LeftToCloud and Arrived.
//
// +kubebuilder:validation:Enum=Waiting;Launched;Ready;NotNeeded;Failed;Ordering;Ordered;LeftToCloud;Arrived
type ReplacementState string

// The states of a replacement. All but the first two are final. The states of earlier versions are final too.
const (
	ReplacementWaiting   ReplacementState = "Waiting"   // it is not launched yet; reasons say why
	ReplacementLaunched  ReplacementState = "Launched"  // its instance is provisioning
	ReplacementReady     ReplacementState = "Ready"     // its Node is Ready and schedulable
	ReplacementNotNeeded ReplacementState = "NotNeeded" // none will be launched; reasons say why
	ReplacementFailed    ReplacementState = "Failed"    // its instance is not usable; reasons say why
)

// IsFinal reports whether the state is final.
func (s ReplacementState) IsFinal() bool {
	return s != "" && s != ReplacementWaiting && s != ReplacementLaunched
}

// Replacement is the state of the replacement of one instance. From Launched on it follows its launch, which is in the
// status of the NodeGroup.
type Replacement struct {
	// state is the state of the replacement.
	State ReplacementState `json:"state"`

	// since is when the state was reached.
	Since metav1.Time `json:"since"`

	// reasons are the causes of the state.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Reasons []RetirementReason `json:"reasons,omitempty"`

	// launch is the ID of its launch in status.provisioning.launches of the NodeGroup.
	//
	// +optional
	Launch string `json:"launch,omitempty"`

	// instance is the provider ID of the new instance, once it is known.
	//
	// +optional
	Instance string `json:"instance,omitempty"`
}

// Captured identifies the Node and the instance of a retirement.
type Captured struct {
	// nodeUID is empty if there was no Node.
	//
	// +optional
	NodeUID types.UID `json:"nodeUID,omitempty"`
	// providerID is the exact spec.providerID of the Node. If the Node has none, it is the one in the NodeRetirement.
	ProviderID string `json:"providerID"`
	// provider is the name of the cloud.
	Provider string `json:"provider"`
	// group is the NodeGroup of the node, if any.
	//
	// +optional
	Group string `json:"group,omitempty"`
	// instanceName is the name of the instance in the cloud. It is empty if the cloud did not know the instance any more.
	//
	// +optional
	InstanceName string `json:"instanceName,omitempty"`
	// computerName is the host name of the instance. It is empty if the cloud did not know the instance any more.
	//
	// +optional
	ComputerName string `json:"computerName,omitempty"`
	// uniqueID is the ID of the instance that a new instance of the same name does not have, such as vmId in Azure. It is
	// empty if the cloud has none, or did not know the instance any more.
	//
	// +optional
	UniqueID string `json:"uniqueID,omitempty"`
}

// RetirementReason is one cause that blocks a retirement, or that ended it early.
type RetirementReason struct {
	// code is one word in CamelCase, such as DisruptionBudget.
	//
	// +kubebuilder:validation:MaxLength=63
	Code string `json:"code"`
	// object is the object that the code is about, such as pod ns/name. If empty, it is the node.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Object string `json:"object,omitempty"`
	// message describes the cause.
	//
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// PhaseTimes are when each phase was reached.
type PhaseTimes struct {
	// +optional
	Cordoned *metav1.Time `json:"cordoned,omitempty"`
	// +optional
	Draining *metav1.Time `json:"draining,omitempty"`
	// releasing is when Kubernetes started to delete the pods of an instance that is gone.
	//
	// +optional
	Releasing *metav1.Time `json:"releasing,omitempty"`
	// +optional
	Drained *metav1.Time `json:"drained,omitempty"`
	// +optional
	NodeDeleted *metav1.Time `json:"nodeDeleted,omitempty"`
	// +optional
	InstanceDeleted *metav1.Time `json:"instanceDeleted,omitempty"`
	// finished is when the retirement ended, successfully or not.
	//
	// +optional
	Finished *metav1.Time `json:"finished,omitempty"`
}

// DrainProgress is the progress of a drain.
type DrainProgress struct {
	// total is the number of pods to evict. It is the sum of gone, stopping and waiting.
	Total int32 `json:"total"`
	// gone is the number of pods that have left the node.
	Gone int32 `json:"gone"`
	// stopping is the number of pods that are terminating.
	Stopping int32 `json:"stopping"`
	// waiting is the number of pods that are not evicted yet.
	Waiting int32 `json:"waiting"`
	// summary is the same in one line, with the causes that block evictions.
	//
	// +optional
	Summary string `json:"summary,omitempty"`
}

// CloudOperation is an asynchronous operation in a cloud.
type CloudOperation struct {
	// id is the ID that the provider gave the operation.
	//
	// +optional
	ID string `json:"id,omitempty"`
	// started is when the cloud accepted the request.
	Started metav1.Time `json:"started"`
	// attempts is the number of deletion requests.
	Attempts int32 `json:"attempts"`
	// retryAfter is set if the deletion failed. It is when the deletion is requested again.
	//
	// +optional
	RetryAfter *metav1.Time `json:"retryAfter,omitempty"`
}
