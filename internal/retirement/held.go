package retirement

import (
	"time"

	"github.com/slipway-dev/slipway/internal/protection"
)

// HeldBy is the one of a Node's annotations by which somebody asks for it to be left alone, or empty.
func HeldBy(annotations map[string]string, created, now time.Time) string {
	hold, _ := protection.Now(protection.OfNode(annotations, created), now)
	return hold.Key
}

// leftAlone refuses a node that somebody asks to leave alone, unless that is overridden.
func (p *passage) leftAlone() error {
	now := time.Now()
	if p.node == nil || p.overridden(now) {
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
