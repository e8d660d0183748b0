package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeRetirement is one node's way out: cordoned, drained, its Node object deleted, its machine deleted. It outlives the
// Node, so that a machine is not forgotten. Deleting it before the Node is deleted calls the retirement off, and the
// node is given back.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="slipway.dev/schema-generation=5"
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nr,categories=slipway
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.spec.reason`
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.status.captured.group`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Drain",type=string,priority=1,JSONPath=`.status.drain.summary`
// +kubebuilder:printcolumn:name="Machine",type=string,priority=1,JSONPath=`.status.captured.instanceName`
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
type NodeRetirement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeRetirementSpec `json:"spec"`
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

// Reason is why a node leaves: one word in CamelCase, by which budgets, metrics and people tell retirements apart.
//
// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z0-9]*$`
// +kubebuilder:validation:MaxLength=63
type Reason string

// Reasons that Slipway itself gives.
const (
	Requested   Reason = "Requested"   // somebody asked for it
	Idle        Reason = "Idle"        // no pod needs it
	Underused   Reason = "Underused"   // its pods fit elsewhere
	Surplus     Reason = "Surplus"     // its group is to be smaller
	Notice      Reason = "Notice"      // its cloud takes the machine away
	MachineGone Reason = "MachineGone" // its machine is gone already
	NeverReady  Reason = "NeverReady"  // its machine was ordered, and it was not Ready in time
)

// NodeRetirementSpec says which node is to leave, and why. It cannot be changed afterwards, but for
// overrideProtection.
//
// +kubebuilder:validation:XValidation:rule="self.nodeName == oldSelf.nodeName",message="nodeName cannot be changed: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.nodeUID) == has(oldSelf.nodeUID) && (!has(self.nodeUID) || self.nodeUID == oldSelf.nodeUID)",message="nodeUID cannot be changed: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.providerID) == has(oldSelf.providerID) && (!has(self.providerID) || self.providerID == oldSelf.providerID)",message="providerID cannot be changed: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.group) == has(oldSelf.group) && (!has(self.group) || self.group == oldSelf.group)",message="group cannot be changed: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.reason) == has(oldSelf.reason) && (!has(self.reason) || self.reason == oldSelf.reason)",message="reason cannot be changed: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.requestedBy) == has(oldSelf.requestedBy) && (!has(self.requestedBy) || self.requestedBy == oldSelf.requestedBy)",message="requestedBy cannot be changed: create another NodeRetirement"
// +kubebuilder:validation:XValidation:rule="has(self.notice) == has(oldSelf.notice) && (!has(self.notice) || self.notice == oldSelf.notice)",message="notice cannot be changed: create another NodeRetirement"
type NodeRetirementSpec struct {
	// NodeName is the Node's metadata.name.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	NodeName string `json:"nodeName"`

	// NodeUID is the Node's metadata.uid. Where it is given, a node of the same name with another UID is refused; where it
	// is not, that of the node found first counts, and is in status.captured.
	//
	// +optional
	NodeUID types.UID `json:"nodeUID,omitempty"`

	// ProviderID is the machine's, as in the Node's spec.providerID, which it has to equal where both are given. A machine
	// without a Node is retired by giving it, and so is one whose Node has none: its cloud has to give it the Node's name.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	ProviderID string `json:"providerID,omitempty"`

	// Reason is why the node leaves.
	//
	// +optional
	// +kubebuilder:default=Requested
	Reason Reason `json:"reason,omitempty"`

	// RequestedBy is who wants it, for people to read.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RequestedBy string `json:"requestedBy,omitempty"`

	// Group is the NodeGroup that the node has to belong to; none is the one it belongs to.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`

	// KeepSize has the group keep its size when the instance is deleted, so that its cloud launches another one. Only a
	// cloudpool can; a NodeRetirement of another provider's instance is refused. The default lowers the size by one.
	//
	// +optional
	KeepSize bool `json:"keepSize,omitempty"`

	// Notice is the cloud's word that it takes the machine away. The node is then left to its agent, and the retirement
	// begins once the machine is gone; it ends when the notice is over and the machine lives.
	//
	// +optional
	Notice *NoticeReference `json:"notice,omitempty"`

	// OverrideProtection lets a node be retired, and pods be evicted, that ask not to be, for as long as it says.
	//
	// +optional
	OverrideProtection *OverrideProtection `json:"overrideProtection,omitempty"`

	// TTLAfterFinished is how long the record is kept when the retirement is over; none is the manager's.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	TTLAfterFinished *metav1.Duration `json:"ttlAfterFinished,omitempty"`
}

