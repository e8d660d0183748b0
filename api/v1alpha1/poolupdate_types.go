package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PoolUpdate is one update of a cloudpool. Its name is the name of the pool with a number. A replica of slipway cloudpool
// creates the next one only after the previous one is complete. Deleting a PoolUpdate in progress stops further removals.
// The NodeRetirements that it has created continue.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="slipway.dev/schema-generation=3"
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=pu,categories=slipway
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].reason`
// +kubebuilder:printcolumn:name="Blocked",type=string,JSONPath=`.status.conditions[?(@.type=="Blocked")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Size",type=integer,priority=1,JSONPath=`.spec.desiredSize`
// +kubebuilder:printcolumn:name="Machine",type=string,priority=1,JSONPath=`.spec.machineID`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
type PoolUpdate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the requested update.
	Spec PoolUpdateSpec `json:"spec"`
	// status is the progress of the update.
	//
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

// PoolUpdateSpec is the requested update. It is immutable.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a PoolUpdate is immutable: request another update from the cloudpool"
// +kubebuilder:validation:XValidation:rule="(self.type == 'SetSize') == has(self.desiredSize)",message="desiredSize is required for the type SetSize, and not allowed for other types"
// +kubebuilder:validation:XValidation:rule="(self.type != 'SetSize') == has(self.machineID)",message="machineID is required for all types but SetSize"
// +kubebuilder:validation:XValidation:rule="(self.type == 'SetMembership') == has(self.membership)",message="membership is required for the type SetMembership, and not allowed for other types"
type PoolUpdateSpec struct {
	// pool is the name of the cloudpool. If the pool is a NodeGroup, it is the name of the NodeGroup.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool"`
	// type is what the update does.
	Type PoolUpdateType `json:"type"`
	// desiredSize is the requested number of machines in the pool.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	DesiredSize *int32 `json:"desiredSize,omitempty"`
	// machineID is the ID of the machine in the pool.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	MachineID string `json:"machineID,omitempty"`
	// decrement lowers the desired size by one when the machine is terminated or detached.
	//
	// +optional
	Decrement bool `json:"decrement,omitempty"`
	// membership is the new membership status of the machine. A machine that is evictable and not active is terminated. A
	// machine that is not active and not evictable stays.
	//
	// +optional
	Membership *PoolMembership `json:"membership,omitempty"`
	// requestedBy is the client, as far as it is known.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	RequestedBy string `json:"requestedBy,omitempty"`
}

// PoolMembership is the membership status of a machine.
type PoolMembership struct {
	// active says whether the machine counts as part of the pool.
	Active bool `json:"active"`
	// evictable says whether the pool may terminate the machine.
	Evictable bool `json:"evictable"`
}

// The highest numbers of machines in the status of a PoolUpdate.
const (
	MaxPoolMachines    = 500
	MaxSkippedMachines = 50
)

// The conditions of a PoolUpdate.
const (
	// PoolUpdateAccepted is True as soon as a replica works on the update.
	PoolUpdateAccepted = "Accepted"
	// PoolUpdateBlocked is True while the update cannot complete, and its clients were told so. The reason is a PoolUpdateResult.
	PoolUpdateBlocked = "Blocked"
	// PoolUpdateComplete is set at the end: True if everything was done, False otherwise. The reason is a PoolUpdateResult.
	PoolUpdateComplete = "Complete"
)

// PoolUpdateResult is the result of a PoolUpdate: the reason of its condition Complete.
type PoolUpdateResult string

// The results.
const (
	PoolUpdateDone               PoolUpdateResult = "Done"
	PoolUpdatePartial            PoolUpdateResult = "Partial"            // fewer machines were removed than requested
	PoolUpdateNotFound           PoolUpdateResult = "NotFound"           // the machine does not exist
	PoolUpdateNotPossible        PoolUpdateResult = "NotPossible"        // no machine may be removed
	PoolUpdateBackendUnavailable PoolUpdateResult = "BackendUnavailable" // the server of the pool, or its cloud, fails
	PoolUpdateClusterUnavailable PoolUpdateResult = "ClusterUnavailable" // the API server does not answer, or no manager retires the nodes
	PoolUpdateFailed             PoolUpdateResult = "Failed"
)

// PoolUpdateStatus is the progress of a PoolUpdate.
type PoolUpdateStatus struct {
	// startedAt is when a replica started the update.
	//
	// +optional
	StartedAt *metav1.MicroTime `json:"startedAt,omitempty"`
	// completedAt is when the update ended.
	//
	// +optional
	CompletedAt *metav1.MicroTime `json:"completedAt,omitempty"`
	// sizeBefore is the desired size of the pool at the start.
	//
	// +optional
	SizeBefore int32 `json:"sizeBefore,omitempty"`
	// observedAt is when the server of the pool observed the machines that the update started with.
	//
	// +optional
	ObservedAt *metav1.MicroTime `json:"observedAt,omitempty"`
	// machines are the machines that were chosen for removal.
	//
	// +kubebuilder:validation:MaxItems=500
	// +listType=map
	// +listMapKey=id
	// +optional
	Machines []PoolMachine `json:"machines,omitempty"`
	// skipped are machines that could not be removed when the update started.
	//
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	Skipped []SkippedMachine `json:"skipped,omitempty"`
	// passed is the old name of skipped. Deprecated: use skipped.
	//
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	DeprecatedSkipped []SkippedMachine `json:"passed,omitempty"`
	// removed is the number of machines that are removed.
	//
	// +optional
	Removed int32 `json:"removed,omitempty"`
	// progress is the number of removed machines and of machines to remove, such as 2/5.
	//
	// +optional
	Progress string `json:"progress,omitempty"`
	// message says what is being done, why the update waits, or why it failed.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// madeEvictable means that the machine was made evictable for its removal. This is undone if the machine stays.
	//
	// +optional
	MadeEvictable bool `json:"madeEvictable,omitempty"`
	// launch means that an instance must be launched when the machine is gone, because the cloud of the NodeGroup lowers
	// its size with each deletion.
	//
	// +optional
	Launch bool `json:"launch,omitempty"`
	// launchTo is the desired size that is set for the launch.
	//
	// +optional
	LaunchTo int32 `json:"launchTo,omitempty"`
	// answer is the error that the server of the pool returned to a forwarded request.
	//
	// +optional
	Answer *PoolAnswer `json:"answer,omitempty"`
	// conditions are Accepted, Blocked and Complete.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PoolAnswer is an error of the server of a pool, or of its cloud.
type PoolAnswer struct {
	// code is the HTTP status that the server returned; 0 if it did not answer.
	//
	// +optional
	Code int32 `json:"code,omitempty"`
	// message is the message in the answer.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// detail is the detail in the answer.
	//
	// +optional
	Detail string `json:"detail,omitempty"`
}

// PoolMachineState is the progress of the removal of a machine. Earlier versions wrote Leaving for Removing, and Gone for
// Removed.
//
// +kubebuilder:validation:Enum=Planned;Removing;Removed;Refused;Leaving;Gone
type PoolMachineState string

// The states of a machine.
const (
	MachinePlanned  PoolMachineState = "Planned"
	MachineRemoving PoolMachineState = "Removing"
	MachineRemoved  PoolMachineState = "Removed"
	MachineRefused  PoolMachineState = "Refused" // it stays
)

// PoolMachine is one machine of a PoolUpdate.
type PoolMachine struct {
	// id is the ID of the machine in the pool.
	ID string `json:"id"`
	// node is the name of its Node, if any.
	//
	// +optional
	Node string `json:"node,omitempty"`
	// nodeUID is the UID of its Node, if any.
	//
	// +optional
	NodeUID types.UID `json:"nodeUID,omitempty"`
	// providerID is the provider ID of its Node, if any.
	//
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// retirement is the name of its NodeRetirement. It is empty for a machine without a Node.
	//
	// +optional
	Retirement string `json:"retirement,omitempty"`
	// created means that the NodeRetirement exists.
	//
	// +optional
	Created bool `json:"created,omitempty"`
	// adopted means that another program created the NodeRetirement.
	//
	// +optional
	Adopted bool `json:"adopted,omitempty"`
	// operation is the deletion of a machine without a Node. It is not set before the cloud has accepted the request.
	//
	// +optional
	Operation *CloudOperation `json:"operation,omitempty"`
	// deletionRequested means that the cloud was asked to delete the machine since the update started.
	//
	// +optional
	DeletionRequested bool `json:"deletionRequested,omitempty"`
	// state is the progress of the removal.
	State PoolMachineState `json:"state"`
	// phase is the phase of the NodeRetirement.
	//
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// reason is why the machine stays.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// since is when the removal started.
	//
	// +optional
	Since *metav1.MicroTime `json:"since,omitempty"`
}

// SkippedMachine is a machine that could not be removed, and why.
type SkippedMachine struct {
	// machine is the ID of the machine in the pool.
	Machine string `json:"machine"`
	// node is the name of its Node, if any.
	//
	// +optional
	Node string `json:"node,omitempty"`
	// rule is the rule that keeps the machine.
	Rule string `json:"rule"`
	// pod is the pod that the rule is about, as namespace/name.
	//
	// +optional
	Pod string `json:"pod,omitempty"`
	// message describes the cause.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// remedy says what to do about it.
	//
	// +optional
	Remedy string `json:"remedy,omitempty"`
}

// IsFinished reports whether the update has ended.
func (u *PoolUpdate) IsFinished() bool { return u.Status.CompletedAt != nil }

// IsDisposal reports whether the update makes a machine disposable: evictable and not active. Such a machine is terminated.
func (u *PoolUpdate) IsDisposal() bool {
	m := u.Spec.Membership
	return u.Spec.Type == SetMachineMembership && m != nil && !m.Active && m.Evictable
}

// FindMachineExceptPlanned returns the machine with the ID, or nil if there is none or it is only planned.
func (u *PoolUpdate) FindMachineExceptPlanned(id string) *PoolMachine {
	for i := range u.Status.Machines {
		if m := &u.Status.Machines[i]; m.ID == id && m.State != MachinePlanned {
			return m
		}
	}
	return nil
}

// SetMachine replaces the machine with the same ID, or adds it.
func (u *PoolUpdate) SetMachine(m PoolMachine) {
	all := u.Status.Machines
	if i := slices.IndexFunc(all, func(other PoolMachine) bool { return other.ID == m.ID }); i >= 0 {
		all[i] = m
		return
	}
	u.Status.Machines = append(all, m)
}

// CountMachinesInState returns the number of machines in a state.
func (u *PoolUpdate) CountMachinesInState(s PoolMachineState) int {
	n := 0
	for i := range u.Status.Machines {
		if u.Status.Machines[i].State == s {
			n++
		}
	}
	return n
}
