package retirement

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/surge"
)

// drainNode drains the node with package drain. It also detects that the instance disappears during the drain.
func (p *retirementScope) drainNode(ctx context.Context) error {
	if p.hasReached(v1alpha1.Drained) {
		return nil
	}
	if p.isNodeDeleting() && p.node == nil {
		return nil // it was deleted with the pods that had arrived
	}
	if p.rt.Status.InstanceGone {
		return p.awaitPodsDeleted(ctx)
	}
	takesOver := p.hasReached(v1alpha1.Draining)
	if !takesOver {
		if err := p.savePhase(ctx, v1alpha1.Draining, &p.rt.Status.Times.Draining, "", "draining"); err != nil {
			return err
		}
	}
	gone, unknown := p.confirmInstanceGone(ctx)
	if gone {
		if unknown != nil { // the status is not saved
			return unknown
		}
		return newWait(requeueSoon, "the instance is gone")
	}
	if err := p.checkNodeNotProtected(); err != nil {
		return err
	}
	run := p.controller.drains.findMatchingOrStop(p.rt, p.newDrainTerms(time.Now()))
	if run == nil {
		var err error
		if run, err = p.startDrain(ctx, takesOver); err != nil {
			return err
		}
	}
	if run.isDone() {
		return p.evaluateDrainResult(ctx, run)
	}
	going := p.recordDrainProgress(run)
	if unknown != nil { // the drain continues, and ends at its timeout
		return unknown
	}
	return going
}

// confirmInstanceGone checks two proofs that the instance is gone: the Node is not Ready, and the cloud does not find
// the instance (invariant I7). If both are true, it records that the instance is gone and returns true. True with an
// error means that the record was not saved. False with an error means that it is unknown whether the instance is gone.
func (p *retirementScope) confirmInstanceGone(ctx context.Context) (gone bool, err error) {
	if isReady(p.node) {
		return false, nil
	}
	_, err = p.readAndConfirmInstance(ctx, p.rt.Status.Captured.ProviderID)
	if !cloud.IsNotFound(err) {
		return false, err
	}
	if err := p.refetchUnreadyNode(ctx); err != nil || isReady(p.node) {
		return false, err
	}
	p.controller.drains.stopAndWait(p.rt.Name)
	p.rt.Status.InstanceGone = true
	p.recordWaitState("", "the cloud does not find the instance, and the Node is not Ready", nil)
	return true, p.saveStatusIfChanged(ctx)
}

// drainClient is drain.Options.Client of a retirement.
const drainClient = "manager"

// startDrain starts the drain. takesOver says that an earlier process may have left EvictionRequests.
func (p *retirementScope) startDrain(ctx context.Context, takesOver bool) (*drainRun, error) {
	if err := p.confirmRetirementUnchanged(ctx); err != nil {
		return nil, err
	}
	marks, err := p.newPodSelection()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	policy := p.podPolicy(now)
	terms := p.newDrainTerms(now)
	if !terms.overrideUntil.IsZero() {
		p.announceOverride()
	}
	d := p.groupDrainPolicy()
	return p.controller.drains.startDrain(ctx, p.rt, p.controller.options.API, drain.Options{
		Node: p.rt.Spec.NodeName, Policy: &policy, GraceSeconds: d.GraceSeconds,
		AddFacts:         func(f *podrules.Facts, pod *kubeapi.Pod) { marks.AddFacts(f, pod.Namespace, pod.Labels) },
		TimeLimits:       drain.TimeLimits{TimeoutAt: p.drainTimeoutAt()},
		EvictionRequests: p.controller.options.EvictionRequests,
		Client:           drainClient,
		TakesOver:        takesOver,
		Surger:           p.newSurger(d.Surge),
		Logger:           p.log,
	}, terms), nil
}

// newSurger returns the Surger of a drain, or nil if no pod surges.
func (p *retirementScope) newSurger(m v1alpha1.SurgeMode) drain.Surger {
	mode, err := surge.ParseMode(string(m)) // a group with another word is not accepted
	if err != nil || !mode.Enabled() || p.controller.options.NewSurger == nil {
		return nil
	}
	return p.controller.options.NewSurger(mode)
}

// deleteLeftRequests deletes the EvictionRequests that the drain of an earlier process has left. A failure only leaves
// requests that end with their pods.
func (p *retirementScope) deleteLeftRequests(ctx context.Context) {
	o := &p.controller.options
	if o.EvictionRequests == nil || !p.hasReached(v1alpha1.Draining) {
		return
	}
	if err := drain.DeleteEvictionRequests(ctx, o.EvictionRequests, drainClient, p.rt.Spec.NodeName); err != nil {
		p.log.Warn("cannot delete the EvictionRequests of an earlier drain: they end with their pods", "err", err)
	}
}