// NoticeReference names a notice that the agent on the node has reported.
type NoticeReference struct {
	// Source is who gave the notice, such as azure.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Source string `json:"source"`

	// ID is the notice's in its source.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ID string `json:"id"`

	// Type is what will happen to the machine, such as Preempt.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Type string `json:"type"`
}

// OverrideProtection is somebody's word that a node and its pods may go although they ask not to. It is written down in an
// Event on the Node and on the NodeRetirement.
type OverrideProtection struct {
	// By is who says so.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	By string `json:"by"`

	// Until is when it ends.
	Until metav1.Time `json:"until"`

	// Why is for people to read.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Why string `json:"why"`
}

// Phase is how far a retirement is.
//
// +kubebuilder:validation:Enum=Pending;Cordoned;Draining;Drained;NodeDeleted;InstanceDeleted;Succeeded;Refused;Aborted;Failed
type Phase string

// The phases. A retirement goes through them in this order up to Succeeded, and ends early in one of the last three.
const (
	Pending         Phase = "Pending"         // nothing is done yet; the message says what is waited for
	Cordoned        Phase = "Cordoned"        // the node takes no new pods
	Draining        Phase = "Draining"        // its pods are leaving
	Drained         Phase = "Drained"         // they are gone, and their volumes where asked
	NodeDeleted     Phase = "NodeDeleted"     // the Node object is gone; there is no way back
	InstanceDeleted Phase = "InstanceDeleted" // the cloud says that the machine is gone
	Succeeded       Phase = "Succeeded"       // all of it is verified
	Refused         Phase = "Refused"         // it was not begun, and will not be
	Aborted         Phase = "Aborted"         // it was given up, and the node given back
	Failed          Phase = "Failed"          // it cannot go on; reasons say what is left to do
)

// Finished reports a phase that does not change any more.
func (p Phase) Finished() bool {
	return p == Succeeded || p == Refused || p == Aborted || p == Failed
}

// Conditions of a NodeRetirement.
const (
	RetirementAdmitted        = "Admitted"        // it may begin: budgets, minimum, nobody else is removing the node
	RetirementDrained         = "Drained"         // the pods are gone
	RetirementNodeDeleted     = "NodeDeleted"     // the Node object is gone; False while its finalizers hold it
	RetirementInstanceDeleted = "InstanceDeleted" // the machine is gone
	RetirementBlocked         = "Blocked"         // something holds it up; its reason says what
	RetirementSucceeded       = "Succeeded"       // False with a reason when it ended early
)

