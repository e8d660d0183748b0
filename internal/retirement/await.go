package retirement

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/notice/report"
)

// await leaves a node that its cloud takes away to its agent, until the machine is really gone (I7: its cloud says so, and
// its Node is not Ready). A machine that lives on when its notice is over is not retired.
func (p *passage) await(ctx context.Context) error {
	of := p.rt.Spec.Notice
	if of == nil || p.rt.Status.MachineGone || p.admitted() {
		return nil
	}
	if gone, err := p.machineGone(ctx); err != nil || gone {
		return err
	}
	if err := p.takenOver(ctx); err != nil {
		return err
	}
	if p.node != nil && ready(p.node) && !report.Stands(p.node.Annotations, of.Source, of.ID) {
		return end(NoticeOver, "the notice is over, and the machine lives")
	}
	return wait(p.c.o.Pace.Poll, "%s %s (%s): waiting until the machine is gone; its agent takes care of the pods", of.Source, of.Type, of.ID)
}

// takenOver ends a retirement that still waits for its machine's end when somebody wants the node gone right away.
func (p *passage) takenOver(ctx context.Context) error {
	all, err := p.allRecords(ctx, client.MatchingFields{NodeNameField: p.rt.Spec.NodeName})
	if err != nil {
		return err
	}
	for i := range all {
		o := &all[i]
		if o.UID != p.rt.UID && o.Status.Captured != nil && !o.Status.Phase.Finished() && !awaiting(o) {
			return end(AlreadyRetiring, "the NodeRetirement %s does not wait until the machine is gone", o.Name)
		}
	}
	return nil
}

// awaiting reports a retirement that waits until its machine is gone, and holds nobody up.
func awaiting(rt *v1alpha1.NodeRetirement) bool {
	return rt.Spec.Notice != nil && !rt.Status.MachineGone && !InFlight(rt)
}

// EndedBy is the code of why a retirement ended early; "" for one that did not.
func EndedBy(rt *v1alpha1.NodeRetirement) string {
	if !rt.Status.Phase.Finished() || rt.Status.Phase == v1alpha1.Succeeded || len(rt.Status.Reasons) == 0 {
		return ""
	}
	return rt.Status.Reasons[0].Code
}
