package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PoolUpdate is one change of a cloudpool. Its name is the pool's with a number: a replica of slipway cloudpool creates the next one
// only when the one before is complete. Deleting one that is under way stops further removals; the NodeRetirements that it has
// created go on.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="slipway.dev/schema-generation=1"
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=pu,categories=slipway
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Size",type=integer,priority=1,JSONPath=`.spec.desiredSize`
// +kubebuilder:printcolumn:name="Machine",type=string,priority=1,JSONPath=`.spec.machineID`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.message`
type PoolUpdate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PoolUpdateSpec `json:"spec"`
	// +optional
	Status PoolUpdateStatus `json:"status,omitempty"`
}

// PoolUpdateList is a list of PoolUpdates.
//
// +kubebuilder:object:root=true
type PoolUpdateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PoolUpdate `json:"items"`
}

// PoolUpdateType is what a PoolUpdate does.
//
// +kubebuilder:validation:Enum=SetSize;Terminate;Detach;SetMembership
type PoolUpdateType string

// The types of PoolUpdates.
const (
	SetPoolSize          PoolUpdateType = "SetSize"
	TerminateMachine     PoolUpdateType = "Terminate"
	DetachMachine        PoolUpdateType = "Detach"
	SetMachineMembership PoolUpdateType = "SetMembership"
)

// PoolUpdateSpec is what was asked for. It cannot be changed.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a PoolUpdate cannot be changed: ask the cloudpool for another one"
// +kubebuilder:validation:XValidation:rule="(self.type == 'SetSize') == has(self.desiredSize)",message="desiredSize belongs to the type SetSize, and to no other"
// +kubebuilder:validation:XValidation:rule="(self.type != 'SetSize') == has(self.machineID)",message="machineID belongs to all types but SetSize"
// +kubebuilder:validation:XValidation:rule="(self.type == 'SetMembership') == has(self.membership)",message="membership belongs to the type SetMembership, and to no other"
type PoolUpdateSpec struct {
	// Pool is the cloudpool's name, and the NodeGroup's where one is served natively.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pool string         `json:"pool"`
	Type PoolUpdateType `json:"type"`
	// DesiredSize is how many machines the pool is to have.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	DesiredSize *int32 `json:"desiredSize,omitempty"`
	// MachineID is the machine's ID in the pool.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	MachineID string `json:"machineID,omitempty"`
	// Decrement lowers the desired size by the machine that is terminated or detached.
	//
	// +optional
	Decrement bool `json:"decrement,omitempty"`
	// Membership is the machine's new membership status. A machine that is neither active nor evictable any more stays; one that is
	// evictable and not active is terminated.
	//
	// +optional
	Membership *PoolMembership `json:"membership,omitempty"`
	// RequestedBy is the client, as far as it is known.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	RequestedBy string `json:"requestedBy,omitempty"`
}

// PoolMembership says whether a machine counts, and whether its pool may terminate it.
type PoolMembership struct {
	Active    bool `json:"active"`
	Evictable bool `json:"evictable"`
}

// MaxPoolMachines and MaxPoolPassed are how many machines of each kind a PoolUpdate's status holds.
const (
	MaxPoolMachines = 500
	MaxPoolPassed   = 50
)

// The conditions of a PoolUpdate.
const (
	// PoolUpdateAccepted is True as soon as a replica works on it.
	PoolUpdateAccepted = "Accepted"
	// PoolUpdateBlocked is True while it cannot come to its end, and its clients have been told so. Its reason is a PoolUpdateResult.
	PoolUpdateBlocked = "Blocked"
	// PoolUpdateComplete is set at the end: True if all that was asked for is done, and False otherwise. Its reason is a
	// PoolUpdateResult.
	PoolUpdateComplete = "Complete"
)

// PoolUpdateResult is how a PoolUpdate ended: the reason of its condition Complete.
type PoolUpdateResult string

// The results.
const (
	PoolUpdateDone               PoolUpdateResult = "Done"
	PoolUpdatePartial            PoolUpdateResult = "Partial"            // some machines were removed, fewer than asked for
	PoolUpdateNotFound           PoolUpdateResult = "NotFound"           // there is no such machine
	PoolUpdateNotPossible        PoolUpdateResult = "NotPossible"        // no machine may be removed
	PoolUpdateBackendUnavailable PoolUpdateResult = "BackendUnavailable" // the pool's server, or its cloud, does not do what it is asked
	PoolUpdateClusterUnavailable PoolUpdateResult = "ClusterUnavailable" // the API server does not answer, or no manager retires the nodes
	PoolUpdateFailed             PoolUpdateResult = "Failed"
)

