package provisioning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/instances"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

// launchAndAwaitReplies requests all launches at once, and waits for the clouds' answers until the answer timeout. A
// launch that is not answered by then counts as provisioning. So a slow cloud does not delay pods that arrive later.
func (a *Controller) launchAndAwaitReplies(ctx context.Context, groups []*managedGroup, d *plan.Decision, waiting map[placement.PodKey]unschedulablePod) error {
	var errs []error
	for _, g := range groups {
		var launches []plan.Launch
		for _, o := range d.Launches {
			if o.Group == g.name() {
				launches = append(launches, o)
			}
		}
		if len(launches) > 0 {
			errs = append(errs, a.reserveAndRequestLaunches(ctx, g, launches, waiting))
		}
	}
	if len(d.Launches) > 0 {
		a.awaitReplies(ctx, groups, func(m *groupState) bool { return m.unanswered == 0 })
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// reserveAndRequestLaunches records a group's launches and then requests them.
func (a *Controller) reserveAndRequestLaunches(ctx context.Context, g *managedGroup, launches []plan.Launch, waiting map[placement.PodKey]unschedulablePod) error {
	began := time.Now()
	ids := make([]string, len(launches))
	for i, o := range launches {
		ids[i] = g.state.addLaunch(o, began)
	}
	reserved, err := a.reserveLaunches(ctx, g, ids)
	if err != nil {
		for _, id := range ids {
			g.state.dropUnrequested(id)
		}
		return fmt.Errorf("instances were not requested: %w", err)
	}
	for i, o := range launches {
		a.startLaunchRequest(ctx, g, o, reserved[i], began, waiting)
	}
	return nil
}

func (a *Controller) startLaunchRequest(ctx context.Context, g *managedGroup, planned plan.Launch, reserved launch.Reservation, began time.Time, waiting map[placement.PodKey]unschedulablePod) {
	for _, key := range planned.Pods {
		a.options.Metrics.observePodWait(time.Since(waiting[key].since))
	}
	provider, group := a.options.Clouds[g.Group.Spec.Cloud.Provider], g.Group.Spec.Cloud.Group
	order := cloud.LaunchRequest{Count: planned.Count, Template: planned.Template, RetryFailed: min(planned.Count, g.state.tracking.Unmade)}
	g.state.tracking.Unmade -= order.RetryFailed
	a.calls.Go(func() {
		within, cancel := context.WithTimeout(ctx, launch.RequestTimeout(planned.Count))
		defer cancel()
		op, err := reserved.Request(within, provider, group, order)
		a.options.Metrics.observeLaunch(planned, err, time.Since(began))
		a.queueReply(g, err != nil, func(g *managedGroup) { a.recordLaunchAnswer(g, planned, reserved.ID, op, err) })
		if err == nil {
			a.pollOperationUntilDone(ctx, g, planned, reserved.ID, provider, op)
		}
	})
}

// recordLaunchAnswer records the cloud's answer to a launch. A refusal does not make the reconcile fail: the template
// gets a back-off, and the next reconcile uses another template.
func (a *Controller) recordLaunchAnswer(g *managedGroup, o plan.Launch, id string, op cloud.Operation, err error) {
	log := a.options.Log.With("group", o.Group, "template", o.Template, "instances", o.Count, "pods", len(o.Pods), "reasons", o.Reasons)
	if err == nil {
		log.Info("instances are requested")
		g.state.recordLaunchReply(id, launch.Accepted, op.ProviderIDs, time.Now())
		g.state.recordOperation(id, op.ID)
		a.emitLaunched(g, o)
		return
	}
	log.Error("the cloud refused the launch", "err", err, "made", len(op.ProviderIDs))
	answer := launch.Refused
	if launch.BackOffReason(err) == launch.Unclear {
		answer = launch.Lost
	}
	a.reportBackOff(g, g.state.recordRefusalAndPauseReads(o.Template, err, time.Now()))
	g.state.recordLaunchReply(id, answer, op.ProviderIDs, time.Now())
}

// requeue makes the next reconcile start soon.
func (a *Controller) requeue() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// maxConcurrentDeletions is the largest number of deletions per group that run at once. Later reconciles delete the
// remaining instances.
const maxConcurrentDeletions = 10

// startFailedInstanceDeletions starts to delete the instances that Slipway has launched and that will never become
// nodes. It does not wait for the cloud. For an instance with a running deletion it starts no other one.
func (a *Controller) startFailedInstanceDeletions(ctx context.Context, s *clusterCaches, groups []*managedGroup) {
	for _, g := range groups {
		m := g.state
		for _, failed := range m.tracking.FailedWithoutNode {
			if id := failed.Instance.ProviderID; !m.deleting[id] && len(m.deleting) < maxConcurrentDeletions {
				m.deleting[id] = true
				a.startInstanceDeletion(ctx, s, g, failed)
			}
		}
		m.tracking.FailedWithoutNode = nil // the next cloud read finds the rest
	}
}

func (a *Controller) startInstanceDeletion(ctx context.Context, s *clusterCaches, g *managedGroup, failed launch.FailedInstance) {
	a.calls.Go(func() {
		within, cancel := context.WithTimeout(ctx, cloudTimeout)
		defer cancel()
		gone, err := a.deleteInstanceWithoutNode(within, s, g, failed)
		a.queueReply(g, gone, func(g *managedGroup) {
			delete(g.state.deleting, failed.Instance.ProviderID)
			switch {
			case gone:
				a.emitInstanceDeleted(g, failed)
			case err != nil && ctx.Err() == nil:
				g.state.pauseReads(err, time.Now())
				a.options.Log.Error("cannot delete an instance without a Node; retrying", "err", err)
			}
		})
	})
}

// deleteInstanceWithoutNode deletes an instance that has no Node. Before that, it checks again with the API server and
// the cloud that the instance has none (invariants I4 and I7). It reports whether the cloud was asked to delete.
func (a *Controller) deleteInstanceWithoutNode(ctx context.Context, s *clusterCaches, g *managedGroup, failed launch.FailedInstance) (requested bool, err error) {
	provider := a.options.Clouds[g.Group.Spec.Cloud.Provider]
	id := failed.Instance.ProviderID
	// An instance in another state, or another instance with the ID, is evaluated in the next reconcile.
	requested, err = instances.DeleteIfStillWithoutNode(ctx, provider, s.hosts.Read, id, func(i cloud.Instance) bool {
		return i.State == failed.Instance.State && i.State != cloud.Unknown && i.UniqueID == failed.Instance.UniqueID
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("NodeGroup %s: %w", g.name(), err)
	case !requested:
		return false, nil
	}
	a.options.Log.Warn("deleting an instance without a Node", "group", g.name(), "providerID", id, "reason", failed.Reason, "message", failed.Message)
	a.options.Metrics.countDeletion(g.name(), failed.Reason)
	return true, nil
}

// applyScaleDownDecisions requests a retirement for each underutilized node that is due. It cancels its own pending
// retirements that are not wanted any longer. It writes on each underutilized node since when it may be retired. It
// removes this annotation from a node without a decision (invariant I3), unless another manager owns the node.
func (a *Controller) applyScaleDownDecisions(ctx context.Context, cluster *nodegroup.Cluster, groups []*managedGroup, down []plan.NodeDecision) error {
	if down == nil {
		return nil // there was no decision
	}
	var errs []error
	marked := map[string]bool{}
	for i := range down {
		d := &down[i]
		marked[d.Node] = true
		errs = append(errs, a.writeUnderutilizedSinceAnnotation(ctx, d.Subject.Object, d.Since))
		g := findGroup(groups, d.Group)
		switch {
		case d.CancelledRetirement != "":
			errs = append(errs, a.cancelRetirement(ctx, d))
		case d.Verdict == nodegroup.VerdictDue:
			errs = append(errs, a.requestRetirement(ctx, g, d))
		}
		a.emitNodeEventIfChanged(g, d)
	}
	for i := range cluster.Nodes {
		if n := &cluster.Nodes[i]; !marked[n.Name] && cluster.ManagesNode(n, a.options.Selector) {
			errs = append(errs, a.writeUnderutilizedSinceAnnotation(ctx, n, time.Time{}))
		}
	}
	return errors.Join(errs...)
}

func findGroup(groups []*managedGroup, name string) *managedGroup {
	for _, g := range groups {
		if g.name() == name {
			return g
		}
	}
	return nil
}

// writeUnderutilizedSinceAnnotation writes on a Node since when it may be retired, unless the annotation has this
// value. If the Node has changed since it was read, the write fails with a conflict.
func (a *Controller) writeUnderutilizedSinceAnnotation(ctx context.Context, n *corev1.Node, since time.Time) error {
	var value any
	if !since.IsZero() {
		value = since.UTC().Format(time.RFC3339)
	}
	annotations := map[string]any{plan.UnderutilizedSinceAnnotation: value}
	_, isRenamed := n.Annotations[plan.OldSinceAnnotation]
	if isRenamed {
		annotations[plan.OldSinceAnnotation] = nil
	}
	if old, there := n.Annotations[plan.UnderutilizedSinceAnnotation]; !isRenamed && (value == nil && !there || value == old) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": annotations, "uid": n.UID, "resourceVersion": n.ResourceVersion,
	}})
	if err != nil {
		return err
	}
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	err = a.options.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // the next reconcile reads the new Node
		return fmt.Errorf("annotation of node %s: %w", n.Name, err)
	}
	return nil
}

