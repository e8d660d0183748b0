package agent

import "time"

// input is an occurrence that can move a notice to another phase.
type input string

const (
	inputChecked      input = "checked"       // the agent has checked everything in the guard
	inputChanged      input = "changed"       // the decision has changed
	inputAwaited      input = "awaited"       // a caller of Await waits for the drain
	inputEmptied      input = "emptied"       // the drain has ended, and the pods have left
	inputFailed       input = "failed"        // the drain gave up, or a policy refused it
	inputPodArrived   input = "pod arrived"   // a pod has arrived on the drained Node
	inputApproved     input = "approved"      // the platform was told that it may begin
	inputEnded        input = "ended"         // the notice has ended, or is ignored
	inputClaimRemoved input = "claim removed" // nothing of an ignored notice is left on the Node
	inputNodeReplaced input = "Node replaced" // the Node was deleted and registered again
	inputResumed      input = "resumed"       // an earlier agent left the record, or an ended notice is back
)

// guard holds the facts that a transition depends on, in addition to the phase and the input. It is computed for each
// transition and never stored.
type guard struct {
	action        Action
	recordedPhase Phase // the phase that the record shows
	// mayChangeNode is true once the other tools that remove the Node are known, or there is no time to find out.
	mayChangeNode   bool
	shouldYield     bool // another tool removes the Node, and the notice can wait
	waitsForSlot    bool // the drain waits for a slot
	waitsUncordoned bool // the Node stays unchanged while the drain waits: there is no deadline
	canStartDrain   bool // evicted pods do not come back, or there is no time to prevent that
}

// effect is a set of actions that a transition requires once, such as an Event.
type effect uint8

const (
	effectStopClock    effect = 1 << iota // reset the start time of the drain
	effectStartClock                      // set the start time of the drain to now
	effectEmitDraining                    // emit the Event Draining
)

// transition returns the phase that follows p, and the effects to carry out. It has no side effects. The drain, the
// drain slot and the claim are not in the effects, because the agent derives them from the phase.
func transition(p Phase, in input, g guard) (next Phase, effects effect) {
	switch in {
	case inputChecked:
		next := nextCheckedPhase(p, g)
		if next == Draining && p != Draining {
			return next, effectStartClock | effectEmitDraining
		}
		return next, 0
	case inputChanged, inputAwaited:
		switch {
		case p == NotDrained:
			return Cordoned, effectStopClock
		case p == Unguarded && in == inputChanged:
			return g.recordedPhase, 0
		}
	case inputEmptied:
		if p.isDraining() {
			return Drained, 0
		}
	case inputFailed:
		switch {
		case p.isDraining():
			return NotDrained, 0
		case p.isDrained():
			return Unguarded, 0
		}
	case inputPodArrived:
		if p == Drained && g.action.includesDrain() {
			return Redraining, effectStopClock | effectStartClock
		}
	case inputApproved:
		if p != Releasing {
			return Acknowledged, 0
		}
	case inputEnded:
		return Releasing, 0
	case inputClaimRemoved:
		if p == Releasing {
			return Noticed, effectStopClock
		}
	case inputNodeReplaced:
		switch {
		case p == Releasing:
		case g.recordedPhase == Acknowledged:
			return Acknowledged, 0
		default:
			return Noticed, effectStopClock
		}
	case inputResumed:
		if g.recordedPhase == NotDrained {
			return Cordoned, effectStopClock // a restart retries the drain
		}
		return g.recordedPhase, 0
	}
	return p, 0
}

// nextCheckedPhase returns the phase that follows p if only the guard is checked again. It returns p once the drain has
// ended.
func nextCheckedPhase(p Phase, g guard) Phase {
	switch {
	case !p.isUndecided() && p != Cordoned && !p.isDraining():
		return p
	case !g.action.includesCordon():
		return Noticed
	case g.shouldYield:
		return Yielded
	case p.isUndecided() && !g.mayChangeNode:
		return Noticed
	case p.isUndecided() && g.action.includesDrain() && g.waitsForSlot && g.waitsUncordoned:
		return Waiting
	case !g.action.includesDrain(), g.waitsForSlot && p != Redraining:
		return Cordoned
	case p.isDraining():
		return p
	case g.canStartDrain && g.mayChangeNode:
		return Draining
	}
	return Cordoned
}

// applyTransition moves the notice h to the next phase, and returns the effects that the agent has to carry out.
func (h *noticeState) applyTransition(in input, g guard, now time.Time) effect {
	next, effects := transition(h.Phase, in, g)
	h.Phase = next
	if recorded := next.toRecordedPhase(h.recordedPhase); recorded != h.recordedPhase {
		h.recordedPhase = recorded
		h.claim.markOutdated()
	}
	if effects&effectStopClock != 0 {
		h.DrainStarted = time.Time{}
	}
	if effects&effectStartClock != 0 && h.DrainStarted.IsZero() {
		h.DrainStarted = now
	}
	return effects
}

func (a *Agent) handleInput(h *noticeState, in input, now time.Time) {
	if h.applyTransition(in, a.computeTransitionGuard(h, now), now)&effectEmitDraining != 0 {
		a.events.queueEvent(newDrainingEvent(h.Notice, h.Decision))
	}
}

// checkPhases checks every active notice again. It moves the notice to the phase that drain slots, other tools and the
// time require.
func (a *Agent) checkPhases(now time.Time) {
	for _, h := range a.activeNoticesByUrgency() {
		a.handleInput(h, inputChecked, now)
	}
}

// computeTransitionGuard computes the facts that the next transition of the notice h depends on.
func (a *Agent) computeTransitionGuard(h *noticeState, now time.Time) guard {
	known := a.otherToolsKnown || h.claim.isWritten()
	isLate := h.Decision.Forced && (h.isUrgent(now) || !now.Before(h.uncordonedDrainStart()))
	return guard{
		action: h.Decision.Action, recordedPhase: h.recordedPhase, mayChangeNode: (known || isLate) && !a.options.DryRun,
		shouldYield: known && a.shouldYield(h, now), waitsForSlot: a.isWaitingForSlot(h, now),
		waitsUncordoned: !h.Notice.Type.HasDeadline() && h.claim.state == claimNone, canStartDrain: a.canStartDrain(h, now),
	}
}
