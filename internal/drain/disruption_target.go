package drain

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// disruptionTarget is the pod condition that tells a Job's podFailurePolicy about a disruption
	// (https://github.com/kubernetes/enhancements/tree/master/keps/sig-apps/3329-retriable-and-non-retriable-failures).
	// An eviction sets this condition. A deletion does not, so the drain writes it.
	disruptionTarget = "DisruptionTarget"
	// deletionByNodeTermination and the following constants are reasons of this condition, named as in KEP-3329.
	deletionByNodeTermination = "DeletionByNodeTermination"
	deletionByNodeDrain       = "DeletionByNodeDrain"
	// conditionLead is how long before a forced deletion the drain writes the condition, so that the write does not
	// delay the deletion.
	conditionLead = time.Second
	// maxConditionWait is how long a deletion waits for the write of the condition, if the write could not start
	// conditionLead before.
	maxConditionWait = 500 * time.Millisecond
)

// conditionWrites tracks the writes of the condition DisruptionTarget during one drain.
type conditionWrites struct {
	semaphore chan struct{} // limits the writes in flight
	forbidden sync.Map      // namespaces in which the permission is missing, with the time of the next write there
	slow      bool          // a write was not answered in time: no deletion waits for the next one
	warned    bool
}

// isForbiddenIn reports whether the drain lacked the permission to write the condition in a namespace, and does not try
// again yet. A RoleBinding may grant it in another namespace.
func (w *conditionWrites) isForbiddenIn(namespace string, now time.Time) bool {
	retryAt, is := w.forbidden.Load(namespace)
	return is && now.Before(retryAt.(time.Time))
}

// ensureDisruptionTargetWrite starts the write of a pod's condition, unless it was started before. It returns until
// when the deletion of the pod has to wait for the write. Zero means that the deletion may be sent now. If the write is
// late it continues, because the condition is still useful while the containers stop.
func (d *Drain) ensureDisruptionTargetWrite(ctx context.Context, p *podState, now time.Time) (waitUntil time.Time) {
	switch {
	case d.conditions.isForbiddenIn(p.pod.Namespace, now) || !needsDisruptionTarget(&p.pod):
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

// needsDisruptionTarget reports whether a pod lacks the condition and can still fail, so that a podFailurePolicy would
// read it.
func needsDisruptionTarget(p *kubeapi.Pod) bool {
	if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
		return false
	}
	return !hasDisruptionTarget(p, "True")
}

// hasDisruptionTarget reports whether a pod has the condition with this status. The disruption controller sets a
// condition that has been True for 2 minutes to False, if the pod was not deleted.
func hasDisruptionTarget(p *kubeapi.Pod, status string) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c kubeapi.Condition) bool {
		return c.Type == disruptionTarget && c.Status == status
	})
}

func (d *Drain) startDisruptionTargetWrite(ctx context.Context, p *podState, now time.Time) {
	c, pause := d.newDisruption(p, now), d.capPauseToDeadline(manualFixPause, now)
	d.background.Go(func() {
		select {
		case d.conditions.semaphore <- struct{}{}:
			defer func() { <-d.conditions.semaphore }()
		case <-ctx.Done():
			return
		}
		var err error
		forbidden := d.conditions.isForbiddenIn(c.Namespace, time.Now())
		if !forbidden {
			bounded, cancel := context.WithTimeout(ctx, minRequestTimeout)
			defer cancel()
			err = d.api.SetDisruptionTarget(bounded, c)
			if status := kubeapi.ToStatusError(err); status != nil && kubeapi.IsForbidden(err) && !isWebhookError(status) {
				forbidden = true
				d.conditions.forbidden.Store(c.Namespace, time.Now().Add(pause))
			}
		}
		d.inbox.putAndWake(func(time.Time) { d.recordDisruptionTargetWrite(p, forbidden, err) })
	})
}

// newDisruption returns the condition for a pod that the drain deletes without an eviction.
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

// recordDisruptionTargetWrite records the answer to the write of a pod's condition. If it is forbidden, the condition is
// written again if the pod is still there after the pause.
func (d *Drain) recordDisruptionTargetWrite(p *podState, forbidden bool, err error) {
	p.conditionAnswered = !forbidden
	if forbidden {
		p.conditionWaitUntil = time.Time{}
	}
	if err == nil || d.ended || d.conditions.warned {
		return
	}
	d.conditions.warned = true
	d.options.Logger.Warn("cannot set the condition DisruptionTarget before a pod is deleted: its Job may count a failure",
		"pod", p.name(), "err", err)
}
