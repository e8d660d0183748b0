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
	// (https://github.com/kubernetes/enhancements/tree/master/keps/sig-apps/3329-retriable-and-non-retriable-failures). The
	// eviction API sets it, a deletion does not.
	disruptionTarget = "DisruptionTarget"
	// The reasons of the condition, in the style of KEP-3329.
	deletionByNodeTermination = "DeletionByNodeTermination"
	deletionByNodeDrain       = "DeletionByNodeDrain"
	// conditionLead is how long before a forced deletion the condition is written, so that the deletion is not delayed.
	conditionLead = time.Second
	// longestConditionWait is how long a deletion waits at most for a condition that could not be written that early.
	longestConditionWait = 500 * time.Millisecond
)

// conditionWrites is what a drain knows about its writes of the condition DisruptionTarget.
type conditionWrites struct {
	slots     chan struct{} // bounds the writes in flight
	forbidden sync.Map      // the namespaces where the right is missing: no more are tried there
	slow      bool          // one was not answered in time: no deletion waits for the next
	warned    bool
}

// isForbidden reports whether the right to write the condition is missing in a namespace. A RoleBinding may give it in another one.
func (w *conditionWrites) isForbidden(namespace string) bool {
	_, is := w.forbidden.Load(namespace)
	return is
}

// setDisruptionTarget starts to write the condition of a pod, once. It returns until when a deletion waits for the write;
// zero means that the deletion may be sent. A write that is late is not given up: a pod has the condition soon enough while its containers stop.
func (d *Drain) setDisruptionTarget(ctx context.Context, p *podState, now time.Time) time.Time {
	switch {
	case d.conditions.isForbidden(p.pod.Namespace) || !needsDisruptionTarget(&p.pod):
		return time.Time{}
	case p.conditionBy.IsZero():
		p.conditionBy = now.Add(longestConditionWait)
		d.writeCondition(ctx, p, now)
	}
	switch {
	case p.conditionDone || d.conditions.slow:
		return time.Time{}
	case !now.Before(p.conditionBy):
		d.conditions.slow = true
		return time.Time{}
	}
	return p.conditionBy
}

// needsDisruptionTarget reports that a pod may fail, and does not have the condition yet.
func needsDisruptionTarget(p *kubeapi.Pod) bool {
	if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
		return false
	}
	return !isDisruptionTarget(p, "True")
}

// isDisruptionTarget reports that a pod has the condition with this status. The disruption controller sets it to False
// two minutes after it became True, on a pod that is not deleted.
func isDisruptionTarget(p *kubeapi.Pod, status string) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c kubeapi.Condition) bool {
		return c.Type == disruptionTarget && c.Status == status
	})
}

// writeCondition writes the condition of a pod in the background.
func (d *Drain) writeCondition(ctx context.Context, p *podState, now time.Time) {
	c := d.disruptionOf(p, now)
	d.background.Go(func() {
		select {
		case d.conditions.slots <- struct{}{}:
			defer func() { <-d.conditions.slots }()
		case <-ctx.Done():
			return
		}
		if d.conditions.isForbidden(c.Namespace) {
			return
		}
		bounded, cancel := context.WithTimeout(ctx, shortestRequest)
		defer cancel()
		err := d.api.SetDisruptionTarget(bounded, c)
		if status := kubeapi.AsStatus(err); status != nil && kubeapi.IsForbidden(err) && !isWebhook(status) {
			d.conditions.forbidden.Store(c.Namespace, true)
		}
		d.inbox.put(func(time.Time) { d.conditionWritten(p, err) })
	})
}

// disruptionOf returns the condition for a pod that is deleted past its budget.
func (d *Drain) disruptionOf(p *podState, now time.Time) kubeapi.Disruption {
	c := kubeapi.Disruption{
		Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID, At: now,
		Reason: deletionByNodeDrain, Message: "Slipway: node " + d.o.Node + " is drained with evictions disabled",
	}
	if d.terms.Forced() {
		c.Reason = deletionByNodeTermination
		c.Message = "Slipway: node " + d.o.Node + " is terminated at " + d.terms.Deadline.UTC().Format(time.RFC3339)
	}
	return c
}

// conditionWritten takes in how the write of a pod's condition ended.
func (d *Drain) conditionWritten(p *podState, err error) {
	p.conditionDone = true
	if err == nil || d.over || d.conditions.warned {
		return
	}
	d.conditions.warned = true
	d.o.Logger.Warn("cannot set the condition DisruptionTarget before a pod is deleted: its Job may count a failure",
		"pod", p.name(), "err", err)
}
