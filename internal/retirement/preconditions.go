package retirement

import (
	"context"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// checkReasonStillHolds ends a retirement that is not admitted yet if the reason for it is not true any longer. For
// example, a node that was never Ready is Ready now, or the cloud has an instance that was gone. Much time may have
// passed since the retirement was requested.
func (p *retirementScope) checkReasonStillHolds() error {
	switch {
	case p.isAdmitted():
		return nil
	case p.rt.Spec.Reason == v1alpha1.NeverReady && isReady(p.node):
		return newEnd(NodeReady, "the Node is Ready now: the retirement was requested because it was never Ready")
	case p.rt.Spec.Reason == v1alpha1.InstanceGone && p.rt.Status.Captured != nil && !p.rt.Status.InstanceGone:
		return newEnd(InstanceRecovered, "the cloud finds the instance now: the retirement was requested because the instance was gone")
	}
	return nil
}

// recheckReasonLive checks the reason against a live read of the Node, which may have become Ready since this reconcile
// started.
func (p *retirementScope) recheckReasonLive(ctx context.Context) error {
	if p.rt.Spec.Reason != v1alpha1.NeverReady {
		return nil
	}
	if err := p.fetchNodeLive(ctx); err != nil {
		return err
	}
	return p.checkReasonStillHolds()
}
