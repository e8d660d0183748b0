package node

import (
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// The rules against retiring a node. A retirement that is under way sets Deleting itself.
const (
	BeingRemoved = "being-removed"
	ControlPlane = "control-plane"
	Virtual      = "virtual"
	Protected    = "protected"
)

// Verdict is a rule that refuses to retire a node.
type Verdict struct {
	Rule string
	// Text says why, with the node as its subject.
	Text string
	// Remedy says what would lift the refusal; empty if nothing simple would.
	Remedy string
}

// Policy says which protections do not count.
type Policy struct {
	// Override is that no annotation protects the node.
	Override bool
	// Lifted is the key of the one annotation that does not.
	Lifted string
}

// Judge returns every rule that refuses to retire the node; none if it may be retired.
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
		all = append(all, Verdict{Rule: Virtual, Text: "is a virtual node, which no instance is behind"})
	}
	return all
}

// ProtectedBy returns the first protection in force that the policy does not lift.
func (p Policy) ProtectedBy(f *Facts, now time.Time) (drainability.Protection, bool) {
	for _, protection := range f.Protections {
		if !p.Override && protection.Key != p.Lifted && protection.InForce(now) {
			return protection, true
		}
	}
	return drainability.Protection{}, false
}
