// Package acceptance reads the condition Accepted of a NodeGroup. All decisions that depend on this condition are made
// here.
package acceptance

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// State is the result of a manager's check of a group.
type State int

// The states.
const (
	// NotObserved is the state of a group without the condition: no manager has observed it.
	NotObserved State = iota
	// CloudNotRead is the state of a group without an answer from its cloud since the group was last changed.
	CloudNotRead
	Accepted
	// RightsMissing is the state of a group with a credential that lacks a right to delete its instances, as far as
	// that is known.
	RightsMissing
	// CloudRefused is the state of a group if its cloud refuses to answer, for example because the credential has
	// expired.
	CloudRefused
	// Refused is the state of a group with any other fault, such as an invalid spec or nodes of another group.
	Refused
)

// Acceptance is the content of the condition Accepted of one group.
type Acceptance struct {
	State State
	// Reason is the reason of the condition. Message is why the group is not accepted; it is empty for an accepted
	// group.
	Reason, Message string

	isCurrent bool
}

// FromGroup reads the acceptance from the status of a group.
func FromGroup(g *v1alpha1.NodeGroup) Acceptance {
	c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupAccepted)
	if c == nil {
		return Acceptance{Message: "no manager has observed it yet"}
	}
	a := Acceptance{State: toState(c), Reason: c.Reason, Message: c.Message, isCurrent: c.ObservedGeneration == g.Generation}
	if a.State == Accepted {
		a.Message = ""
	}
	return a
}

func toState(c *metav1.Condition) State {
	switch {
	case c.Status == metav1.ConditionTrue:
		return Accepted
	case c.Reason == v1alpha1.CloudRightsMissing:
		return RightsMissing
	case c.Status != metav1.ConditionFalse:
		return CloudNotRead
	case c.Reason == v1alpha1.CloudRefused:
		return CloudRefused
	}
	return Refused
}

// IsObserved reports whether the group's status reflects its current generation.
func (a Acceptance) IsObserved() bool { return a.isCurrent }

// OwnsNodes reports whether the group owns the nodes that it selects. It owns none if its spec is invalid, or if it
// selects the control plane or nodes of another group.
func (a Acceptance) OwnsNodes() bool {
	return a.State != Refused || !slices.Contains([]string{v1alpha1.InvalidSpec, v1alpha1.SelectsControlPlane, v1alpha1.OverlapsGroup}, a.Reason)
}

// MayRetire reports whether nodes of the group may be retired. With missing rights it returns true, because admission
// checks later whether the credential may delete the instance. It also returns true for a group that no manager has
// observed; call IsObserved to find that out.
func (a Acceptance) MayRetire() bool {
	return a.State == NotObserved || a.State == Accepted || a.State == RightsMissing
}

// CanTrustNotFound reports whether Slipway may believe the cloud's answer that an instance of the group does not exist
// (invariant I7: unknown is not gone). With a credential for another project, the cloud does not find the group or its
// instances. After the Node is deleted, the answer is believed unless the cloud refuses to report the group. The cloud
// group may have been deleted with its last instance.
func (a Acceptance) CanTrustNotFound(nodeDeleted bool) bool {
	return a.MayRetire() || nodeDeleted && a.State != CloudRefused
}
