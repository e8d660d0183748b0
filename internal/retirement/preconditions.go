package retirement

import (
	"context"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// stillDue ends a retirement whose reason has ended before it was admitted: a node that is Ready after all is not taken out
// of service for never having been, and a machine that its cloud has is not for being gone. Whoever asked had looked some
// time before, and the retirement may have waited for long since.
func (p *passage) stillDue() error {
	switch {
	case p.admitted():
		return nil
	case p.rt.Spec.Reason == v1alpha1.NeverReady && ready(p.node):
		return end(NodeReady, "the Node is Ready, and was to leave since it had never been")
	case p.rt.Spec.Reason == v1alpha1.MachineGone && p.rt.Status.Captured != nil && !p.rt.Status.MachineGone:
		return end(MachineBack, "the cloud has the machine, and the Node was to leave since it had none")
	}
	return nil
}

// stillDueNow asks once more, on a fresh read of a Node that may have become Ready since this walk began.
func (p *passage) stillDueNow(ctx context.Context) error {
	if p.rt.Spec.Reason != v1alpha1.NeverReady {
		return nil
	}
	if err := p.lookNow(ctx); err != nil {
		return err
	}
	return p.stillDue()
}
