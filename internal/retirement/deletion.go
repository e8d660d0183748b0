package retirement

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// deleteNode deletes the Node object. The node cannot be restored after that.
func (p *retirementScope) deleteNode(ctx context.Context) error {
	if p.hasReached(v1alpha1.NodeDeleted) {
		return nil
	}
	if p.node != nil {
		if err := p.checkNodeDeletable(ctx); err != nil {
			return err
		}
	}
	if p.node != nil {
		if err := p.confirmRetirementUnchanged(ctx); err != nil {
			return err
		}
		// The precondition is the version of the Node that fetchNode checked for other tools (I6).
		gone, err := p.controller.options.API.DeleteNode(ctx, p.node.Name, p.node.UID, p.node.ResourceVersion)
		switch {
		case kubeapi.IsNotFound(err):
		case kubeapi.IsConflict(err):
			return newWait(requeueSoon, "the Node changed after it was read: retrying")
		case err != nil:
			return fmt.Errorf("deleting the Node: %w", err)
		}
		p.controller.expectations.recordNodeDeleted(p.node.UID)
		p.recordNodeDeleting()
		if !gone {
			if err := p.awaitNodeGone(ctx); err != nil {
				return err
			}
		}
	}
	return p.savePhase(ctx, v1alpha1.NodeDeleted, &p.rt.Status.Times.NodeDeleted, v1alpha1.RetirementNodeDeleted, "the Node is deleted")
}

// checkNodeDeletable makes the last checks before the deletion of the Node. They concern other tools (invariant I6),
// the instance (I4 and I7), the node's protection, and its pods (I1).
func (p *retirementScope) checkNodeDeletable(ctx context.Context) error {
	if err := checkNoOtherRemovingTool(p.node); err != nil {
		return err
	}
	if p.node.DeletionTimestamp != nil { // possibly by us before a crash; it cannot be undone
		p.recordNodeDeleting()
	}
	if p.rt.Status.InstanceGone {
		return p.recheckInstanceGone(ctx)
	}
	instance, err := p.readAndConfirmInstance(ctx, p.rt.Status.Captured.ProviderID)
	switch {
	case cloud.IsNotFound(err) && isReady(p.node):
		return p.newCloudNodeMismatch(p.rt.Status.Captured.ProviderID)
	case err != nil && !cloud.IsNotFound(err):
		return err
	case err == nil:
		if err := p.checkNodeNotProtected(); err != nil {
			return err
		}
		if !p.isNodeDeleting() { // another Node on the instance is found again before its deletion
			if err := p.checkNoOtherNodeOnInstance(ctx, instance); err != nil {
				return err
			}
		}
	}
	if time.Since(p.podsListedAt) < podListMaxAge {
		return nil
	}
	on, err := p.listAndClassifyPods(ctx)
	switch {
	case err != nil:
		return err
	case len(on.protected) > 0:
		return &endError{on.protected}
	case len(on.toEvict) > 0: // bound without the scheduler
		p.rt.Status.Phase = v1alpha1.Draining
		return newWait(requeueSoon, "%d new pods are on the node: draining again", len(on.toEvict))
	}
	return nil
}

// newCloudNodeMismatch returns the error if the cloud does not find the instance of a Ready Node (invariant I7).
func (p *retirementScope) newCloudNodeMismatch(providerID string) error {
	return newBlocked(p.controller.options.Intervals.Poll, newReason(Disagreement, "instance "+providerID,
		"the cloud %s does not find it, but the Node is Ready: check that the cloud's credential sees it", p.provider.Name()))
}

// podListMaxAge is the largest age of a drain's last pod list before the deletion of the Node. An older list is read
// again.
const podListMaxAge = 2 * time.Second

// recordNodeDeleting records that the Node is being deleted. Because of finalizers the deletion may take long.
func (p *retirementScope) recordNodeDeleting() {
	p.setCondition(v1alpha1.RetirementNodeDeleted, metav1.ConditionFalse, deletingReason, "the Node is being deleted")
}

