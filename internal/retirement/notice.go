package retirement

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/report"
)

// awaitInstanceGoneAfterNotice waits until the instance of a node with a notice is gone. The cloud must not find the
// instance, and the Node must not be Ready (invariant I7). Meanwhile the agent drains the node. If the notice ends and
// the instance still runs, the retirement ends.
func (p *retirementScope) awaitInstanceGoneAfterNotice(ctx context.Context) error {
	ref := p.rt.Spec.Notice
	if ref == nil || p.rt.Status.InstanceGone || p.isAdmitted() {
		return nil
	}
	if err := p.endIfOtherRetirementStarted(ctx); err != nil {
		return err
	}
	if gone, err := p.confirmInstanceGone(ctx); err != nil || gone {
		return err
	}
	if p.node == nil && p.rt.Status.Captured.NodeUID != "" {
		return p.endIfInstanceRuns(ctx, ref)
	}
	if p.node != nil && isReady(p.node) && !report.MayBeActive(p.node.Annotations, ref.Source, ref.ID) {
		return newEnd(NoticeOver, "the notice has ended, and the instance still runs")
	}
	return p.newInstanceGoneWait(ref)
}

func (p *retirementScope) newInstanceGoneWait(ref *v1alpha1.NoticeReference) error {
	return newWait(p.controller.options.Intervals.Poll, "%s %s (%s): waiting until the instance is gone; its agent drains the node", ref.Source, ref.Type, ref.ID)
}

// endIfInstanceRuns ends the retirement if another client has deleted the Node and the instance still runs. The notice
// was recorded only on the Node, so it is unknown whether the notice has ended.
func (p *retirementScope) endIfInstanceRuns(ctx context.Context, ref *v1alpha1.NoticeReference) error {
	instance, err := p.readAndConfirmInstance(ctx, p.rt.Status.Captured.ProviderID)
	switch {
	case cloud.IsNotFound(err), err == nil && instance.State == cloud.Deleting:
		return p.newInstanceGoneWait(ref)
	case err != nil:
		return err
	}
	return newEnd(BeingRemoved, "another client has deleted the Node, and its instance still runs")
}

// endIfOtherRetirementStarted ends this retirement for a notice if another retirement of the node has started.
func (p *retirementScope) endIfOtherRetirementStarted(ctx context.Context) error {
	o, err := p.findOtherRetirement(ctx, IsRemovingNode)
	if err != nil || o == nil {
		return err
	}
	return newEnd(AlreadyRetiring, "the NodeRetirement %s has already started", o.Name)
}

// awaitAdmissionOrEnd admits a retirement that a user or a rule has requested. If it cannot be admitted now and the
// node also has a retirement for a notice, it ends this one. Otherwise it could wait until the instance is gone, and
// then the retirement for the notice does the cleanup.
func (p *retirementScope) awaitAdmissionOrEnd(ctx context.Context) error {
	if p.rt.Spec.Notice != nil || p.isAdmitted() {
		return p.awaitAdmission(ctx)
	}
	var cached v1alpha1.NodeRetirementList // enough to find none
	if err := p.controller.options.Client.List(ctx, &cached, client.MatchingFields{NodeNameField: p.rt.Spec.NodeName}); err != nil {
		return fmt.Errorf("listing NodeRetirements: %w", err)
	}
	if i := slices.IndexFunc(cached.Items, p.isActiveNoticeRetirement); i >= 0 {
		return newEnd(AlreadyRetiring, "the NodeRetirement %s of the cloud's notice cleans up after the node", cached.Items[i].Name)
	}
	err := p.awaitAdmission(ctx)
	if w := asWaitError(err); w == nil || len(w.reasons) == 0 {
		return err
	}
	o, readErr := p.findOtherRetirement(ctx, func(o *v1alpha1.NodeRetirement) bool {
		return !o.Status.Phase.IsFinal() && isAwaitingInstanceGone(o) && o.DeletionTimestamp.IsZero()
	})
	switch {
	case readErr != nil:
		return readErr
	case o != nil:
		return newEnd(AlreadyRetiring, "the NodeRetirement %s waits until the cloud removes the instance, and this one cannot start: %s",
			o.Name, err)
	}
	return err
}

// isActiveNoticeRetirement reports whether o is a retirement of the same node, is for a notice, and has started.
func (p *retirementScope) isActiveNoticeRetirement(o v1alpha1.NodeRetirement) bool {
	return p.isSameNode(&o) && o.Spec.Notice != nil && IsRemovingNode(&o)
}

// isSameNode reports whether o is another retirement of this Node, and not of a Node that had its name before.
func (p *retirementScope) isSameNode(o *v1alpha1.NodeRetirement) bool {
	return o.Spec.NodeName == p.rt.Spec.NodeName && o.UID != p.rt.UID && MayTargetNode(o, p.rt.Status.Captured.NodeUID)
}

// MayTargetNode reports whether a retirement with the name of a Node may retire the Node with this UID. It does not if it
// retires an earlier Node of the same name. An unknown UID may be any.
func MayTargetNode(rt *v1alpha1.NodeRetirement, uid types.UID) bool {
	target := targetNodeUID(rt)
	return target == "" || uid == "" || target == uid
}

// targetNodeUID returns the UID of the retirement's Node, or "" if it is unknown. Before the capture, it is the UID in the spec.
func targetNodeUID(rt *v1alpha1.NodeRetirement) types.UID {
	if captured := rt.Status.Captured; captured != nil {
		return captured.NodeUID
	}
	return rt.Spec.NodeUID
}

// isNoticeOnNode reports whether the notice of the retirement is still recorded on its Node. As long as it is, the
// NodeRetirement must not be deleted. A new NodeRetirement would be created for the same notice, without the
// cancellation or the replacement of this one.
func (c *Controller) isNoticeOnNode(ctx context.Context, rt *v1alpha1.NodeRetirement) (onNode bool, err error) {
	ref := rt.Spec.Notice
	if ref == nil {
		return false, nil
	}
	node, err := c.options.API.GetNode(ctx, rt.Spec.NodeName)
	switch {
	case kubeapi.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	return node.UID == string(targetNodeUID(rt)) && report.HasRecord(node.Annotations, ref.Source, ref.ID), nil
}

// isAwaitingInstanceGone reports whether the retirement is for a notice and only waits until its instance is gone. Such
// a retirement blocks no other retirement of the node.
func isAwaitingInstanceGone(rt *v1alpha1.NodeRetirement) bool {
	return rt.Spec.Notice != nil && !rt.Status.InstanceGone && !IsInFlight(rt)
}

// IsRemovingNode reports whether the retirement is removing its node now: it is in flight, or about to clean up after an
// instance that is gone.
func IsRemovingNode(rt *v1alpha1.NodeRetirement) bool {
	return IsInFlight(rt) || rt.Status.InstanceGone && !rt.Status.Phase.IsFinal()
}

// EarlyEndCode returns the reason code of a retirement that ended early, or "".
func EarlyEndCode(rt *v1alpha1.NodeRetirement) string {
	if !rt.Status.Phase.IsFinal() || rt.Status.Phase == v1alpha1.Succeeded || len(rt.Status.Reasons) == 0 {
		return ""
	}
	return rt.Status.Reasons[0].Code
}
