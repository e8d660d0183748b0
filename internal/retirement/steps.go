package retirement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/observe"
)

// step is one step of a retirement. It returns nil if it is done, now or in an earlier reconcile. It returns a
// *waitError if it is not done yet, and an *endError if the retirement ends. After any other error the step is retried.
type step struct {
	name string
	run  func(*retirementScope, context.Context) error
}

// steps are in the order of execution.
var steps = []step{
	{"fetch", (*retirementScope).fetchNode},
	{"capture", (*retirementScope).captureTarget},
	{"await", (*retirementScope).awaitInstanceGoneAfterNotice},
	{"admit", (*retirementScope).awaitAdmissionOrEnd},
	{"cordon", (*retirementScope).cordonNode},
	{"drain", (*retirementScope).drainNode},
	{"detach", (*retirementScope).awaitVolumeDetach},
	{"delete-node", (*retirementScope).deleteNode},
	{"delete-instance", (*retirementScope).deleteInstance},
	{"verify", (*retirementScope).verifyNodeAndInstanceGone},
}

// retirementScope holds the state of one reconcile of one retirement.
type retirementScope struct {
	controller  *Controller
	rt          *v1alpha1.NodeRetirement
	savedStatus v1alpha1.NodeRetirementStatus // as last read or written
	log         *slog.Logger

	// node is the retirement's Node; nil if it does not exist.
	node *kubeapi.Node
	// sameNamedNode is another Node with the same name.
	sameNamedNode *kubeapi.Node
	// group is nil for a node without a NodeGroup.
	group    *v1alpha1.NodeGroup
	provider cloud.Provider
	// capturedInstance is the instance if this reconcile has captured it.
	capturedInstance *cloud.Instance
	// isNodeLive is true if node was not read from the cache.
	isNodeLive bool
	// isRecordConfirmed is true if a write or a live read has confirmed the cached record.
	isRecordConfirmed bool
	// unsavedPhases are the reached phases that are not saved yet.
	unsavedPhases []v1alpha1.Phase
	// podsListedAt is when a drain of this process requested the list that had no pods to remove.
	podsListedAt time.Time
	// isInstanceGone is true if this reconcile found that the instance does not exist.
	isInstanceGone bool
	// retirements are all NodeRetirements as this reconcile has read them.
	retirements   *v1alpha1.NodeRetirementList
	retirementsAt time.Time
}

func (c *Controller) newScope(rt *v1alpha1.NodeRetirement) *retirementScope {
	return &retirementScope{
		controller: c, rt: rt, savedStatus: *rt.Status.DeepCopy(),
		log: c.options.Log.With("retirement", rt.Name, "node", rt.Spec.NodeName),
	}
}

// runSteps runs the steps in order until one is not done.
func (p *retirementScope) runSteps(ctx context.Context) (reconcile.Result, error) {
	if controllerutil.AddFinalizer(p.rt, Finalizer) {
		if err := p.controller.options.Client.Update(ctx, p.rt); err != nil {
			return requeueOnConflict(err)
		}
		p.controller.expectations.recordWrite(p.rt)
		p.savedStatus, p.isRecordConfirmed = *p.rt.Status.DeepCopy(), true
	}
	for _, s := range steps {
		err := s.run(p, ctx)
		p.controller.options.Metrics.recordStepResult(s.name, err)
		if err != nil {
			return p.endOrRequeueOnStepError(ctx, s, err)
		}
	}
	return p.finishRetirement(ctx, v1alpha1.Succeeded, nil)
}