// isNodeDeleting reports whether the Node is being deleted or is gone, so that the node cannot be restored.
func (p *retirementScope) isNodeDeleting() bool {
	return meta.FindStatusCondition(p.rt.Status.Conditions, v1alpha1.RetirementNodeDeleted) != nil
}

// isEndDelayedByNodeDeletion reports whether the retirement must wait instead of ending with this error. It must while
// the Node is being deleted. If the retirement ended then, the instance would never be deleted.
func (p *retirementScope) isEndDelayedByNodeDeletion(end *endError) bool {
	if !p.isNodeDeleting() || p.hasReached(v1alpha1.NodeDeleted) || len(end.reasons) == 0 {
		return false
	}
	switch end.reasons[0].Code {
	case ProtectedPod, KeepingPod, DrainTimeout, VolumesAttached:
		return true
	}
	return false
}

func (p *retirementScope) awaitNodeGone(ctx context.Context) error {
	node, err := p.controller.options.API.GetNode(ctx, p.rt.Spec.NodeName)
	switch {
	case kubeapi.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case node.UID != string(p.rt.Status.Captured.NodeUID):
		p.sameNamedNode = node
		return nil
	}
	return newWait(p.controller.options.Intervals.CloudPoll, "the Node is being deleted, and waits for its finalizers (%s): their owners must remove them; "+
		"the retirement cannot be cancelled any more", strings.Join(node.Finalizers, ", "))
}

// deleteInstance requests the deletion of the instance, and polls the cloud until the deletion is done.
func (p *retirementScope) deleteInstance(ctx context.Context) error {
	if p.hasReached(v1alpha1.InstanceDeleted) {
		return nil
	}
	id := p.rt.Status.Captured.ProviderID
	var status cloud.OperationStatus
	var pollErr error
	if p.isDeletionRequested() {
		if status, pollErr = p.pollInstanceDeletion(ctx); asWaitError(pollErr) != nil {
			return pollErr
		}
	}
	instance, err := p.readAndConfirmInstance(ctx, id)
	switch {
	case cloud.IsNotFound(err):
		p.isInstanceGone = true
		p.setPhase(v1alpha1.InstanceDeleted, &p.rt.Status.Times.InstanceDeleted, v1alpha1.RetirementInstanceDeleted, "the instance is deleted", nil)
		return nil
	case err != nil:
		return err
	case p.mayBelongToSameNamedNode(instance) && instance.State != cloud.Deleting && !p.isDeletionRequested():
		return newEnd(NodeReplaced, "the instance %s now belongs to another Node of the same name, with the UID %s: retire that Node "+
			"with its own NodeRetirement", id, p.sameNamedNode.UID)
	case p.rt.Status.InstanceGone && p.rt.Status.Captured.UniqueID == "" && instance.State != cloud.Deleting:
		return newEnd(InstanceRecovered, "the instance %s was gone and exists now: it is kept, because it may be a new one; delete it in its "+
			"cloud if it is not needed", id)
	}
	if p.isDeletionRequested() {
		return p.checkDeletionResult(instance, status, pollErr)
	}
	if at := p.rt.Status.Times.NodeDeleted; instance.State == cloud.Deleting && p.rt.Status.Operation == nil &&
		(p.sameNamedNode != nil || at == nil || !elapsed.HasElapsed(at.Time, time.Now(), otherDeletionWait)) {
		return newWait(p.controller.options.Intervals.CloudPoll, "the instance is being deleted")
	}
	// An instance that is already being deleted is requested too: its cloud may keep it until then.
	return p.requestInstanceDeletion(ctx, instance)
}

// otherDeletionWait is how long deleteInstance waits while another client deletes the instance.
const otherDeletionWait = 10 * time.Minute

// isDeletionRequested reports whether the deletion of the instance was requested and has not failed.
func (p *retirementScope) isDeletionRequested() bool {
	op := p.rt.Status.Operation
	return op != nil && op.RetryAfter == nil
}