// NodeRetirementStatus is how far a retirement is, and what it needs to go on after a restart.
type NodeRetirementStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// +optional
	Phase Phase `json:"phase,omitempty"`

	// Message says for people what is being done, or how it ended.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Message string `json:"message,omitempty"`

	// Reasons say, as data, what blocks the retirement, or why it ended early.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Reasons []RetirementReason `json:"reasons,omitempty"`

	// Captured is what the retirement is about, as it was found at the start. It is never changed.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="what was captured is never changed"
	Captured *Captured `json:"captured,omitempty"`

	// Times are when each phase was reached.
	//
	// +optional
	Times PhaseTimes `json:"times,omitempty"`

	// Drain is how far the drain is.
	//
	// +optional
	Drain *DrainProgress `json:"drain,omitempty"`

	// Operation is the deletion of the machine, as its cloud carries it out.
	//
	// +optional
	Operation *CloudOperation `json:"operation,omitempty"`

	// MachineGone is set when the machine was found gone before the node was drained.
	//
	// +optional
	MachineGone bool `json:"machineGone,omitempty"`

	// Replacement is how far the replacement of an instance is that a notice takes away.
	//
	// +optional
	Replacement *Replacement `json:"replacement,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ReplacementState is how far the replacement of an instance is. Ordering, Ordered, LeftToCloud and Arrived are of an earlier version.
//
// +kubebuilder:validation:Enum=Waiting;Launched;Ready;NotNeeded;Failed;Ordering;Ordered;LeftToCloud;Arrived
type ReplacementState string

// The states of a replacement. All but the first two are final, and so is what an earlier version has written.
const (
	ReplacementWaiting   ReplacementState = "Waiting"   // it is not launched yet; reasons say why
	ReplacementLaunched  ReplacementState = "Launched"  // its instance is provisioning
	ReplacementReady     ReplacementState = "Ready"     // its Node is Ready and takes pods
	ReplacementNotNeeded ReplacementState = "NotNeeded" // there will be none; reasons say why
	ReplacementFailed    ReplacementState = "Failed"    // its instance is not usable; reasons say why
)

// Final reports a state that does not change any more.
func (s ReplacementState) Final() bool {
	return s != "" && s != ReplacementWaiting && s != ReplacementLaunched
}

// Replacement is how far the replacement of one instance is. From Launched on it follows from its launch, which is in the status of the
// NodeGroup.
type Replacement struct {
	State ReplacementState `json:"state"`

	// Since is when the state was reached.
	Since metav1.Time `json:"since"`

	// Reasons say, as data, why it is in this state.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Reasons []RetirementReason `json:"reasons,omitempty"`

	// Launch is the ID of its launch in status.provisioning.launches of the NodeGroup.
	//
	// +optional
	Launch string `json:"launch,omitempty"`

	// Instance is the provider ID of the new instance, once it is known.
	//
	// +optional
	Instance string `json:"instance,omitempty"`
}

// Captured is the node and the machine that a retirement is about.
type Captured struct {
	// NodeUID is empty when there was no Node.
	//
	// +optional
	NodeUID types.UID `json:"nodeUID,omitempty"`
	// ProviderID is the Node's spec.providerID, to the letter, or the NodeRetirement's where the Node has none.
	ProviderID string `json:"providerID"`
	// Provider is the cloud's name.
	Provider string `json:"provider"`
	// Group is the NodeGroup, if the node belongs to one.
	//
	// +optional
	Group string `json:"group,omitempty"`
	// InstanceName and ComputerName are the machine's in its cloud, and empty when the cloud did not know it any more.
	//
	// +optional
	InstanceName string `json:"instanceName,omitempty"`
	// +optional
	ComputerName string `json:"computerName,omitempty"`
	// UniqueID is the machine's in its cloud, which one that is made anew under the same name does not have, such as
	// Azure's vmId. Empty when the cloud has none, or did not know the machine any more.
	//
	// +optional
	UniqueID string `json:"uniqueID,omitempty"`
}

// RetirementReason is one thing that blocks a retirement, or why it ended early.
type RetirementReason struct {
	// Code is one word in CamelCase for machines, such as DisruptionBudget.
	//
	// +kubebuilder:validation:MaxLength=63
	Code string `json:"code"`
	// Object is what it is about, such as pod ns/name; empty is the node.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Object string `json:"object,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// PhaseTimes are when each phase was reached.
type PhaseTimes struct {
	// +optional
	Cordoned *metav1.Time `json:"cordoned,omitempty"`
	// +optional
	Draining *metav1.Time `json:"draining,omitempty"`
	// Releasing is when the control plane began to release the pods of a machine that is gone.
	//
	// +optional
	Releasing *metav1.Time `json:"releasing,omitempty"`
	// +optional
	Drained *metav1.Time `json:"drained,omitempty"`
	// +optional
	NodeDeleted *metav1.Time `json:"nodeDeleted,omitempty"`
	// +optional
	InstanceDeleted *metav1.Time `json:"instanceDeleted,omitempty"`
	// Finished is when the retirement ended, well or not.
	//
	// +optional
	Finished *metav1.Time `json:"finished,omitempty"`
}

// DrainProgress is how far a drain is.
type DrainProgress struct {
	// Total is how many pods have to leave; gone, stopping and waiting add up to it.
	Total    int32 `json:"total"`
	Gone     int32 `json:"gone"`
	Stopping int32 `json:"stopping"`
	Waiting  int32 `json:"waiting"`
	// Summary is the same in one line, with what holds the pods up.
	//
	// +optional
	Summary string `json:"summary,omitempty"`
}

// CloudOperation is a change that a cloud carries out in its own time.
type CloudOperation struct {
	// ID is the provider's own, and opaque.
	//
	// +optional
	ID string `json:"id,omitempty"`
	// Started is when the cloud took the request.
	Started metav1.Time `json:"started"`
	// Attempts counts the deletions that were asked for.
	Attempts int32 `json:"attempts"`
	// RetryAfter is set when the deletion failed: from then on it is asked for again.
	//
	// +optional
	RetryAfter *metav1.Time `json:"retryAfter,omitempty"`
}