// endOrRequeueOnStepError handles the first step that is not done.
func (p *retirementScope) endOrRequeueOnStepError(ctx context.Context, s step, err error) (reconcile.Result, error) {
	var endErr *endError
	switch {
	case errors.As(err, &endErr) && p.isEndDelayedByNodeDeletion(endErr):
		err = newBlocked(p.controller.options.Intervals.Poll, endErr.reasons...)
	case errors.As(err, &endErr):
		return p.endEarly(ctx, endErr.reasons)
	case cloud.IsThrottled(err):
		err = newTemporarilyBlocked(max(cloud.RetryDelay(err), time.Second), newReason(CloudBusy, "", "%s", err))
	case cloud.RefusalOf(err) != "": // such as a missing permission, which may be granted
		err = newBlocked(p.controller.options.Intervals.Poll, newReason(CloudRefused, "", "%s", err))
	case apierrors.IsConflict(err):
		return requeueOnConflict(err)
	}
	w := asWaitError(err)
	if w == nil {
		p.log.Warn("step failed, will retry", "step", s.name, "err", err)
		p.recordWaitState(ReadFailed, fmt.Sprintf("%s: %s", s.name, err), []v1alpha1.RetirementReason{newReason(ReadFailed, "", "%s: %s", s.name, err)})
		return reconcile.Result{}, errors.Join(err, p.saveStatusIfChanged(ctx))
	}
	code := ""
	if len(w.reasons) > 0 {
		code = w.reasons[0].Code
	}
	if p.recordWaitState(code, w.message, w.reasons) && code != "" && !w.noEvent {
		p.controller.events.recordBlocked(p.rt, code, w.message)
	}
	if err := p.saveStatusIfChanged(ctx); err != nil {
		return requeueOnConflict(err)
	}
	return reconcile.Result{RequeueAfter: max(w.after, time.Millisecond)}, nil
}

// recordWaitState records in the status what the retirement waits for. It reports whether that has changed.
func (p *retirementScope) recordWaitState(code, message string, reasons []v1alpha1.RetirementReason) (obstacleChanged bool) {
	status := &p.rt.Status
	if status.Phase == "" {
		status.Phase = v1alpha1.Pending
	}
	status.Message = observe.ClipChars(message, maxMessage)
	status.Reasons = reasons[:min(len(reasons), maxReasons)]
	before := "" // the previous obstacle; the condition is overwritten below
	if c := meta.FindStatusCondition(status.Conditions, v1alpha1.RetirementBlocked); c != nil && c.Status == metav1.ConditionTrue {
		before = c.Reason
	}
	switch {
	case code != "":
		p.setCondition(v1alpha1.RetirementBlocked, metav1.ConditionTrue, code, message)
	case before != "":
		p.setCondition(v1alpha1.RetirementBlocked, metav1.ConditionFalse, unblockedReason, "")
	}
	return before != code
}

func (p *retirementScope) setCondition(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&p.rt.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: observe.ClipChars(message, maxMessage), ObservedGeneration: p.rt.Generation,
	})
}

// saveStatusIfChanged writes the status if it has changed. If another client has changed the record, it returns a conflict.
func (p *retirementScope) saveStatusIfChanged(ctx context.Context) error {
	p.rt.Status.ObservedGeneration = p.rt.Generation
	if equality.Semantic.DeepEqual(p.rt.Status, p.savedStatus) {
		return nil
	}
	if err := p.controller.options.Client.Status().Update(ctx, p.rt); err != nil {
		return fmt.Errorf("updating the status: %w", err)
	}
	p.controller.expectations.recordWrite(p.rt)
	p.savedStatus, p.isRecordConfirmed = *p.rt.Status.DeepCopy(), true
	for _, phase := range p.unsavedPhases {
		p.log.Info("phase reached", "phase", phase, "message", p.rt.Status.Message)
		p.controller.options.Metrics.recordPhase(p.rt, phase)
		if phase == v1alpha1.Cordoned {
			p.controller.events.recordCordoned(p.rt)
		}
	}
	p.unsavedPhases = nil
	return nil
}

// confirmRetirementUnchanged returns an error if the NodeRetirement has changed or was cancelled. It is called before a
// request that cannot be undone. If this reconcile has written the NodeRetirement, that write has shown that it was
// unchanged. Otherwise it is read from the API server.
func (p *retirementScope) confirmRetirementUnchanged(ctx context.Context) error {
	if p.isRecordConfirmed {
		return nil
	}
	live := &v1alpha1.NodeRetirement{}
	err := p.controller.options.LiveReader.Get(ctx, client.ObjectKeyFromObject(p.rt), live)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("NodeRetirement %s: %w", p.rt.Name, err)
	case err != nil || live.ResourceVersion != p.rt.ResourceVersion:
		return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("noderetirements").GroupResource(), p.rt.Name,
			errors.New("it has changed since it was read"))
	}
	p.isRecordConfirmed = true
	return nil
}