// requestInstanceDeletion requests the deletion of the instance. Directly before, it checks that no other Node runs on
// the instance (invariant I4) and that no protected pod is on it (invariant I1).
func (p *retirementScope) requestInstanceDeletion(ctx context.Context, instance cloud.Instance) error {
	var attempts int32
	if op := p.rt.Status.Operation; op != nil {
		attempts = op.Attempts
		if left := elapsed.RemainingWait(op.RetryAfter.Time, time.Now(), maxRetryPause); left > 0 {
			return &waitError{after: left, message: p.rt.Status.Message, reasons: p.rt.Status.Reasons}
		}
	}
	if err := p.confirmRetirementUnchanged(ctx); err != nil {
		return err
	}
	if err := p.checkNoNodeOnInstance(ctx, instance); err != nil {
		return err
	}
	if p.rt.Status.Captured.NodeUID == "" { // no Node has proven that the cluster owns the instance
		if err := p.checkClusterOwnsInstance(ctx, instance); err != nil {
			return err
		}
	}
	if p.sameNamedNode == nil || p.mayBelongToSameNamedNode(instance) { // otherwise the pods are on the instance of the new Node
		if err := p.checkNoProtectedPod(ctx); err != nil {
			return err
		}
	}
	within, cancel := context.WithTimeout(ctx, cloud.ChangeTimeout)
	defer cancel()
	op, err := cloud.Delete(within, p.provider, p.rt.Status.Captured.ProviderID, cloud.DeleteOptions{KeepSize: p.rt.Spec.KeepSize})
	p.controller.options.Metrics.RecordCloudRequest(p.provider.Name(), "Delete", err)
	switch {
	case cloud.IsNotFound(err):
		return newWait(requeueSoon, "the instance is gone")
	case cloud.IsThrottled(err):
		return err // the error has the time of the next try
	case err != nil:
		return p.recordDeletionFailure(attempts+1, err)
	}
	if op.Started.IsZero() {
		op.Started = time.Now()
	}
	p.rt.Status.Operation = &v1alpha1.CloudOperation{ID: op.ID, Started: *toStatusTime(op.Started), Attempts: attempts + 1}
	p.controller.expectations.schedulePoll(p.rt, p.controller.options.Intervals.CloudPoll)
	return newWait(p.controller.options.Intervals.CloudPoll, "the instance is being deleted")
}

// checkNoProtectedPod returns an error if a protected pod is bound to the node (invariant I1).
func (p *retirementScope) checkNoProtectedPod(ctx context.Context) error {
	on, err := p.listAndClassifyPods(ctx)
	if err != nil {
		return err
	}
	if len(on.protected) > 0 {
		return newBlocked(p.controller.options.Intervals.Poll, on.protected...)
	}
	if on.overridden {
		p.announceOverride()
	}
	return nil
}

// pollInstanceDeletion returns the state of the deletion as the cloud reports it, and waits while the deletion is
// running. It sends no request before the next poll is due.
func (p *retirementScope) pollInstanceDeletion(ctx context.Context) (cloud.OperationStatus, error) {
	const message = "the instance is being deleted"
	op, pause := p.rt.Status.Operation, p.controller.options.Intervals.CloudPoll
	if left := p.controller.expectations.timeUntilPoll(p.rt); left > 0 {
		return cloud.OperationStatus{}, newWait(left, message)
	}
	p.controller.expectations.schedulePoll(p.rt, pause)
	if op.ID == "" { // the state of the instance tells it
		return cloud.OperationStatus{}, nil
	}
	within, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	status, err := p.provider.Status(within, cloud.Operation{ID: op.ID, Started: op.Started.Time})
	p.controller.options.Metrics.RecordCloudRequest(p.provider.Name(), "Status", err)
	switch {
	case err != nil:
		return status, fmt.Errorf("reading the deletion of the instance: %w", err)
	case !status.Done:
		pause = status.RetryDelay(pause)
		p.controller.expectations.schedulePoll(p.rt, pause)
		return status, newWait(pause, message)
	}
	return status, nil
}