func (a *Controller) cancelRetirement(ctx context.Context, d *plan.NodeDecision) error {
	rt := d.Subject.OpenRetirement()
	err := a.options.Client.Delete(ctx, rt, client.Preconditions{UID: &rt.UID, ResourceVersion: &rt.ResourceVersion})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cancel NodeRetirement %s: %w", rt.Name, err)
	}
	a.options.Log.Info("the retirement is cancelled", "retirement", rt.Name, "node", d.Node, "why", nodegroup.JoinReasons(d.Reasons))
	return nil
}

// requestRetirement creates the NodeRetirement of an underutilized node.
func (a *Controller) requestRetirement(ctx context.Context, g *managedGroup, d *plan.NodeDecision) error {
	n, before := d.Subject.Object, ""
	if last := d.Subject.LastFailedRetirement(); last != nil {
		before = string(last.UID)
	}
	rt := request.New(request.Request{
		Name: request.NewName(n.Name, "underused", n.UID, d.Since.Unix(), before), Labels: g.Group.Labels,
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: n.Name, NodeUID: n.UID, Reason: v1alpha1.Underutilized, RequestedBy: plan.UnderutilizedRequester, Group: d.Group,
		},
	})
	err := a.options.Client.Create(ctx, rt)
	if apierrors.IsAlreadyExists(err) {
		return nil // an earlier reconcile has requested and counted it; the cache does not have it yet
	}
	if err != nil {
		return fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
	}
	a.options.Metrics.countRetirement(d.Group)
	return nil
}