// newDrainTerms returns the settings for a drain that starts now.
func (p *retirementScope) newDrainTerms(now time.Time) drainTerms {
	terms := drainTerms{policy: p.groupDrainPolicy()}
	if p.group != nil && p.group.Spec.ScaleDown != nil {
		terms.idleRule = p.group.Spec.ScaleDown.IdleByLabel
	}
	if p.isProtectionOverridden(now) { // after its end, a new drain uses the other policy
		terms.overrideUntil = p.rt.Spec.OverrideProtection.Until.Time
	}
	return terms
}

// drainTimeoutAt returns when the drain times out. The time before a restart of the manager counts too.
func (p *retirementScope) drainTimeoutAt() time.Time {
	return p.rt.Status.Times.Draining.Add(p.drainTimeout())
}

// recordDrainProgress records the progress once in each poll interval, and when the drain becomes blocked or unblocked.
func (p *retirementScope) recordDrainProgress(run *drainRun) error {
	progress := run.currentProgress()
	stuck := toBlockedReasons(progress.BlockedPods())
	if !run.markReportedIfDue(p.controller.options.Intervals.Poll, len(stuck) > 0) {
		return &waitError{after: p.controller.options.Intervals.Poll, message: p.rt.Status.Message, reasons: p.rt.Status.Reasons}
	}
	p.rt.Status.Drain = toDrainProgress(progress)
	message := "draining: " + progress.String()
	if len(stuck) > 0 {
		return &waitError{after: p.controller.options.Intervals.Poll, message: message, reasons: stuck}
	}
	return newWait(p.controller.options.Intervals.Poll, "%s", message)
}

// evaluateDrainResult evaluates a finished drain.
func (p *retirementScope) evaluateDrainResult(ctx context.Context, run *drainRun) error {
	p.rt.Status.Drain = toDrainProgress(run.currentProgress())
	var refused *drain.RefusedError
	var unfinished *drain.UnfinishedError
	switch err := run.err; {
	case err == nil:
		p.podsListedAt = run.report.PodsListedAt
		return nil
	case errors.As(err, &refused):
		var kept []v1alpha1.RetirementReason
		switch on, err := p.listAndClassifyPods(ctx); {
		case err != nil:
			return err
		case len(on.protected) > 0:
			return &endError{on.protected}
		}
		for _, pod := range refused.Pods { // they are gone now
			kept = append(kept, toProtectedReason(pod.Namespace, pod.Name, pod.Decision.Rule, pod.Decision.Detail))
		}
		return &endError{kept}
	case errors.As(err, &unfinished) && unfinished.Outcome == drain.TimedOut:
		why := fmt.Sprintf("the drain took longer than %s", p.drainTimeout())
		if unfinished.ListErr != nil {
			why += ": " + unfinished.ListErr.Error()
		}
		return &endError{append([]v1alpha1.RetirementReason{newReason(DrainTimeout, "", "%s", why)}, toBlockedReasons(unfinished.Blocked)...)}
	default: // cancelled: an override has ended, or the process ends
		p.controller.drains.stopAndWait(p.rt.Name)
		return newWait(requeueSoon, "restarting the drain: %s", err)
	}
}

func toDrainProgress(p drain.Progress) *v1alpha1.DrainProgress {
	return &v1alpha1.DrainProgress{
		Total: int32(p.Total), Gone: int32(p.Gone), Stopping: int32(p.Stopping), Waiting: int32(p.Waiting),
		Summary: observe.ClipChars(p.String(), maxDetail),
	}
}

func toBlockedReasons(blocked []drain.BlockedPod) []v1alpha1.RetirementReason {
	var all []v1alpha1.RetirementReason
	for _, b := range blocked {
		all = append(all, newReason(PodBlocked, "pod "+b.Namespace+"/"+b.Pod, "%s: %s", b.Reason, b.Detail))
	}
	return all
}

// awaitVolumeDetach waits until no volume is attached to the instance, except volumes of skipped pods. It waits only if
// the group's settings require that. It reads the attachments from the API server, so that a restart of the manager
// does not forget any.
func (p *retirementScope) awaitVolumeDetach(ctx context.Context) error {
	if p.hasReached(v1alpha1.Drained) {
		return nil
	}
	if p.groupDrainPolicy().WaitForDetach && !p.rt.Status.InstanceGone {
		attached, err := p.listVolumesToDetach(ctx)
		inTime := time.Now().Before(p.drainTimeoutAt())
		switch {
		case err != nil && !inTime:
			return newEnd(DrainTimeout, "the drain took longer than %s: the attached volumes are unknown: %s", p.drainTimeout(), err)
		case err != nil:
			return err
		case len(attached) == 0:
		case inTime:
			return newBlocked(p.controller.options.Intervals.CloudPoll, attached...)
		default:
			return &endError{attached}
		}
	}
	p.controller.drains.stopAndWait(p.rt.Name) // its result is saved now
	message := "drained"
	if p.rt.Status.InstanceGone {
		message = "the instance is gone, and its pods are deleted"
	}
	return p.savePhase(ctx, v1alpha1.Drained, &p.rt.Status.Times.Drained, v1alpha1.RetirementDrained, message)
}

