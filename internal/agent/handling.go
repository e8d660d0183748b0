package agent

import (
	"context"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notify"
)

// Phase is how far the agent has come with one notice.
type Phase string

// The phases. They are kept on the Node, so that their names are part of the interface between versions.
const (
	Noticed      Phase = ""
	Cordoned     Phase = "cordoned"
	Draining     Phase = "draining"
	Drained      Phase = "drained"
	NotDrained   Phase = "not-drained"
	Acknowledged Phase = "acknowledged"
)

// handling is what is known of one notice and how far the agent has come with it. The exported part is kept on the
// Node, and a restarted agent goes on from it.
type handling struct {
	Notice   notice.Notice `json:"notice"`
	Seen     Seen          `json:"seen"`
	Decision Decision      `json:"decision"`
	Phase    Phase         `json:"phase"`
	// Told are the moments that receivers of notifications were told of.
	Told []notify.Moment `json:"told,omitempty"`
	// Began is when the node's pods were first asked to leave on account of it.
	Began time.Time `json:"began,omitzero"`
	// Trace is the traceparent of the notice's first span.
	Trace string `json:"trace,omitempty"`

	held     bool // the node is as it is to be, and the record on it
	touched  bool // something may be on it, even if not all
	closed   bool // it takes no pods
	cordoned bool // cordoning it was asked for, and not left to another tool
	bare     bool // its conditions could not be written
	later    bool // its conditions are written once the pods have been asked
	leftover bool // the node was given back, but for conditions that could not be taken away
	dirty    bool // the record differs from this
	over     bool
	restored bool
	gaveUp   bool      // a voluntary drain's time was over
	missing  time.Time // since when the notice is no longer listed
	waitsFor string
	// hadTurn is true after the node was drained in its turn: what comes to it late waits for no other.
	hadTurn bool
	// unguarded is true after a pod that came to the drained node could not be moved.
	unguarded bool
	// drainedHere is true when this process drained the node for it, and not an earlier one.
	drainedHere bool
	// saidDraining is true after it was said that the pods are being moved off.
	saidDraining bool
	// saidFailed is true after it was said that the node cannot be changed.
	saidFailed bool
	// left to another tool that is at work on the node.
	left         bool
	saidOthers   string
	waitsForTurn bool
	// asked is when the node was first asked to be cordoned.
	asked time.Time
	// approvable is since when nothing but our own Events keeps it from being acknowledged.
	approvable time.Time
	account    account // of its drain, for notifications
	// shown is what the node's conditions say of what blocks its drain.
	shown string
}

// advanceTo moves on to a phase, and has it recorded.
func (h *handling) advanceTo(p Phase) {
	if h.Phase != p {
		h.Phase, h.dirty = p, true
	}
}

// dying is how long a machine that is being taken away may outlive the notice that said so.
const dying = time.Minute

// lingers is for how much longer a notice that is no longer listed is held on to. One that takes the machine away for
// good and had begun, or was allowed to, vanishes while the machine is going down: uncordoning the node now would bring
// pods to it for its last seconds. A machine that is still there after a minute has been spared.
func (h *handling) lingers(now time.Time) time.Duration {
	final := h.Notice.Type == notice.Preempt || h.Notice.Type == notice.Terminate
	begun := h.Notice.Status == notice.Started || h.Phase == Acknowledged
	if !final || !begun {
		return 0
	}
	return max(0, dying-now.Sub(h.missing))
}

// unrecorded reports that the node, which is held, does not show yet how far the agent is.
func (h *handling) unrecorded() bool { return h.held && h.dirty && h.Decision.Action != Ignore }

// mark is the label value under which the other machines of an event find this one.
func (h *handling) mark() cordon.Phase {
	if h.Decision.Action == Acknowledge {
		return readyMark
	}
	switch h.Phase {
	case Drained, Acknowledged:
		return cordon.Drained
	case Draining:
		return cordon.Draining
	}
	return cordon.Cordoned
}

// wantsDrain reports that the node's pods have to go on account of this notice and have not.
func (h *handling) wantsDrain() bool {
	return !h.over && !h.gaveUp && h.Decision.Action.drains() && !h.drained()
}

// drained reports that the node was drained on account of this notice.
func (h *handling) drained() bool { return h.Phase == Drained || h.Phase == Acknowledged }

// mayDrain reports that draining can begin: once the node is cordoned, since pods would come back otherwise; what else
// is to be put on it can wait. When that cannot be had and a quarter of the time is gone, pods that may come back are better
// than pods that are lost.
func (h *handling) mayDrain(now time.Time) bool {
	if h.held || h.closed {
		return true
	}
	window := h.Decision.Deadline.Sub(h.Seen.First)
	return h.Decision.Forced && now.After(h.Seen.First.Add(window/4))
}