// phaseOrder has the phases in their order.
var phaseOrder = []v1alpha1.Phase{
	"", v1alpha1.Pending, v1alpha1.Cordoned, v1alpha1.Draining, v1alpha1.Drained, v1alpha1.NodeDeleted,
	v1alpha1.InstanceDeleted, v1alpha1.Succeeded,
}

// hasReached reports whether the retirement has reached a phase.
func (p *retirementScope) hasReached(phase v1alpha1.Phase) bool {
	return slices.Index(phaseOrder, p.rt.Status.Phase) >= slices.Index(phaseOrder, phase)
}

// isNodeGonePhase reports whether the Node is known to be deleted in the phase.
func isNodeGonePhase(phase v1alpha1.Phase) bool {
	return slices.Index(phaseOrder, phase) >= slices.Index(phaseOrder, v1alpha1.NodeDeleted)
}

// savePhase sets the phase and saves the status.
func (p *retirementScope) savePhase(ctx context.Context, phase v1alpha1.Phase, at **metav1.Time, condition, message string) error {
	p.setPhase(phase, at, condition, message, nil)
	return p.saveStatusIfChanged(ctx)
}

// setPhase sets the phase, and the next save of the status writes it. Use it only if, after a crash, the next process
// can find out that the phase is reached. Otherwise use savePhase.
func (p *retirementScope) setPhase(phase v1alpha1.Phase, at **metav1.Time, condition, message string, reasons []v1alpha1.RetirementReason) {
	now := metav1.Now().Rfc3339Copy()
	p.rt.Status.Phase = phase
	if *at == nil {
		*at = &now
	}
	p.rt.Status.Message, p.rt.Status.Reasons = observe.ClipChars(message, maxMessage), reasons[:min(len(reasons), maxReasons)]
	if condition != "" {
		p.setCondition(condition, metav1.ConditionTrue, string(phase), message)
	}
	if meta.IsStatusConditionTrue(p.rt.Status.Conditions, v1alpha1.RetirementBlocked) {
		p.setCondition(v1alpha1.RetirementBlocked, metav1.ConditionFalse, unblockedReason, "")
	}
	p.unsavedPhases = append(p.unsavedPhases, phase)
}

// endEarly ends a retirement early. The result is Refused if the node is unchanged, Aborted if the node could be
// restored, and Failed otherwise.
func (p *retirementScope) endEarly(ctx context.Context, reasons []v1alpha1.RetirementReason) (reconcile.Result, error) {
	p.controller.drains.stopAndWait(p.rt.Name)
	phase := v1alpha1.Refused
	switch {
	case p.hasReached(v1alpha1.NodeDeleted), p.isNodeDeleting():
		phase = v1alpha1.Failed
	case meta.IsStatusConditionTrue(p.rt.Status.Conditions, v1alpha1.RetirementAdmitted):
		phase = v1alpha1.Aborted
		p.deleteLeftRequests(ctx)
		err := p.restoreNode(ctx)
		if err == nil && !p.rt.DeletionTimestamp.IsZero() {
			err = p.restartCooldowns(ctx)
		}
		if err != nil {
			return p.recordRestoreFailed(ctx, reasons, err)
		}
	}
	return p.finishRetirement(ctx, phase, reasons)
}

// recordRestoreFailed records in the status why the node has to be restored, and why the restore has failed.
func (p *retirementScope) recordRestoreFailed(ctx context.Context, why []v1alpha1.RetirementReason, err error) (reconcile.Result, error) {
	if kubeapi.IsConflict(err) {
		return reconcile.Result{}, err
	}
	message := fmt.Sprintf("cannot restore the node, retrying: %s. It must be restored: %s", err, joinReasons(why))
	all := append([]v1alpha1.RetirementReason{newReason(RestoreFailed, "", "cannot restore the node, retrying: %s", err)}, why...)
	if p.recordWaitState(RestoreFailed, message, all) {
		p.controller.events.recordBlocked(p.rt, RestoreFailed, message)
	}
	return reconcile.Result{}, errors.Join(err, p.saveStatusIfChanged(ctx))
}

