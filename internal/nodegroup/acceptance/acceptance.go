// Package acceptance reads the condition Accepted of a NodeGroup. It is the only place that decides what follows from
// it.
package acceptance

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// State is a manager's finding about a group.
type State int

// The states.
const (
	// NotObserved is a group that no manager has observed.
	NotObserved State = iota
	// CloudNotRead is a group with no answer from its cloud since the group was last changed.
	CloudNotRead
	Accepted
	// RightsMissing is a group with a credential that may not delete all of its instances, as far as known.
	RightsMissing
	// CloudRefused is a group that its cloud refuses to report, such as with an expired credential.
	CloudRefused
	// Refused is a group with another fault, in its spec or in the nodes that it selects.
	Refused
)

// Acceptance is what the condition of one group says.
type Acceptance struct {
	State State
	// Reason is the reason of the condition. Message is why the group is not accepted; it is empty for an accepted
	// group.
	Reason, Message string

	isCurrent bool
}

// FromGroup returns the acceptance of a group.
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

// OwnsNodes reports whether the group owns the nodes that it selects. A group with a fault in its spec or selector owns
// none.
func (a Acceptance) OwnsNodes() bool {
	return a.State != Refused || !slices.Contains([]string{v1alpha1.InvalidSpec, v1alpha1.SelectsControlPlane, v1alpha1.OverlapsGroup}, a.Reason)
}

// MayRetire reports whether nodes of the group may be retired. With missing rights, the rights for the instance are
// checked later. Call IsObserved first to know whether a manager has observed the group.
func (a Acceptance) MayRetire() bool {
	return a.State == NotObserved || a.State == Accepted || a.State == RightsMissing
}

// CanTrustNotFound reports whether the cloud's answer that an instance of the group is gone counts (I7). A credential of
// another project does not find the group or its instances. Once the Node is deleted, only a refusal of the cloud
// counts against it: the group may be deleted with its last instance.
func (a Acceptance) CanTrustNotFound(nodeDeleted bool) bool {
	return a.MayRetire() || nodeDeleted && a.State != CloudRefused
}