// checkDeletionResult decides whether the deletion has succeeded, has failed or is still running. It uses the result
// that the cloud reports and the current state of the instance.
func (p *retirementScope) checkDeletionResult(instance cloud.Instance, status cloud.OperationStatus, pollErr error) error {
	op := p.rt.Status.Operation
	if op.ID == "" {
		status.Done = instance.State != cloud.Deleting
	}
	if pollErr != nil {
		return pollErr
	}
	switch {
	case !status.Done:
		return newWait(status.RetryDelay(p.controller.options.Intervals.CloudPoll), "the instance is being deleted")
	case status.Err != nil:
		return p.recordDeletionFailure(op.Attempts, status.Err)
	case instance.State == cloud.Deleting || !elapsed.HasElapsed(op.Started.Time, time.Now(), p.controller.options.Intervals.CloudPoll):
		return newWait(p.controller.options.Intervals.CloudPoll, "the instance is being deleted") // the instance's state lags behind the operation's
	}
	return p.recordDeletionFailure(op.Attempts, fmt.Errorf("the cloud reports the deletion as done, but the instance is %s", instance.State))
}

// recordDeletionFailure records a failed deletion and the time of the next one. The deletion is retried forever,
// because the instance costs money.
func (p *retirementScope) recordDeletionFailure(attempts int32, err error) error {
	code := CloudFailed
	if refusal := cloud.RefusalOf(err); refusal != "" {
		code = CloudRefused
	}
	pause := p.controller.options.Intervals.DeletionRetry << min(attempts-1, 8)
	if pause > maxRetryPause || pause <= 0 {
		pause = maxRetryPause
	}
	now := time.Now()
	p.rt.Status.Operation = &v1alpha1.CloudOperation{
		Started: *toStatusTime(now), Attempts: attempts, RetryAfter: toStatusTime(now.Add(pause)),
	}
	p.controller.events.recordDeletionFailed(p.rt, err, pause)
	return newBlocked(pause, newReason(code, "instance "+p.rt.Status.Captured.ProviderID, "deletion attempt %d failed, retry in %s: %s",
		attempts, pause, err))
}

// verifyNodeAndInstanceGone reads the Node and the instance once more, and returns an error unless both are gone.
func (p *retirementScope) verifyNodeAndInstanceGone(ctx context.Context) error {
	if err := p.awaitNodeGone(ctx); err != nil {
		return err
	}
	if p.isInstanceGone {
		return nil
	}
	instance, err := p.readAndConfirmInstance(ctx, p.rt.Status.Captured.ProviderID)
	switch {
	case cloud.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	p.rt.Status.Phase = v1alpha1.NodeDeleted
	p.rt.Status.Times.InstanceDeleted = nil
	return newWait(requeueSoon, "the instance was gone, but its cloud finds it again (%s)", instance.State)
}

func (p *retirementScope) successMessage() string {
	s := "the Node and its instance are deleted"
	if p.sameNamedNode != nil {
		s += fmt.Sprintf("; another Node of the same name exists, with the UID %s", p.sameNamedNode.UID)
	}
	return s
}

// failureMessage says which steps of a retirement that ends with this reason are done, and which are not.
func (p *retirementScope) failureMessage(reason string) string {
	captured := p.rt.Status.Captured
	if captured == nil { // another client has changed the status
		return reason
	}
	node := "is being deleted"
	if p.hasReached(v1alpha1.NodeDeleted) {
		node = "is deleted"
	}
	instance := "does not delete"
	if p.isDeletionRequested() {
		instance = "has requested the deletion of"
	}
	return fmt.Sprintf("the Node %s, and Slipway %s the instance %s in the cloud %s: %s", node, instance, captured.ProviderID, captured.Provider, reason)
}
