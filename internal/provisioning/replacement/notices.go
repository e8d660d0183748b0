package replacement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/report"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

// NoticeRetirementReconciler creates a NodeRetirement for each notice that the cloud takes an instance away. It uses the options
// of a Controller.
type NoticeRetirementReconciler struct{ c *Controller }

// requesterName is the requester of the retirements.
const requesterName = "slipway manager"

// Reconcile handles the notices on one Node.
func (n NoticeRetirementReconciler) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	node := &corev1.Node{}
	if err := n.c.options.Client.Get(ctx, r.NamespacedName, node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	reports, problems := report.ReadReports(node.Annotations)
	for _, problem := range problems {
		n.c.options.Log.Warn("cannot parse an agent's record on the Node", "node", node.Name, "err", problem)
	}
	reports = slices.DeleteFunc(reports, func(r report.Report) bool { return !mayRemoveInstance(r.Type) })
	if len(reports) == 0 {
		return reconcile.Result{}, nil
	}
	group, err := n.findOnlyGroup(ctx, node)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case node.Spec.ProviderID == "", group == nil, groupRefusalMessage(group) != "": // its retirements would end at once
		return reconcile.Result{RequeueAfter: n.c.options.Intervals.CloudRead}, nil // no event of the Node reports a change of the group
	}
	release, ok := n.c.noticeSlots.TryAcquire(group.Spec.Cloud.Provider)
	if !ok {
		return reconcile.Result{RequeueAfter: cloud.WorkerRetryDelay}, nil
	}
	defer release()
	pause := time.Duration(0)
	var errs []error
	for _, one := range reports {
		wait, err := n.ensureRetirement(ctx, node, group, one)
		pause, errs = max(pause, wait), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: pause}, nil
}

// mayRemoveInstance reports whether the instance may be gone after a notice of this type.
func mayRemoveInstance(t notice.Type) bool {
	return slices.Contains([]notice.Type{notice.Preempt, notice.Terminate, notice.Reboot, notice.Redeploy}, t)
}

// announcesRemoval reports whether the instance is always gone after a notice of this type.
func announcesRemoval(t notice.Type) bool { return t == notice.Preempt || t == notice.Terminate }

// findOnlyGroup returns the only group that the node belongs to, if the controller acts on it.
func (n NoticeRetirementReconciler) findOnlyGroup(ctx context.Context, node *corev1.Node) (*v1alpha1.NodeGroup, error) {
	groups, err := n.c.options.Groups.List(ctx)
	if err != nil {
		return nil, err
	}
	groups = retirement.FilterOwningGroups(slices.DeleteFunc(groups, func(g v1alpha1.NodeGroup) bool { return !retirement.SelectsNode(&g, node.Labels) }), "")
	if len(groups) != 1 || !n.c.options.Selector.Matches(labels.Set(groups[0].Labels)) {
		return nil, nil //nolint:nilnil // no group is a result
	}
	return &groups[0], nil
}

// ensureRetirement creates the NodeRetirement of a notice if it is missing. For a reboot or redeploy it does so only if the
// instance is gone.
func (n NoticeRetirementReconciler) ensureRetirement(ctx context.Context, node *corev1.Node, g *v1alpha1.NodeGroup, r report.Report) (requeueAfter time.Duration, err error) {
	if !announcesRemoval(r.Type) {
		if disruptionbudget.IsReady(node) {
			return 0, nil // an update of the Node's condition starts another reconcile
		}
		if gone, err := n.isInstanceGone(ctx, node, g); err != nil || !gone {
			return n.c.options.Intervals.CloudRead, err
		}
	}
	var all v1alpha1.NodeRetirementList
	if err := n.c.options.Client.List(ctx, &all, client.MatchingFields{retirement.NodeNameField: node.Name}); err != nil {
		return 0, fmt.Errorf("retirements of node %s: %w", node.Name, err)
	}
	last := findLastRetirementOfNotice(all.Items, node, r)
	if last != nil {
		switch {
		case !last.Status.Phase.IsFinal(): // its end starts no reconcile of the Node, and the notice may be back on the Node by then
			return n.c.options.Intervals.CloudRead, nil
		case !mayNeedAnotherRetirement(last):
			return 0, nil
		}
		if back, err := n.isNoticeStillOnNode(ctx, node, r); err != nil || !back {
			return 0, err
		}
	}
	if slices.ContainsFunc(all.Items, func(rt v1alpha1.NodeRetirement) bool {
		return retirement.MayTargetNode(&rt, node.UID) && retirement.IsRemovingNode(&rt)
	}) { // it must not be replaced
		return n.c.options.Intervals.CloudRead, nil
	}
	rt := newNoticeRetirement(node, g, r, last)
	err = n.c.options.Client.Create(ctx, rt)
	switch {
	case apierrors.IsAlreadyExists(err): // the cache does not have it yet
		return n.c.options.Intervals.CloudRead, nil
	case err != nil:
		return 0, fmt.Errorf("NodeRetirement of node %s for %s %s: %w", node.Name, r.Source, r.Type, err)
	}
	n.c.options.Log.Info("a notice announces that an instance goes away", "node", node.Name, "type", r.Type, "id", r.ID, "retirement", rt.Name)
	return n.c.options.Intervals.CloudRead, nil
}

