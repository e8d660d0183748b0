package agent

import (
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
)

// A node that was drained is watched until its notice is over: a scheduler that had not heard of the cordon, or somebody
// who names the node, may bring a pod while the platform is still to begin, or while the machine has seconds to live.

// wantsEmpty reports that the node was drained on account of this notice, and is to stay so.
func (h *handling) wantsEmpty() bool {
	return h.drained() && !h.over && !h.left && !h.unguarded && h.Decision.Action.drains()
}

// keptEmpty reports that no pod is being moved off the node, nor about to be. It is not known of a node whose pods have
// not been listed yet, since the agent was restarted or another notice has come: one may have come to it meanwhile, or
// have to leave for the other notice, and must not be killed on its way.
func (a *Agent) keptEmpty(now time.Time) bool {
	return a.drain != nil && a.drain.standing && !slices.ContainsFunc(a.inOrder(), func(h *handling) bool {
		return h.wantsDrain() && !h.left && !a.mustWait(h, now)
	})
}

// relied reports that a notice says that the node is drained, so that others may rely on it.
func (a *Agent) relied() bool {
	return slices.ContainsFunc(a.inOrder(), (*handling).wantsEmpty)
}

// underWay reports that pods are being moved off the node.
func (a *Agent) underWay() bool { return a.drain != nil && !a.drain.standing }

// stands records that the node is drained.
func (a *Agent) stands(run *drainRun, r drain.Receipt) {
	if a.drain != run { // it was stopped, and another may be under way
		if r.Touched() > 0 {
			a.bookStopped(r)
		}
		return
	}
	run.standing = true
	a.events.hush.until(time.Time{})
	if !a.draining() && r.Touched() == 0 {
		a.log.Debug("the node is drained as it was", "summary", r.Summary())
		return // an agent that was restarted has looked again
	}
	a.log.Info("drained", "summary", r.Summary())
	a.events.emit(drained(r))
	a.book(r, nil)
}

// draining reports that a notice is in that phase.
func (a *Agent) draining() bool {
	for _, h := range a.handled {
		if h.Phase == Draining {
			return true
		}
	}
	return false
}

// arrived takes back that the node is drained, as far as nobody has relied on it yet. Where the platform was told, the
// pod leaves all the same.
func (a *Agent) arrived(run *drainRun) {
	if a.drain != run {
		return
	}
	run.standing = false
	for _, h := range a.inOrder() {
		if h.Phase == Drained && h.wantsEmpty() {
			h.Began, h.hadTurn = time.Now(), true
			h.advanceTo(Draining)
		}
	}
}
