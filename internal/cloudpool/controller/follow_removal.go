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

// TerminationFailedPrefix is the start of the error detail if the pool's server or cloud does not terminate a machine.
const TerminationFailedPrefix = "failed to terminate machine "

// updateRemovingMachines checks the progress of each machine that is being removed, and updates its state in the
// PoolUpdate.
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

// markRefused records in the PoolUpdate that the machine is not removed, and the reason.
func markRefused(m *v1alpha1.PoolMachine, format string, a ...any) {
	m.State, m.Reason = v1alpha1.MachineRefused, fmt.Sprintf(format, a...)
}

// findInPoolOrMarkRemoved reads the pool and reports whether it still lists the machine. If it does not, the machine is
// recorded as removed. The pool's timestamp must then be later than the start of the removal. After
// Timeouts.FailureTolerance any timestamp is accepted, because the server's clock may be wrong.
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

// followMachineDeletion checks the deletion of a machine without a node. If the deletion was recorded but not accepted
// by the cloud, it requests the deletion again. If the deletion has failed or did not start in time, it returns or
// records the failure.
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

// followRetirement checks the progress of a machine's NodeRetirement. Each wait for progress ends after a timeout.
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

// recordDeletionRequest records whether the retirement has requested the machine's deletion from its cloud. A request
// from before the start of the update does not count.
func (s *updateScope) recordDeletionRequest(m *v1alpha1.PoolMachine, rt *v1alpha1.NodeRetirement) {
	if operation := rt.Status.Operation; operation != nil && (!m.Adopted || operation.Started.After(s.update.Status.StartedAt.Time)) {
		m.DeletionRequested = true
	}
}

// cancelIfNoManager cancels a retirement that no manager has observed within Timeouts.FailureTolerance. Either no
// manager runs, or the manager's selector does not match the retirement's labels.
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

// saveAndCancelRetirement writes the status of the PoolUpdate, and then deletes the retirement. If another process has
// changed the PoolUpdate, the write returns a conflict and the retirement is not deleted.
func (s *updateScope) saveAndCancelRetirement(ctx context.Context, name string) error {
	if err := s.saveStatus(ctx); err != nil {
		return err
	}
	return s.opts.Cluster.deleteRetirement(ctx, name)
}

// cancelIfNotStartedInTime cancels a retirement that has not started within Timeouts.RetirementStart, so that the
// update can remove another machine. If the update did not create the retirement, the retirement continues and the
// update ignores it.
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

// checkRetirementProgress checks a retirement that has started. If the node is gone and the pool no longer lists the
// machine, the machine is recorded as removed. The cloud may still be deleting it then. If the cloud fails for too
// long, the client gets an error and the retirement continues. Without progress in time, the update ends. During a
// drain, this time begins after the drain time of the group.
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
	stalled := s.timers.trackStateDuration("stage of "+m.ID, retirementProgressKey(rt))
	failing := time.Duration(0)
	if code != retirement.CloudBusy { // a wait, for example for an observation of the pool, neither begins nor ends a failure
		failing = s.timers.trackStateDuration("trouble of "+m.ID, cloudFailure)
	}
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

// retirementProgressKey returns a string that changes when the retirement makes progress. A new message or a repeated
// attempt does not change it.
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

// hasDeletedNode reports whether the retirement has deleted its Node. The Node object may still exist because of
// finalizers.
func hasDeletedNode(rt *v1alpha1.NodeRetirement) bool {
	return meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementNodeDeleted) != nil
}

// isNodeGone reports whether the retirement's Node no longer exists. Such a retirement cannot be cancelled.
func isNodeGone(rt *v1alpha1.NodeRetirement) bool {
	return rt.Status.Phase == v1alpha1.NodeDeleted || rt.Status.Phase == v1alpha1.InstanceDeleted
}

// hasExceededDrainTime reports whether the drain takes longer than the drain time of its group allows. It returns true
// if no drain is running.
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

// endUpdateOfStalledRetirement ends an update with a retirement that makes no progress. If the update has created the
// retirement and the node can be restored, it cancels the retirement.
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

// tryCancelRetirement cancels a retirement, and reports whether its machine stays. The machine does not stay if the
// manager has deleted the node in the meantime.
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