// isInstanceGone asks the cloud whether the instance is gone. This is the second of two proofs (invariant I7); the
// first is that the Node is not Ready.
func (n NoticeRetirementReconciler) isInstanceGone(ctx context.Context, node *corev1.Node, g *v1alpha1.NodeGroup) (gone bool, err error) {
	provider := n.c.options.Clouds[g.Spec.Cloud.Provider]
	if provider == nil {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	_, err = provider.Instance(ctx, node.Spec.ProviderID)
	n.c.options.ReportCall(provider.Name(), "Instance", err)
	if cloud.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// mayNeedAnotherRetirement reports whether the notice may need another NodeRetirement after this one. It may if this
// one ended because the notice ended, a person retired the node, or the group was not accepted. The notice may return
// or may still be there.
func mayNeedAnotherRetirement(rt *v1alpha1.NodeRetirement) bool {
	switch retirement.EarlyEndCode(rt) {
	case retirement.NoticeOver, retirement.AlreadyRetiring, retirement.GroupNotAccepted:
		return true
	}
	return false
}

// findLastRetirementOfNotice returns the last NodeRetirement of a notice, or nil. It is the one that is not repeatable, or else
// the latest without a successor. The creation times alone do not decide, because they are whole seconds.
func findLastRetirementOfNotice(all []v1alpha1.NodeRetirement, node *corev1.Node, r report.Report) (last *v1alpha1.NodeRetirement) {
	for i := range all {
		rt := &all[i]
		if of := rt.Spec.Notice; of == nil || rt.Spec.NodeUID != node.UID || of.Source != r.Source || of.ID != r.ID {
			continue
		}
		if !mayNeedAnotherRetirement(rt) {
			return rt
		}
		next := noticeRetirementName(node, r, rt)
		if slices.ContainsFunc(all, func(o v1alpha1.NodeRetirement) bool { return o.Name == next }) {
			continue
		}
		if last == nil || last.Status.Times.Finished.Before(rt.Status.Times.Finished) {
			last = rt
		}
	}
	return last
}

// isNoticeStillOnNode reports whether the notice is on the Node now. It reads without a cache, because a cached Node may
// still have a notice that has ended.
func (n NoticeRetirementReconciler) isNoticeStillOnNode(ctx context.Context, node *corev1.Node, r report.Report) (onNode bool, err error) {
	is := &corev1.Node{}
	if err := n.c.options.APIReader.Get(ctx, client.ObjectKeyFromObject(node), is); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return is.UID == node.UID && report.MayBeActive(is.Annotations, r.Source, r.ID), nil
}

// newNoticeRetirement returns the NodeRetirement for a notice.
func newNoticeRetirement(node *corev1.Node, g *v1alpha1.NodeGroup, r report.Report, before *v1alpha1.NodeRetirement) *v1alpha1.NodeRetirement {
	return request.New(request.Request{
		Name: noticeRetirementName(node, r, before), Labels: g.Labels,
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: node.Name, NodeUID: node.UID, ProviderID: node.Spec.ProviderID, Group: g.Name,
			Reason: v1alpha1.Notice, RequestedBy: requesterName,
			Notice: &v1alpha1.NoticeReference{Source: r.Source, ID: r.ID, Type: string(r.Type)},
		},
	})
}

// noticeRetirementName returns the name of a notice's retirement. It is derived from the Node's UID, the notice's ID and the
// previous retirement, so that the retirement is created once.
func noticeRetirementName(node *corev1.Node, r report.Report, before *v1alpha1.NodeRetirement) string {
	previous := types.UID("")
	if before != nil {
		previous = before.UID
	}
	return request.NewName(node.Name, "notice", node.UID, r.Source, r.ID, previous)
}
