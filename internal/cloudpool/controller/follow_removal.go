package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// TerminationFailedPrefix starts the detail of a machine that its server does not terminate.
const TerminationFailedPrefix = "failed to terminate machine "

// updateRemovingMachines updates the machines that are leaving.
func (s *updateScope) updateRemovingMachines(ctx context.Context) error {
	for i := 0; i < len(s.update.Status.Machines); i++ { // follow may drop one
		m := &s.update.Status.Machines[i]
		if m.State != v1alpha1.MachineRemoving {
			continue
		}
		follow := s.followRetirement
		if m.Retirement == "" {
			follow = s.followMachineDeletion
		}
		if err := follow(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// markRefused records that a machine stays, and the reason.
func markRefused(m *v1alpha1.PoolMachine, format string, a ...any) {
	m.State, m.Reason = v1alpha1.MachineRefused, fmt.Sprintf(format, a...)
}

// findInPoolOrMarkRemoved reads the pool and reports whether the machine is present. If it is not, it marks the machine as left. The
// observation must be newer than the removal. After Pace.Trouble an older one is accepted, because the server's clock may be
// wrong.
func (s *updateScope) findInPoolOrMarkRemoved(ctx context.Context, m *v1alpha1.PoolMachine) (pool api.Pool, there bool, err error) {
	pool, err = s.opts.Backend.Pool(ctx)
	if err != nil {
		return pool, false, NewBackendFailure("reading the pool", err)
	}
	there = s.findLiveMachine(&pool, m.ID) != nil
	if !there && (pool.Timestamp.After(m.Since.Time) || time.Since(m.Since.Time) > s.opts.Timeouts.FailureTolerance) {
		m.State, m.Reason = v1alpha1.MachineRemoved, ""
	}
	return pool, there, nil
}

// followMachineDeletion follows the deletion of a machine without a node. It requests a deletion that was recorded but not
// accepted. It reports a deletion that failed or does not start in time.
func (s *updateScope) followMachineDeletion(ctx context.Context, m *v1alpha1.PoolMachine) error {
	pool, there, err := s.findInPoolOrMarkRemoved(ctx, m)
	switch {
	case err != nil || !there:
		return err
	case m.Operation == nil:
		return s.deleteMachineWithoutNode(ctx, m, &pool)
	}
	s.update.Status.Message = fmt.Sprintf("machine %s: the termination was accepted at %s but has not started", m.ID, m.Since.Format(time.RFC3339))
	provider, _ := s.opts.Backend.Provider()
	status, err := provider.Status(ctx, cloud.Operation{ID: m.Operation.ID, Started: m.Operation.Started.Time})
	reason := ""
	switch {
	case err == nil && status.Done && status.Err != nil:
		reason = status.Err.Error()
	case time.Since(m.Since.Time) > s.opts.Timeouts.Termination:
		reason = fmt.Sprintf("it still exists %s after the termination was accepted", s.opts.Timeouts.Termination)
	case err != nil && !cloud.IsThrottled(err) && cloud.RefusalOf(err) == "": // a machine without a cloud ID has no operation status
		return NewBackendFailure("reading the status of the termination of machine "+m.ID, err)
	default:
		return nil
	}
	if s.update.Spec.Type == v1alpha1.SetPoolSize {
		return newOutcome(BackendUnavailable, TerminationFailedPrefix+"%s: %s", m.ID, reason)
	}
	markRefused(m, TerminationFailedPrefix+"%s: %s", m.ID, reason)
	return nil
}

// followRetirement follows a machine's NodeRetirement. Every wait has a timeout.
func (s *updateScope) followRetirement(ctx context.Context, m *v1alpha1.PoolMachine) error {
	rt, err := s.opts.Cluster.getRetirement(ctx, m.Retirement)
	switch {
	case err != nil:
		return err
	case rt == nil && !m.Created && !m.Adopted: // it was never created, and the machine is dropped later
		return nil
	case rt == nil: // users may delete a retirement that has succeeded
		_, there, err := s.findInPoolOrMarkRemoved(ctx, m)
		if there {
			markRefused(m, "its NodeRetirement was deleted, which cancels it")
		}
		return err
	}
	m.Created, m.Phase = true, rt.Status.Phase
	s.recordDeletionRequest(m, rt)
	s.update.Status.Message = fmt.Sprintf("%s: %s", m.Node, rt.Status.Message)
	code, message := "", rt.Status.Message
	if blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked); blocked != nil && blocked.Status == metav1.ConditionTrue {
		code, message = blocked.Reason, blocked.Message
	}
	switch {
	case rt.Status.Phase == v1alpha1.Succeeded:
		m.State, m.Reason = v1alpha1.MachineRemoved, ""
	case rt.Status.Phase.IsFinal():
		markRefused(m, "NodeRetirement %s was %s: %s", rt.Name, strings.ToLower(string(rt.Status.Phase)), rt.Status.Message)
	case rt.Status.Phase == "":
		return s.cancelIfNoManager(ctx, m, rt)
	case hasNotStarted(rt):
		return s.cancelIfNotStartedInTime(ctx, m, rt, code, message)
	default:
		return s.checkRetirementProgress(ctx, m, rt, code, message)
	}
	return nil
}

// recordDeletionRequest records whether the machine's cloud was asked to delete it since the update started.
func (s *updateScope) recordDeletionRequest(m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement) {
	if operation := rt.Status.Operation; operation != nil && (!m.Adopted || operation.Started.After(s.update.Status.StartedAt.Time)) {
		m.DeletionRequested = true
	}
}

// cancelIfNoManager cancels a retirement that no manager has observed within Pace.Trouble. No manager runs, or its selector does
// not match the retirement.
func (s *updateScope) cancelIfNoManager(ctx context.Context, m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement) error {
	s.update.Status.Message = fmt.Sprintf("%s: NodeRetirement %s waits for a manager", m.Node, rt.Name)
	switch {
	case s.timers.trackStateDuration("trouble of "+m.ID, "no manager") <= s.opts.Timeouts.FailureTolerance:
		return nil
	case m.Adopted:
		markRefused(m, "NodeRetirement %s, which this update did not create, waits for a manager", rt.Name)
		return nil
	}
	if err := s.saveAndCancelRetirement(ctx, rt.Name); err != nil {
		return err
	}
	markRefused(m, "NodeRetirement %s with the labels %q was cancelled: no manager has observed it within %s: want a running manager "+
		"with a --selector that matches the labels", rt.Name, labels.FormatLabels(rt.Labels), s.opts.Timeouts.FailureTolerance)
	return newOutcome(ClusterUnavailable, "%s", m.Reason)
}

// saveAndCancelRetirement deletes a retirement after a write of the status. A process that has fallen behind gets a conflict and
// cancels nothing.
func (s *updateScope) saveAndCancelRetirement(ctx context.Context, name string) error {
	if err := s.saveStatus(ctx); err != nil {
		return err
	}
	return s.opts.Cluster.deleteRetirement(ctx, name)
}

// cancelIfNotStartedInTime cancels a retirement that does not start in time, so that another machine can be removed. An adopted
// retirement continues, but the update stops following it.
func (s *updateScope) cancelIfNotStartedInTime(ctx context.Context, m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement, code, message string) error {
	waited := s.timers.trackStateDuration("stage of "+m.ID, retirementProgressKey(rt)) // independent of the reason
	reason := "its NodeGroup does not allow the removal"
	switch {
	case m.Adopted && time.Since(m.Since.Time) > s.opts.Timeouts.RetirementStart:
		markRefused(m, "NodeRetirement %s, which this update did not create, waits: %s", rt.Name, message)
		return nil
	case m.Adopted || waited <= s.opts.Timeouts.RetirementStart:
		return nil
	case code == "": // for example it waits for a notice
		reason = "its NodeRetirement has not started"
	case isCloudReason(code):
		reason = "its cloud does not allow the removal"
	}
	if err := s.saveAndCancelRetirement(ctx, rt.Name); err != nil {
		return err
	}
	markRefused(m, "%s: %s", reason, message)
	return nil
}

func isCloudReason(code string) bool {
	return code == retirement.CloudFailed || code == retirement.CloudRefused || code == retirement.CloudBusy || code == retirement.ReadFailed
}

// checkRetirementProgress follows a retirement that has started. A machine counts as left once its node is gone and its pool no
// longer lists it, even if the cloud is still deleting it. If the cloud fails, the client gets an error and the retirement
// continues. The update stops waiting if nothing changes in time. A drain gets the drain time of its group first.
func (s *updateScope) checkRetirementProgress(ctx context.Context, m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement, code, message string) error {
	cloudFailure := "" // different reasons of the cloud count as one
	if isCloudReason(code) {
		cloudFailure = retirement.CloudFailed
	}
	what := "its NodeRetirement makes no progress"
	if isNodeGone(rt) {
		what = "its node is drained and deleted"
	}
	report := func(r Result) error {
		return newOutcome(r, TerminationFailedPrefix+"%s: %s; %s, and NodeRetirement %s keeps retrying", m.ID, message, what, rt.Name)
	}
	// The server answers that the machine is not in its pool, although it lists it. The retirement retries.
	if s.update.Spec.Type != v1alpha1.SetPoolSize && isNodeGone(rt) && cloudFailure != "" && api.ContainsNotMember(message) {
		return report(NotFound)
	}
	failing, stalled := s.timers.trackStateDuration("trouble of "+m.ID, cloudFailure), s.timers.trackStateDuration("stage of "+m.ID, retirementProgressKey(rt))
	if isNodeGone(rt) && stalled > s.opts.Timeouts.FailureTolerance {
		if _, _, err := s.findInPoolOrMarkRemoved(ctx, m); err != nil || m.State == v1alpha1.MachineRemoved {
			return err
		}
	}
	timedOut, fails := stalled > s.opts.Timeouts.Termination, cloudFailure != "" && min(failing, stalled) > s.opts.Timeouts.FailureTolerance
	if !timedOut && !fails {
		return nil
	}
	exceeded, err := s.hasExceededDrainTime(ctx, rt)
	switch {
	case err != nil || !exceeded: // a drain may wait for its cloud as long as for its pods
		return err
	case timedOut:
		return s.endUpdateOfStalledRetirement(ctx, m, rt, code, message)
	}
	return report(BackendUnavailable)
}

// retirementProgressKey returns a string that changes when a retirement makes progress. Messages and repeated attempts are not
// progress.
func retirementProgressKey(rt *v1alpha1.NodeRetirement) string {
	s := &rt.Status
	phase, gone, stopping := s.Phase, int32(0), int32(0)
	if isNodeGone(rt) { // a machine that was gone may reappear
		phase = v1alpha1.NodeDeleted
	}
	if s.Drain != nil {
		gone, stopping = s.Drain.Gone, s.Drain.Stopping
	}
	return fmt.Sprint(phase, hasDeletedNode(rt), s.InstanceGone, s.Operation != nil, gone, stopping)
}

// hasDeletedNode reports whether a retirement has deleted its Node. Finalizers may still keep the object.
func hasDeletedNode(rt *v1alpha1.NodeRetirement) bool {
	return meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementNodeDeleted) != nil
}

// isNodeGone reports whether the Node of a retirement no longer exists, so that the retirement cannot be undone.
func isNodeGone(rt *v1alpha1.NodeRetirement) bool {
	return rt.Status.Phase == v1alpha1.NodeDeleted || rt.Status.Phase == v1alpha1.InstanceDeleted
}

// hasExceededDrainTime reports whether a retirement has no drain time left. It is true outside of a drain. The manager ends
// a drain after the drain time of its group.
func (s *updateScope) hasExceededDrainTime(ctx context.Context, rt *v1alpha1.NodeRetirement) (exceeded bool, err error) {
	began := rt.Status.Times.Draining
	if rt.Status.Phase != v1alpha1.Draining || began == nil {
		return true, nil
	}
	var group *v1alpha1.NodeGroup
	if is := rt.Status.Captured; is != nil && is.Group != "" {
		group = &v1alpha1.NodeGroup{}
		err := s.opts.Cluster.getCached(ctx, client.ObjectKey{Name: is.Group}, group)
		switch {
		case apierrors.IsNotFound(err):
			group = nil
		case err != nil:
			return false, NewClusterFailure("reading NodeGroup "+is.Group, err)
		}
	}
	return time.Since(began.Time) > retirement.GroupDrainTimeout(group)+s.opts.Timeouts.Termination, nil
}

// endUpdateOfStalledRetirement ends an update when its retirement makes no progress. It cancels the retirement if its node can be
// restored, unless the update adopted it.
func (s *updateScope) endUpdateOfStalledRetirement(ctx context.Context, m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement, code, message string) error {
	origin, result := "", ClusterUnavailable
	if m.Adopted {
		origin = ", which this update did not create,"
	}
	reason := fmt.Sprintf("NodeRetirement %s%s of machine %s is in the phase %s and has made no progress for %s: %s", rt.Name, origin, m.ID, rt.Status.Phase,
		s.opts.Timeouts.Termination, message)
	if isCloudReason(code) || code == retirement.Disagreement || rt.Status.Operation != nil {
		result = BackendUnavailable
	}
	restorable, err := s.opts.Cluster.canRestoreNode(ctx, rt)
	if restorable && !m.Adopted && err == nil {
		restorable, err = s.tryCancelRetirement(ctx, m, rt)
	}
	switch {
	case err != nil:
		return err
	case restorable && m.Adopted && s.update.Spec.Type != v1alpha1.SetPoolSize:
		markRefused(m, "%s; it is not cancelled, because another client created it", reason)
	case restorable && !m.Adopted:
		markRefused(m, "%s; it was cancelled, and the machine stays", reason)
	default:
		m.Reason = reason + "; it continues without this update"
		if s.update.Status.Launch {
			m.Reason += ", and no replacement is launched: set the desired size once it is gone"
			s.update.Status.Launch = false
		}
	}
	return newOutcome(result, "%s", m.Reason)
}

// tryCancelRetirement cancels a retirement and reports whether its machine stays. The manager may have deleted the node in the
// meantime.
func (s *updateScope) tryCancelRetirement(ctx context.Context, m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement) (machineStays bool, err error) {
	if err := s.saveStatus(ctx); err != nil {
		return false, err
	}
	if err := s.cancelAndAwaitRestore(ctx, m.ID, rt.Name); err != nil && ToResult(err) != NotPossible {
		return false, err
	}
	current := &v1alpha1.NodeRetirement{}
	switch err := s.opts.Cluster.objects.Get(ctx, client.ObjectKeyFromObject(rt), current); {
	case apierrors.IsNotFound(err):
		current = rt
	case err != nil:
		return false, NewClusterFailure("reading a NodeRetirement", err)
	}
	s.recordDeletionRequest(m, current)
	return s.opts.Cluster.canRestoreNode(ctx, current)
}

// canRestoreNode reports whether cancelling a retirement would restore its node: the node exists and is not being deleted.
func (c *Cluster) canRestoreNode(ctx context.Context, rt *v1alpha1.NodeRetirement) (restorable bool, err error) {
	if isNodeGone(rt) || hasDeletedNode(rt) {
		return false, nil
	}
	nodes, err := c.ListNodesLive(ctx)
	uid := rt.Spec.NodeUID
	if rt.Status.Captured != nil {
		uid = rt.Status.Captured.NodeUID
	}
	return slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		return n.Name == rt.Spec.NodeName && (uid == "" || n.UID == uid) && n.DeletionTimestamp == nil
	}), err
}
