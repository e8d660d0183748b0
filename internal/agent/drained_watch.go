package agent

import (
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
)

// A drained node is watched until its notice ends. A pod may still arrive, because a scheduler has not seen the
// cordon, or because a user set spec.nodeName. It may arrive before the platform begins, or when the instance has
// seconds to live.

// keepsNodeEmpty reports that the node was drained for this notice and stays empty for it.
func (h *noticeState) keepsNodeEmpty() bool {
	return (h.Phase == Drained || h.Phase == Acknowledged) && h.Decision.Action.includesDrain()
}

// isKnownEmpty reports that no pod is being evicted, or about to be. It is false while the pods have not been listed
// since a restart or since a new notice. Meanwhile a pod may have arrived, or may have to leave for the other notice.
// It must not be killed during its eviction.
func (a *Agent) isKnownEmpty(now time.Time) bool {
	return a.drain != nil && a.drain.drained && !slices.ContainsFunc(a.activeNoticesByUrgency(), func(h *noticeState) bool {
		return a.isDrainDue(h, now)
	})
}

// isDrainedReported reports that a notice declares the node drained, so others may rely on it.
func (a *Agent) isDrainedReported() bool {
	return slices.ContainsFunc(a.activeNoticesByUrgency(), (*noticeState).keepsNodeEmpty)
}

// isDrainRunning reports that pods are being evicted from the node.
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

// returnNoticesToDraining moves notices back to draining, unless the platform was already told that the node is drained. The
// pod is evicted in both cases.
func (a *Agent) returnNoticesToDraining(run *drainRun) {
	if a.drain != run {
		return
	}
	run.drained = false
	for _, h := range a.activeNoticesByUrgency() {
		a.handleInput(h, inputPodArrived, time.Now())
	}
}
