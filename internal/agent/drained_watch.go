package agent

import (
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
)

// A node that was drained is watched until its notice is over: a scheduler that had not heard of the cordon, or somebody
// who names the node, may bring a pod while the platform is still to begin, or while the machine has seconds to live.

// wantsEmpty reports that the node was drained on account of this notice, and is to stay so.
func (h *noticeState) wantsEmpty() bool {
	return (h.Phase == Drained || h.Phase == Acknowledged) && h.Decision.Action.drains()
}

// keptEmpty reports that no pod is being moved off the node, nor about to be. It is not known of a node whose pods have
// not been listed yet, since the agent was restarted or another notice has come: one may have come to it meanwhile, or
// have to leave for the other notice, and must not be killed on its way.
func (a *Agent) keptEmpty(now time.Time) bool {
	return a.drain != nil && a.drain.drained && !slices.ContainsFunc(a.inOrder(), func(h *noticeState) bool {
		return a.isDue(h, now)
	})
}

// isReliedOn reports that a notice says that the node is drained, so that others may rely on it.
func (a *Agent) isReliedOn() bool {
	return slices.ContainsFunc(a.inOrder(), (*noticeState).wantsEmpty)
}

// underWay reports that pods are being moved off the node.
func (a *Agent) underWay() bool { return a.drain != nil && !a.drain.drained }

// nodeDrained records that the node is drained.
func (a *Agent) nodeDrained(run *drainRun, r drain.Receipt) {
	if a.drain != run { // it was stopped, and another may be under way
		if r.Touched() > 0 {
			a.bookStopped(r)
		}
		return
	}
	run.drained = true
	a.events.throttle.until(time.Time{})
	if r.Touched() == 0 && !slices.ContainsFunc(a.inOrder(), func(h *noticeState) bool { return h.Phase.isDraining() }) {
		a.log.Debug("the node is drained as it was", "summary", r.Summary())
		return // an agent that was restarted has looked again
	}
	a.log.Info("drained", "summary", r.Summary())
	a.events.emit(drained(r))
	a.book(r, nil)
}

// podArrived takes back that the node is drained, as far as nobody has relied on it yet. Where the platform was told, the
// pod leaves all the same.
func (a *Agent) podArrived(run *drainRun) {
	if a.drain != run {
		return
	}
	run.drained = false
	for _, h := range a.inOrder() {
		a.take(h, inputPodArrived, time.Now())
	}
}
