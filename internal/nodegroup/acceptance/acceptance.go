// Package acceptance reads the condition Accepted of a NodeGroup. It is the one place that says what follows from it.
package acceptance

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// State is what a manager has found about a group.
type State int

// The states.
const (
	// NotObserved is a group that no manager has looked at.
	NotObserved State = iota
	// CloudUnread is a group whose cloud has not answered since the group was last changed.
	CloudUnread
	Accepted
	// RightsMissing is a group whose credential may not delete all of its instances, as far as its cloud tells.
	RightsMissing
	// CloudRefused is a group that its cloud refuses to tell of, as with an expired credential.
	CloudRefused
	// Refused is a group with another fault, in its spec or in what it selects.
	Refused
)

// Acceptance is what the condition of one group says.
type Acceptance struct {
	State State
	// Reason is the condition's, and Message says why the group is not accepted; empty for one that is.
	Reason, Message string

	isCurrent bool
}

// Of returns the acceptance of a group.
func Of(g *v1alpha1.NodeGroup) Acceptance {
	c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupAccepted)
	if c == nil {
		return Acceptance{Message: "no manager has looked at it yet"}
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
		return CloudUnread
	case c.Reason == v1alpha1.CloudRefused:
		return CloudRefused
	}
	return Refused
}

// IsObserved reports whether the group's status reflects its current generation.
func (a Acceptance) IsObserved() bool { return a.isCurrent }

// OwnsNodes reports whether the nodes that the group selects are its. A group whose spec or selector is at fault owns none.
func (a Acceptance) OwnsNodes() bool {
	return a.State != Refused || !slices.Contains([]string{v1alpha1.InvalidSpec, v1alpha1.SelectsControlPlane, v1alpha1.OverlapsGroup}, a.Reason)
}

// MayRetire reports whether nodes of the group may be retired. Where rights are missing the instance's own are checked later.
// Callers that need to know that a manager has looked at the group call IsObserved first.
func (a Acceptance) MayRetire() bool {
	return a.State == NotObserved || a.State == Accepted || a.State == RightsMissing
}

// TrustsNotFound reports whether the cloud's word that an instance of the group is gone counts (I7). A credential of another
// project finds neither the group nor its instances. Once the Node is deleted only a refusal counts against the cloud: its
// group may be gone with its last instance.
func (a Acceptance) TrustsNotFound(nodeDeleted bool) bool {
	return a.MayRetire() || nodeDeleted && a.State != CloudRefused
}
