package node

import (
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// The names of the rules that forbid the retirement of a node. BeingRemoved also applies if the Node is being deleted.
// A running retirement deletes its Node itself, so the rule applies to the Node then too.
const (
	BeingRemoved = "being-removed"
	ControlPlane = "control-plane"
	Virtual      = "virtual"
	Protected    = "protected"
)

// Refusal is a rule that forbids the retirement of a node.
type Refusal struct {
	Rule string
	// Text is the reason as a predicate of the node, such as "is being deleted".
	Text string
	// Remedy says how to remove the obstacle; empty if that is not simple.
	Remedy string
}

// Policy says which rules and annotations do not prevent a retirement.
type Policy struct {
	// IgnoreProtections ignores all protecting annotations.
	IgnoreProtections bool
	// IgnoredAnnotation is the key of one annotation that is ignored.
	IgnoredAnnotation string
}

// FindRefusals returns every rule that forbids the retirement of the node. It returns none if the node may be retired.
func (p Policy) FindRefusals(f *Facts, now time.Time) []Refusal {
	var all []Refusal
	switch {
	case len(f.RemovedBy) > 0:
		all = append(all, Refusal{Rule: BeingRemoved, Text: "is being removed by " + strings.Join(f.RemovedBy, ", ")})
	case f.Deleting:
		all = append(all, Refusal{Rule: BeingRemoved, Text: "is being deleted"})
	case f.BeingRemovedMark != "":
		all = append(all, Refusal{Rule: BeingRemoved, Text: f.BeingRemovedMark})
	}
	if by, ok := p.FindActiveProtection(f, now); ok {
		all = append(all, Refusal{Protected, "is protected by annotation " + by.Key, "remove the annotation"})
	}
	if f.ControlPlane != "" {
		all = append(all, Refusal{Rule: ControlPlane, Text: "is part of the control plane (" + f.ControlPlane + ")"})
	}
	if f.Virtual {
		all = append(all, Refusal{Rule: Virtual, Text: "is a virtual node without an instance"})
	}
	return all
}

// FindActiveProtection returns the first active protection that the policy does not ignore.
func (p Policy) FindActiveProtection(f *Facts, now time.Time) (protection drainability.Protection, found bool) {
	for _, protection = range f.Protections {
		if !p.IgnoreProtections && protection.Key != p.IgnoredAnnotation && protection.IsActive(now) {
			return protection, true
		}
	}
	return drainability.Protection{}, false
}
