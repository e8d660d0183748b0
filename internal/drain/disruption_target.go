package drain

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// disruptionTarget is the pod condition that tells a Job's podFailurePolicy of a disruption
	// (https://github.com/kubernetes/enhancements/tree/master/keps/sig-apps/3329-retriable-and-non-retriable-failures).
	// The eviction API sets it, a deletion does not.
	disruptionTarget = "DisruptionTarget"
	// The reasons of the condition, in the style of KEP-3329.
	deletionByNodeTermination = "DeletionByNodeTermination"
	deletionByNodeDrain       = "DeletionByNodeDrain"
	// conditionLead is how long before a forced deletion the condition is written. The write then does not delay the
	// deletion.
	conditionLead = time.Second
	// maxConditionWait limits how long a deletion waits for a condition that could not be written that early.
	maxConditionWait = 500 * time.Millisecond
)

// conditionWrites tracks the writes of the condition DisruptionTarget during one drain.
type conditionWrites struct {
	semaphore chan struct{} // limits the writes in flight
	forbidden sync.Map      // namespaces in which the permission is missing; no more writes there
	slow      bool          // a write was not answered in time: no deletion waits for the next one
	warned    bool
}

// isForbiddenIn reports whether the permission to write the condition is missing in a namespace. A RoleBinding may
// grant it in another one.
func (w *conditionWrites) isForbiddenIn(namespace string) bool {
	_, is := w.forbidden.Load(namespace)
	return is
}

// ensureDisruptionTargetWrite starts to write the condition of a pod, once. It returns until when a deletion has to wait for
// the write, or zero if the deletion may be sent. A late write continues: the condition still helps while the
// containers stop.
func (d *Drain) ensureDisruptionTargetWrite(ctx context.Context, p *podState, now time.Time) (waitUntil time.Time) {
	switch {
	case d.conditions.isForbiddenIn(p.pod.Namespace) || !needsDisruptionTarget(&p.pod):
		return time.Time{}
	case p.conditionWaitUntil.IsZero():
		p.conditionWaitUntil = now.Add(maxConditionWait)
		d.startDisruptionTargetWrite(ctx, p, now)
	}
	switch {
	case p.conditionAnswered || d.conditions.slow:
		return time.Time{}
	case !now.Before(p.conditionWaitUntil):
		d.conditions.slow = true
		return time.Time{}
	}
	return p.conditionWaitUntil
}

// needsDisruptionTarget reports whether a pod can still fail and lacks the condition.
func needsDisruptionTarget(p *kubeapi.Pod) bool {
	if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
		return false
	}
	return !hasDisruptionTarget(p, "True")
}

// hasDisruptionTarget reports whether a pod has the condition with this status. The disruption controller sets it to
// False 2 minutes after it became True, if the pod is not deleted.
func hasDisruptionTarget(p *kubeapi.Pod, status string) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c kubeapi.Condition) bool {
		return c.Type == disruptionTarget && c.Status == status
	})
}

func (d *Drain) startDisruptionTargetWrite(ctx context.Context, p *podState, now time.Time) {
	c := d.newDisruption(p, now)
	d.background.Go(func() {
		select {
		case d.conditions.semaphore <- struct{}{}:
			defer func() { <-d.conditions.semaphore }()
		case <-ctx.Done():
			return
		}
		if d.conditions.isForbiddenIn(c.Namespace) {
			return
		}
		bounded, cancel := context.WithTimeout(ctx, minRequestTimeout)
		defer cancel()
		err := d.api.SetDisruptionTarget(bounded, c)
		if status := kubeapi.ToStatusError(err); status != nil && kubeapi.IsForbidden(err) && !isWebhookError(status) {
			d.conditions.forbidden.Store(c.Namespace, true)
		}
		d.inbox.putAndWake(func(time.Time) { d.recordDisruptionTargetWrite(p, err) })
	})
}

// newDisruption returns the condition for a pod that is deleted without an eviction.
func (d *Drain) newDisruption(p *podState, now time.Time) kubeapi.PodDisruption {
	c := kubeapi.PodDisruption{
		Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID, At: now,
		Reason: deletionByNodeDrain, Message: "Slipway: node " + d.options.Node + " is drained with evictions disabled",
	}
	if d.terms.HasDeadline() {
		c.Reason = deletionByNodeTermination
		c.Message = "Slipway: node " + d.options.Node + " is terminated at " + d.terms.Deadline.UTC().Format(time.RFC3339)
	}
	return c
}

func (d *Drain) recordDisruptionTargetWrite(p *podState, err error) {
	p.conditionAnswered = true
	if err == nil || d.ended || d.conditions.warned {
		return
	}
	d.conditions.warned = true
	d.options.Logger.Warn("cannot set the condition DisruptionTarget before a pod is deleted: its Job may count a failure",
		"pod", p.name(), "err", err)
}
