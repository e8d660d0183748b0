package agent

import (
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
)

// A drained node is watched until its notice ends. A pod may still arrive, because a scheduler has not seen the
// cordon, or because a user set spec.nodeName. It may arrive before the platform begins, or when the instance has
// seconds to live.

// keepsNodeEmpty reports whether the node is drained for this notice, and pods that arrive later are evicted too.
func (h *noticeState) keepsNodeEmpty() bool {
	return (h.Phase == Drained || h.Phase == Acknowledged) && h.Decision.Action.includesDrain()
}

// isKnownEmpty reports whether the drain has found the node empty and no notice needs another drain now. After a
// restart or a new notice it is false until the pods are listed again. A pod may have arrived in the meantime, or the
// new notice may require that more pods leave. An approval in that time would kill such a pod during its eviction.
func (a *Agent) isKnownEmpty(now time.Time) bool {
	return a.drain != nil && a.drain.drained && !slices.ContainsFunc(a.activeNoticesByUrgency(), func(h *noticeState) bool {
		return a.isDrainDue(h, now)
	})
}

// isDrainedReported reports whether the record of a notice says that the node is drained. Other agents may rely on that
// record.
func (a *Agent) isDrainedReported() bool {
	return slices.ContainsFunc(a.activeNoticesByUrgency(), (*noticeState).keepsNodeEmpty)
}

// isDrainRunning reports whether a drain is evicting pods of the node.
func (a *Agent) isDrainRunning() bool { return a.drain != nil && !a.drain.drained }

func (a *Agent) recordNodeDrained(run *drainRun, r drain.Report) {
	if a.drain != run { // it was stopped, and another may be running
		if r.CountPodsToRemove() > 0 {
			a.recordStoppedDrain(r)
		}
		return
	}
	run.drained = true
	a.events.throttle.setEnd(time.Time{})
	if r.CountPodsToRemove() == 0 && !slices.ContainsFunc(a.activeNoticesByUrgency(), func(h *noticeState) bool { return h.Phase.isDraining() }) {
		a.log.Debug("the node is still drained", "summary", r.Summary())
		return // a restarted agent found the node drained already
	}
	a.log.Info("drained", "summary", r.Summary())
	a.events.queueEvent(newDrainedEvent(r))
	a.recordDrainEnd(r, nil)
}

// returnNoticesToDraining handles a pod that arrived on the drained node. It moves the notices back to draining, except
// notices with a drain that was already reported to the platform. The drain evicts the pod in both cases.
func (a *Agent) returnNoticesToDraining(run *drainRun) {
	if a.drain != run {
		return
	}
	run.drained = false
	for _, h := range a.activeNoticesByUrgency() {
		a.handleInput(h, inputPodArrived, time.Now())
	}
}
