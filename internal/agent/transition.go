package agent

import (
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// input is what can move a notice to another phase.
type input string

const (
	inputChecked      input = "checked"       // the agent has looked at everything in the guard
	inputChanged      input = "changed"       // the decision has changed
	inputAwaited      input = "awaited"       // a caller of Await waits for the drain
	inputEmptied      input = "emptied"       // the drain has ended, and the pods have left
	inputFailed       input = "failed"        // the drain gave up, or a policy refused it
	inputPodArrived   input = "pod arrived"   // a pod has come to the drained Node
	inputApproved     input = "approved"      // the platform was told that it may begin
	inputEnded        input = "ended"         // the notice has ended, or is ignored
	inputClaimRemoved input = "claim removed" // the Node has nothing left of an ignored notice
	inputNodeReplaced input = "Node replaced" // the Node was deleted and registered anew
	inputResumed      input = "resumed"       // an earlier agent left the record, or a released notice is back
)

// guard is what a transition depends on beside the phase. It is computed for each, and never stored.
type guard struct {
	action   Action
	recorded Phase // the phase that the record shows
	// mayTouch is true once it is known which other tools remove the Node, or there is no time to find out.
	mayTouch bool
	yields   bool // another tool removes the Node, and the notice can wait
	waits    bool // the drain waits for a slot
	mayWait  bool // while it waits, the Node is left as it was found: nothing is due
	canStart bool // pods that leave do not come back, or there is no time to prevent that
}

// effect is what a transition does once, on the way.
type effect uint8

const (
	effectStopClock  effect = 1 << iota // the drain's time is counted anew
	effectStartClock                    // the drain's time is counted from now
	effectTellDrain                     // Event Draining
)

// transition returns the phase that follows p, and the effects on the way. It is pure. The drain, the drain slot and the
// claim are not effects: they follow from the phase.
func transition(p Phase, in input, g guard) (Phase, effect) {
	switch in {
	case inputChecked:
		next := checked(p, g)
		if next == Draining && p != Draining {
			return next, effectStartClock | effectTellDrain
		}
		return next, 0
	case inputChanged, inputAwaited:
		switch {
		case p == NotDrained:
			return Cordoned, effectStopClock
		case p == Unguarded && in == inputChanged:
			return g.recorded, 0
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
		if p == Drained && g.action.drains() {
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
		case g.recorded == Acknowledged:
			return Acknowledged, 0
		default:
			return Noticed, effectStopClock
		}
	case inputResumed:
		if g.recorded == NotDrained {
			return Cordoned, effectStopClock // a new start is a new try
		}
		return g.recorded, 0
	}
	return p, 0
}

// checked returns the phase that the guard asks for now. Once the drain has ended, it asks for none.
func checked(p Phase, g guard) Phase {
	switch {
	case !p.isUndecided() && p != Cordoned && !p.isDraining():
		return p
	case !g.action.cordons():
		return Noticed
	case g.yields:
		return Yielded
	case p.isUndecided() && !g.mayTouch:
		return Noticed
	case p.isUndecided() && g.action.drains() && g.waits && g.mayWait:
		return Waiting
	case !g.action.drains(), g.waits && p != Redraining:
		return Cordoned
	case p.isDraining():
		return p
	case g.canStart && g.mayTouch:
		return Draining
	}
	return Cordoned
}

// move makes a transition, and returns the effects that are not the notice's own.
func (h *noticeState) move(in input, g guard, now time.Time) effect {
	next, effects := transition(h.Phase, in, g)
	h.Phase = next
	if recorded := next.recorded(h.recorded); recorded != h.recorded {
		h.recorded = recorded
		h.claim.outdate()
	}
	if effects&effectStopClock != 0 {
		h.Began = time.Time{}
	}
	if effects&effectStartClock != 0 && h.Began.IsZero() {
		h.Began = now
	}
	return effects
}

// take has a notice make a transition.
func (a *Agent) take(h *noticeState, in input, now time.Time) {
	if h.move(in, a.guard(h, now), now)&effectTellDrain != 0 {
		a.events.emit(draining(h.Notice, h.Decision))
	}
}

// check moves every notice that may be acted on to the phase that follows from the drain slots, the other tools and the time.
func (a *Agent) check(now time.Time) {
	for _, h := range a.inOrder() {
		a.take(h, inputChecked, now)
	}
}

// guard says what h's next transition depends on.
func (a *Agent) guard(h *noticeState, now time.Time) guard {
	known := a.looked || h.claim.isWritten()
	isLate := h.Decision.Forced && (h.isUrgent(now) || !now.Before(h.drainsUncordoned()))
	return guard{
		action: h.Decision.Action, recorded: h.recorded, mayTouch: (known || isLate) && !a.o.DryRun,
		yields: known && a.canYield(h, now), waits: a.waitsForSlot(h, now),
		mayWait: h.Notice.Type == notice.Condition && h.claim.state == claimNone, canStart: a.canStart(h, now),
	}
}
