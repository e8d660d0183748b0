package node

import (
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// The rules against retiring a node. A running retirement sets Deleting itself.
const (
	BeingRemoved = "being-removed"
	ControlPlane = "control-plane"
	Virtual      = "virtual"
	Protected    = "protected"
)

// Verdict is a rule that forbids the retirement of a node.
type Verdict struct {
	Rule string
	// Text is the reason as a predicate of the node, such as "is being deleted".
	Text string
	// Remedy says how to remove the obstacle; empty if that is not simple.
	Remedy string
}

// Policy says which protections are ignored.
type Policy struct {
	// Override ignores all protecting annotations.
	Override bool
	// Lifted is the key of one annotation that is ignored.
	Lifted string
}

// Judge returns every rule that forbids the retirement of the node; none if it may be retired.
func (p Policy) Judge(f *Facts, now time.Time) []Verdict {
	var all []Verdict
	switch {
	case len(f.RemovedBy) > 0:
		all = append(all, Verdict{Rule: BeingRemoved, Text: "is being removed by " + strings.Join(f.RemovedBy, ", ")})
	case f.Deleting:
		all = append(all, Verdict{Rule: BeingRemoved, Text: "is being deleted"})
	}
	if by, ok := p.ProtectedBy(f, now); ok {
		all = append(all, Verdict{Protected, "is protected by annotation " + by.Key, "remove the annotation"})
	}
	if f.ControlPlane != "" {
		all = append(all, Verdict{Rule: ControlPlane, Text: "is part of the control plane (" + f.ControlPlane + ")"})
	}
	if f.Virtual {
		all = append(all, Verdict{Rule: Virtual, Text: "is a virtual node without an instance"})
	}
	return all
}

// ProtectedBy returns the first active protection that the policy does not ignore.
func (p Policy) ProtectedBy(f *Facts, now time.Time) (drainability.Protection, bool) {
	for _, protection := range f.Protections {
		if !p.Override && protection.Key != p.Lifted && protection.InForce(now) {
			return protection, true
		}
	}
	return drainability.Protection{}, false
}