// listVolumesToDetach returns the volumes that are attached to the instance and not used by a skipped pod.
func (p *retirementScope) listVolumesToDetach(ctx context.Context) ([]v1alpha1.RetirementReason, error) {
	attachments, err := p.controller.options.API.ListVolumeAttachments(ctx)
	if err != nil {
		return nil, fmt.Errorf("volume attachments: %w", err)
	}
	on, err := p.listAndClassifyPods(ctx)
	if err != nil {
		return nil, err
	}
	staying := map[string]bool{}
	for _, pod := range on.skipped {
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
				continue
			}
			name := pod.Name + "-" + v.Name
			if v.PersistentVolumeClaim != nil {
				name = v.PersistentVolumeClaim.ClaimName
			}
			claim, err := p.controller.options.API.GetPersistentVolumeClaim(ctx, pod.Namespace, name)
			if kubeapi.IsNotFound(err) {
				continue // it names no volume any more
			}
			if err != nil {
				return nil, fmt.Errorf("claim %s/%s: %w", pod.Namespace, name, err)
			}
			staying[claim.Spec.VolumeName] = true
		}
	}
	var attached []v1alpha1.RetirementReason
	for _, a := range attachments {
		volume := a.Spec.Source.PersistentVolumeName
		if a.Spec.NodeName != p.rt.Spec.NodeName || volume == nil || staying[*volume] {
			continue
		}
		attached = append(attached, newReason(VolumesAttached, "volume "+*volume, "is still attached to the instance"))
	}
	return attached, nil
}

// awaitPodsDeleted waits until the control plane has deleted the pods of an instance that is gone. Their kubelet cannot
// delete them, so cordonNode has set outOfServiceTaint. Because of this taint the control plane deletes them. Pods that
// tolerate this taint are deleted with the Node.
func (p *retirementScope) awaitPodsDeleted(ctx context.Context) error {
	if err := p.recordPodReleaseStart(ctx); err != nil {
		return err
	}
	if p.node == nil {
		return nil
	}
	if err := p.recheckInstanceGone(ctx); err != nil {
		return err
	}
	on, err := p.listAndClassifyPods(ctx)
	if err != nil {
		return err
	}
	// Protected pods cannot be protected any more: their instance is gone.
	left := len(on.toEvict) + len(on.protected)
	if left == 0 || elapsed.HasElapsed(p.rt.Status.Times.Releasing.Time, time.Now(), p.controller.options.Intervals.PodRelease) {
		return nil
	}
	return newWait(min(p.controller.options.Intervals.CloudPoll, p.controller.options.Intervals.PodRelease), "the instance is gone: %d pods are being deleted", left)
}

// recordPodReleaseStart records when the control plane starts to delete the pods of an instance that is gone. That may
// be long after the drain. From then on the control plane needs time to detach the volumes.
func (p *retirementScope) recordPodReleaseStart(ctx context.Context) error {
	if p.rt.Status.Times.Releasing != nil {
		return nil
	}
	p.rt.Status.Times.Releasing = toStatusTime(time.Now())
	const message = "the instance is gone: its pods are being deleted"
	if !p.hasReached(v1alpha1.Draining) {
		return p.savePhase(ctx, v1alpha1.Draining, &p.rt.Status.Times.Draining, "", message)
	}
	p.recordWaitState("", message, nil)
	return p.saveStatusIfChanged(ctx)
}

// recheckInstanceGone checks again that the cloud does not find the instance and that the Node is not Ready. The
// instance may only have been unreachable for a while (invariant I7).
func (p *retirementScope) recheckInstanceGone(ctx context.Context) error {
	if err := p.refetchUnreadyNode(ctx); err != nil {
		return err
	}
	if isReady(p.node) {
		return newEnd(InstanceRecovered, "the instance counted as gone, but its Node is Ready again")
	}
	instance, err := p.readAndConfirmInstance(ctx, p.rt.Status.Captured.ProviderID)
	switch {
	case err == nil && instance.State == cloud.Deleting: // the cloud's answers lag behind
		return newWait(p.controller.options.Intervals.CloudPoll, "the instance is being deleted")
	case err == nil:
		return newEnd(InstanceRecovered, "the instance counted as gone, but its cloud finds it again")
	case cloud.IsNotFound(err):
		return nil
	}
	return err
}

// toStatusTime returns the time in whole seconds, as the API server stores it.
func toStatusTime(t time.Time) *metav1.Time {
	at := metav1.NewTime(t).Rfc3339Copy()
	return &at
}
