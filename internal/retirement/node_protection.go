package retirement

import (
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
)

// HeldBy is the one of a Node's annotations by which somebody asks for it to be left alone, or empty.
func HeldBy(annotations map[string]string, created, now time.Time) string {
	by, _ := noderules.Policy{}.ProtectedBy(&noderules.Facts{Protections: drainability.OfNode(annotations, created)}, now)
	return by.Key
}

// leftAlone ends the retirement of a node that somebody asks to leave alone, be it while it is drained; unless that is
// overridden, or nothing is left to be kept: the machine is gone, or the Node is going.
func (p *passage) leftAlone() error {
	now := time.Now()
	if p.node == nil || p.rt.Status.MachineGone || p.nodeGoing() || p.overridden(now) {
		return nil
	}
	if by := HeldBy(p.node.Annotations, p.node.CreationTimestamp, now); by != "" {
		return end(ProtectedNode, "the Node's annotation %s asks to leave it alone; take it off, or set spec.overrideProtection", by)
	}
	return nil
}

// sayOverridden tells of the override that is in force, where it is made use of: once by this process, however often its
// drain is begun anew or its machine's deletion asked for.
func (p *passage) sayOverridden() {
	if p.rt.Spec.OverrideProtection != nil && p.c.known.override(p.rt) {
		p.c.events.overridden(p.rt)
	}
}
