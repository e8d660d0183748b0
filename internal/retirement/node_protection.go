package retirement

import (
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
)

// FindProtectingAnnotation returns the key of the annotation that protects the Node, or "".
func FindProtectingAnnotation(annotations map[string]string, created, now time.Time) string {
	by, _ := noderules.Policy{}.FindActiveProtection(&noderules.Facts{Protections: drainability.NodeProtections(annotations, created)}, now)
	return by.Key
}

// checkNodeNotProtected ends the retirement of a protected node, also during the drain. It does nothing if the protection
// is overridden, if the instance is gone, or if the Node is being deleted.
func (p *retirementScope) checkNodeNotProtected() error {
	now := time.Now()
	if p.node == nil || p.rt.Status.InstanceGone || p.isNodeDeleting() || p.isProtectionOverridden(now) {
		return nil
	}
	if by := FindProtectingAnnotation(p.node.Annotations, p.node.CreationTimestamp, now); by != "" {
		return newEnd(ProtectedNode, "the Node is protected by its annotation %s: remove it, or set spec.overrideProtection", by)
	}
	return nil
}

// announceOverride writes an Event when an override of protections is used. It does so once per process, even if the
// drain or the deletion is repeated.
func (p *retirementScope) announceOverride() {
	if p.rt.Spec.OverrideProtection != nil && p.controller.expectations.recordOverride(p.rt) {
		p.controller.events.recordOverride(p.rt)
	}
}