// awaitImpact goes on only with a notice that something is to be done about.
func (a *Agent) awaitImpact(ctx context.Context, h *handling, _ time.Time) (time.Duration, error) {
	if h.Decision.Action != Ignore {
		return 0, nil
	}
	h.left = false
	if h.touched && !a.o.DryRun {
		if err := a.unhold(ctx, h); err != nil {
			return 0, err
		}
		h.Phase, h.saidDraining = Noticed, false
	}
	return whenAsked, nil
}

// hold cordons and keeps the record up to date, before anybody is told to rely on it. Nothing is sent when nothing has
// changed.
func (a *Agent) hold(ctx context.Context, h *handling, now time.Time) (time.Duration, error) {
	if a.o.DryRun {
		if h.dirty {
			a.log.Info("dry run: the node would be held", "id", h.Notice.ID, "action", h.Decision.Action)
		}
		h.dirty = false
		return whenAsked, nil
	}
	if h.Phase == Noticed && h.Decision.Action.cordons() {
		h.advanceTo(Cordoned)
	}
	lost := h.cordoned && a.node.uncordoned()
	later := a.asksNow(h, now)
	if what := a.blockedBy(h); h.shown != what && !later {
		h.shown, h.dirty = what, true
	}
	if h.held && !h.dirty && !lost && !a.lacksConditions(h, now) && (!h.later || later) {
		return 0, nil
	}
	if a.drainsAtOnce(h, now) {
		h.Began = now
		h.advanceTo(Draining)
		later = a.asksNow(h, now)
	}
	err := a.cordon(ctx, h, later)
	switch {
	case cordon.IsConditions(err):
		a.conditionsFailed(err, now)
		h.bare = true
	case err != nil:
		return 0, err
	case !later:
		a.conditionsWritten()
		h.bare = false
	}
	h.dirty, h.later = false, later
	return 0, nil
}

// awaitDrain goes on when the node is drained, and known to be empty at this moment. Draining itself is steered for all notices
// together.
func (a *Agent) awaitDrain(_ context.Context, h *handling, now time.Time) (time.Duration, error) {
	switch {
	case h.wantsEmpty() && !a.keptEmpty(now):
		h.approvable = time.Time{} // what the drain will have to say is to be said before
		return whenAsked, nil
	case h.Decision.Action == Acknowledge && h.Decision.Forced && a.underWay():
		return whenAsked, nil // its pods may stay, and those of the drain are to end in their own time
	case h.drained(), h.Decision.Action == Acknowledge:
		return 0, nil
	case h.wantsDrain() && a.mustWait(h, now):
		a.sayWaitingForTurn(h)
		return h.patienceLeft(now), nil
	case h.bare:
		return max(a.conditions.next.Sub(now), listenEvery), nil
	case h.later:
		return max(a.quietUntil(h).Sub(now), listenEvery), nil
	}
	return whenAsked, nil
}

const (
	// lastWords is for how long an acknowledgement waits for what is still to be written.
	lastWords = time.Second
	// listenEvery is the pause between two looks at whether they are.
	listenEvery = 20 * time.Millisecond
)

// sayAll returns when to look again while Events, notifications or a slot's return are still to be sent. The machine may
// go the moment it is allowed to, and with it the only word of a pod that was deleted past its budget (I2). It waits no
// longer than a moment: an API server that is away is no reason to keep the platform waiting.
func (a *Agent) sayAll(h *handling, now time.Time) time.Duration {
	if h.approvable.IsZero() {
		h.approvable = now
	}
	if a.events.said() && a.told() && a.slotGivenBack() || now.Sub(h.approvable) >= lastWords {
		return 0
	}
	return listenEvery
}

// approve lets the platform begin, once every machine of the event is drained. It never does after a drain that did
// not finish.
func (a *Agent) approve(ctx context.Context, h *handling, now time.Time) (time.Duration, error) {
	if a.o.Approver == nil || h.Phase == Acknowledged || h.Notice.Status == notice.Started ||
		h.Notice.Type == notice.Condition {
		return whenAsked, nil
	}
	left, err := a.peersLeft(ctx, h)
	if err != nil {
		return 0, err
	}
	if len(left) > 0 {
		a.sayWaiting(h, left)
		return askPeersEvery, nil
	}
	if wait := a.sayAll(h, now); wait > 0 {
		return wait, nil
	}
	if err := a.o.Approver.Approve(ctx, h.Notice.ID); err != nil {
		return 0, err
	}
	h.advanceTo(Acknowledged)
	a.trace(h, Span{Name: "acknowledge", Began: h.approvable, Ended: time.Now()})
	a.log.Info("acknowledged", "id", h.Notice.ID, "type", h.Notice.Type, "resources", h.Notice.Resources)
	a.events.emit(acknowledged(h.Notice, h.Decision))
	a.o.Metrics.Acknowledged.With(string(h.Notice.Type)).Inc()
	return a.hold(ctx, h, time.Now())
}