// pendingRestoreReasons returns why the node has to be restored, if an earlier attempt to restore it has failed.
// Otherwise it returns an empty list.
func pendingRestoreReasons(rt *v1alpha1.NodeRetirement) []v1alpha1.RetirementReason {
	if r := rt.Status.Reasons; len(r) > 0 && r[0].Code == RestoreFailed {
		return r[1:]
	}
	return nil
}

func (p *retirementScope) finishRetirement(ctx context.Context, phase v1alpha1.Phase, reasons []v1alpha1.RetirementReason) (
	reconcile.Result, error,
) {
	status, message := metav1.ConditionFalse, joinReasons(reasons)
	code := string(phase)
	if len(reasons) > 0 {
		code = reasons[0].Code
	}
	switch phase {
	case v1alpha1.Succeeded:
		status, message = metav1.ConditionTrue, p.successMessage()
	case v1alpha1.Failed:
		message = p.failureMessage(message)
	}
	p.setCondition(v1alpha1.RetirementSucceeded, status, code, message)
	p.setPhase(phase, &p.rt.Status.Times.Finished, "", message, reasons)
	if err := p.saveStatusIfChanged(ctx); err != nil {
		return requeueOnConflict(err)
	}
	p.controller.options.Metrics.recordFinished(p.rt, phase, code)
	p.controller.events.recordFinished(p.rt, phase, code, message)
	return p.controller.deleteAfterRetention(ctx, p.rt)
}

// cancelOrContinue handles the deletion of a NodeRetirement by a user. If the node can be restored, it restores the node and ends
// the retirement. Otherwise the retirement continues, because nobody would delete the instance, and the NodeRetirement
// disappears at its end.
func (p *retirementScope) cancelOrContinue(ctx context.Context) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(p.rt, Finalizer) {
		return reconcile.Result{}, nil // nothing has started
	}
	node, err := p.controller.options.API.GetNode(ctx, p.rt.Spec.NodeName)
	if err != nil && !kubeapi.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	ours := node != nil && p.rt.Status.Captured != nil && node.UID == string(p.rt.Status.Captured.NodeUID)
	// From Drained on it is unknown whether we deleted the Node.
	if p.hasReached(v1alpha1.NodeDeleted) || p.isNodeDeleting() || p.hasReached(v1alpha1.Drained) && (!ours || node.DeletionTimestamp != nil) {
		return p.runSteps(ctx)
	}
	if ours {
		p.node, p.isNodeLive = node, true
	}
	message := "cancelled: its NodeRetirement was deleted"
	if p.rt.Spec.Notice != nil {
		message += "; the record is kept until its notice ends or the Node is deleted, so that the notice creates no new one"
	}
	return p.endEarly(ctx, []v1alpha1.RetirementReason{newReason(Cancelled, "", "%s", message)})
}

func (p *retirementScope) restoreNode(ctx context.Context) error {
	if p.rt.Status.Captured == nil || p.rt.Status.Captured.NodeUID == "" {
		return nil
	}
	keeper, err := p.newKeeper()
	if err != nil {
		return err
	}
	keeper.ObserveNode(p.node)
	_, err = keeper.RemoveClaim(ctx, CordonOwner(p.rt))
	switch {
	case kubeapi.IsNotFound(err), cordon.IsReplacedError(err):
		return nil // the Node does not exist any more
	case cordon.IsUnreadableError(err):
		p.log.Error("the cordon claim on the node is invalid, and is kept", "err", err)
		return nil
	case cordon.IsConditionsError(err) && kubeapi.IsForbidden(err): // the claim lists them, and StaleCordonCleaner removes them (I3)
		p.log.Warn("the node is restored without its conditions, which are removed later", "err", err)
		return nil
	}
	return err
}

func (p *retirementScope) newKeeper() (*cordon.ClaimWriter, error) {
	return cordon.NewClaimWriter(p.controller.options.API, p.rt.Spec.NodeName, string(p.rt.Status.Captured.NodeUID))
}

// removeFinalizer removes the finalizer, so that the API server may delete the NodeRetirement.
func (c *Controller) removeFinalizer(ctx context.Context, rt *v1alpha1.NodeRetirement) error {
	if !controllerutil.RemoveFinalizer(rt, Finalizer) {
		return nil
	}
	err := c.options.Client.Update(ctx, rt)
	if err == nil {
		c.expectations.recordWrite(rt)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
