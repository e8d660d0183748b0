package retirement

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/report"
)

// await leaves a node that its cloud takes away to its agent, until the machine is really gone (I7: its cloud says so, and
// its Node is not Ready). A machine that lives on when its notice is over is not retired.
func (p *passage) await(ctx context.Context) error {
	of := p.rt.Spec.Notice
	if of == nil || p.rt.Status.MachineGone || p.admitted() {
		return nil
	}
	if err := p.takenOver(ctx); err != nil {
		return err
	}
	if gone, err := p.machineGone(ctx); err != nil || gone {
		return err
	}
	if p.node == nil && p.rt.Status.Captured.NodeUID != "" {
		return p.nodeless(ctx, of)
	}
	if p.node != nil && ready(p.node) && !report.Stands(p.node.Annotations, of.Source, of.ID) {
		return end(NoticeOver, "the notice is over, and the machine lives")
	}
	return p.untilGone(of)
}

func (p *passage) untilGone(of *v1alpha1.NoticeReference) error {
	return wait(p.c.o.Pace.Poll, "%s %s (%s): waiting until the machine is gone; its agent takes care of the pods", of.Source, of.Type, of.ID)
}

// nodeless ends the wait for the machine of a Node that somebody has deleted, unless it is on its way out: whether the notice still
// stands was written on the Node, and with it nobody would ever be told that it is over.
func (p *passage) nodeless(ctx context.Context, of *v1alpha1.NoticeReference) error {
	instance, err := p.confirmed(ctx, p.rt.Status.Captured.ProviderID)
	switch {
	case cloud.IsNotFound(err), err == nil && instance.State == cloud.Deleting:
		return p.untilGone(of)
	case err != nil:
		return err
	}
	return end(BeingRemoved, "somebody else has deleted the Node, and its machine, which is there, is left to them")
}

// takenOver ends a retirement that still waits for its machine's end when somebody's own of the node has begun.
func (p *passage) takenOver(ctx context.Context) error {
	o, err := p.findOther(ctx, UnderWay)
	if err != nil || o == nil {
		return err
	}
	return end(AlreadyRetiring, "the NodeRetirement %s does not wait until the machine is gone", o.Name)
}

// admitOrYield has somebody's own retirement of a node that its cloud takes away begin now or not at all: what holds it up may do
// so until the machine is gone, and the notice's is there to see to that.
func (p *passage) admitOrYield(ctx context.Context) error {
	if p.rt.Spec.Notice != nil || p.admitted() {
		return p.admit(ctx)
	}
	var cached v1alpha1.NodeRetirementList // good enough to say no
	if err := p.c.o.Client.List(ctx, &cached, client.MatchingFields{NodeNameField: p.rt.Spec.NodeName}); err != nil {
		return fmt.Errorf("other retirements: %w", err)
	}
	if i := slices.IndexFunc(cached.Items, p.goesBefore); i >= 0 {
		return end(AlreadyRetiring, "the NodeRetirement %s, which its cloud's notice asked for, cleans up after the node", cached.Items[i].Name)
	}
	err := p.admit(ctx)
	if w := isWaiting(err); w == nil || len(w.reasons) == 0 {
		return err
	}
	o, unread := p.findOther(ctx, func(o *v1alpha1.NodeRetirement) bool {
		return p.sameNode(o) && !o.Status.Phase.Finished() && awaiting(o) && o.DeletionTimestamp.IsZero()
	})
	switch {
	case unread != nil:
		return unread
	case o != nil:
		return end(AlreadyRetiring, "the NodeRetirement %s waits until the cloud takes the machine away, and this one cannot begin: %s",
			o.Name, err)
	}
	return err
}

// goesBefore reports a notice's retirement of the node that has begun.
func (p *passage) goesBefore(o v1alpha1.NodeRetirement) bool {
	return p.sameNode(&o) && o.Spec.Notice != nil && UnderWay(&o)
}

// sameNode reports another retirement that is about this Node, and not about one that had its name.
func (p *passage) sameNode(o *v1alpha1.NodeRetirement) bool {
	return o.UID != p.rt.UID && (o.Spec.NodeUID == "" || o.Spec.NodeUID == p.rt.Status.Captured.NodeUID)
}

// stands reports the record of a notice that is on its Node still. Were it gone, another would be made, which knows nothing of the
// machine that this one has ordered, nor that somebody has called it off.
func (c *Controller) stands(ctx context.Context, rt *v1alpha1.NodeRetirement) (bool, error) {
	of := rt.Spec.Notice
	if of == nil {
		return false, nil
	}
	uid := rt.Spec.NodeUID
	if captured := rt.Status.Captured; captured != nil {
		uid = captured.NodeUID
	}
	node, err := c.o.API.GetNode(ctx, rt.Spec.NodeName)
	switch {
	case kubeapi.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	return node.UID == string(uid) && report.Remains(node.Annotations, of.Source, of.ID), nil
}

// awaiting reports a retirement that waits until its machine is gone, and holds nobody up.
func awaiting(rt *v1alpha1.NodeRetirement) bool {
	return rt.Spec.Notice != nil && !rt.Status.MachineGone && !InFlight(rt)
}

// UnderWay reports a retirement that takes its node away now: it is in flight, or about to clean up after a machine that is gone.
func UnderWay(rt *v1alpha1.NodeRetirement) bool {
	return InFlight(rt) || rt.Status.MachineGone && !rt.Status.Phase.Finished()
}

// EndedBy is the code of why a retirement ended early; "" for one that did not.
func EndedBy(rt *v1alpha1.NodeRetirement) string {
	if !rt.Status.Phase.Finished() || rt.Status.Phase == v1alpha1.Succeeded || len(rt.Status.Reasons) == 0 {
		return ""
	}
	return rt.Status.Reasons[0].Code
}