// PoolUpdateStatus is how far a PoolUpdate is.
type PoolUpdateStatus struct {
	// StartedAt is when a replica began to work on it, and CompletedAt when it ended.
	//
	// +optional
	StartedAt *metav1.MicroTime `json:"startedAt,omitempty"`
	// +optional
	CompletedAt *metav1.MicroTime `json:"completedAt,omitempty"`
	// SizeBefore is the pool's desired size at the start.
	//
	// +optional
	SizeBefore int32 `json:"sizeBefore,omitempty"`
	// ObservedAt is when the pool's server had observed the machines by which the update began.
	//
	// +optional
	ObservedAt *metav1.MicroTime `json:"observedAt,omitempty"`
	// Machines are those that are planned to go, go, went, or stay although they were to go.
	//
	// +kubebuilder:validation:MaxItems=500
	// +listType=map
	// +listMapKey=id
	// +optional
	Machines []PoolMachine `json:"machines,omitempty"`
	// Passed are machines that could not go when the update began.
	//
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	Passed []PoolPassed `json:"passed,omitempty"`
	// Removed is how many machines are gone.
	//
	// +optional
	Removed int32 `json:"removed,omitempty"`
	// Progress is how many machines are gone of how many are to go.
	//
	// +optional
	Progress string `json:"progress,omitempty"`
	// Message says what is being done or waited for.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// MadeEvictable says that the machine was made evictable for its removal: that is undone if it stays.
	//
	// +optional
	MadeEvictable bool `json:"madeEvictable,omitempty"`
	// Launch says that an instance has to be launched when the machine is gone, since the NodeGroup's cloud lowers its size with each
	// deletion. LaunchTo is the desired size that is set for it.
	//
	// +optional
	Launch bool `json:"launch,omitempty"`
	// +optional
	LaunchTo int32 `json:"launchTo,omitempty"`
	// Answer is what the pool's server said to a request that was passed on, if it refused it.
	//
	// +optional
	Answer *PoolAnswer `json:"answer,omitempty"`
	// Conditions are Accepted, Blocked and Complete.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PoolAnswer is an answer of a pool's server, or of its cloud.
type PoolAnswer struct {
	// Code is the HTTP status of the server's own answer; 0 without one.
	//
	// +optional
	Code int32 `json:"code,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	// +optional
	Detail string `json:"detail,omitempty"`
}

// PoolMachineState is how far a machine's removal is.
//
// +kubebuilder:validation:Enum=Planned;Leaving;Gone;Refused
type PoolMachineState string

// The states of a machine.
const (
	MachinePlanned PoolMachineState = "Planned"
	MachineLeaving PoolMachineState = "Leaving"
	MachineLeft    PoolMachineState = "Gone"
	MachineRefused PoolMachineState = "Refused" // it stays
)

// PoolMachine is one machine of a PoolUpdate.
type PoolMachine struct {
	// ID is the machine's ID in the pool.
	ID string `json:"id"`
	// Node, NodeUID and ProviderID are of its node, if it has one.
	//
	// +optional
	Node string `json:"node,omitempty"`
	// +optional
	NodeUID types.UID `json:"nodeUID,omitempty"`
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// Retirement is the name of its NodeRetirement; empty for a machine without a node.
	//
	// +optional
	Retirement string `json:"retirement,omitempty"`
	// Created says that the NodeRetirement was seen, and Adopted that another origin has created it.
	//
	// +optional
	Created bool `json:"created,omitempty"`
	// +optional
	Adopted bool `json:"adopted,omitempty"`
	// Operation is the deletion of a machine without a node; not set until the cloud has taken it.
	//
	// +optional
	Operation *CloudOperation `json:"operation,omitempty"`
	// DeletionRequested says that its cloud was asked to delete it since the update began.
	//
	// +optional
	DeletionRequested bool             `json:"deletionRequested,omitempty"`
	State             PoolMachineState `json:"state"`
	// Phase is the NodeRetirement's.
	//
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// Reason is why it stays.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// Since is when its removal began.
	//
	// +optional
	Since *metav1.MicroTime `json:"since,omitempty"`
}

// PoolPassed is a machine that could not go, and why.
type PoolPassed struct {
	Machine string `json:"machine"`
	// +optional
	Node string `json:"node,omitempty"`
	// Rule names the rule, and Pod the pod that it concerns, as namespace/name.
	Rule string `json:"rule"`
	// +optional
	Pod string `json:"pod,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	// +optional
	Remedy string `json:"remedy,omitempty"`
}

// Finished reports whether the update has ended.
func (u *PoolUpdate) Finished() bool { return u.Status.CompletedAt != nil }

// Disposes reports whether the update makes a machine disposable, which terminates it.
func (u *PoolUpdate) Disposes() bool {
	m := u.Spec.Membership
	return u.Spec.Type == SetMachineMembership && m != nil && !m.Active && m.Evictable
}

// Machine returns a machine that goes, went or stays; nil for one that is planned only, or not there.
func (u *PoolUpdate) Machine(id string) *PoolMachine {
	for i := range u.Status.Machines {
		if m := &u.Status.Machines[i]; m.ID == id && m.State != MachinePlanned {
			return m
		}
	}
	return nil
}

// SetMachine puts a machine in the place of the one with its ID, or adds it.
func (u *PoolUpdate) SetMachine(m PoolMachine) {
	all := u.Status.Machines
	if i := slices.IndexFunc(all, func(other PoolMachine) bool { return other.ID == m.ID }); i >= 0 {
		all[i] = m
		return
	}
	u.Status.Machines = append(all, m)
}

// CountMachines counts the machines in a state.
func (u *PoolUpdate) CountMachines(s PoolMachineState) int {
	n := 0
	for i := range u.Status.Machines {
		if u.Status.Machines[i].State == s {
			n++
		}
	}
	return n
}
