package agent

import (
	"context"
	"errors"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/notice"
)

// blockedEvery is the least time between two Events that say what blocks a drain, unless it is something new.
const blockedEvery = 10 * time.Second

// gravity orders the types by what of a node they leave.
var gravity = map[notice.Type]int{
	notice.Freeze: 0, notice.Reboot: 1, notice.Redeploy: 2, notice.Preempt: 2, notice.Terminate: 2,
}

// order is what all notices together ask of a drain.
type order struct {
	kind  notice.Type // the gravest, which decides what the pods get
	terms drain.Terms
}

func (o order) equal(p order) bool {
	return o.kind == p.kind && o.terms.Margin == p.terms.Margin &&
		o.terms.Deadline.Equal(p.terms.Deadline) && o.terms.GiveUp.Equal(p.terms.GiveUp)
}

// drainRun is a drain that is under way.
type drainRun struct {
	order  order
	drain  *drain.Drain
	cancel context.CancelFunc
	done   chan struct{}
}

// overtime is the time that a drain gets whose deadline has passed although the machine still lives.
type overtime struct {
	passed time.Time // the deadline
	until  time.Time
}

// steer starts, adjusts or stops the drain, so that it does what the notices ask for now.
func (a *Agent) steer(ctx context.Context) {
	want, needed := a.wanted(time.Now())
	switch {
	case a.o.DryRun || !needed:
		a.stopDrain()
	case a.drain == nil:
		a.startDrain(ctx, want)
	case a.drain.order.kind != want.kind:
		a.stopDrain()
		a.startDrain(ctx, want)
	case !a.drain.order.equal(want):
		a.log.Info("the drain's time has changed", "deadline", want.terms.Deadline, "giveUp", want.terms.GiveUp)
		a.drain.order = want
		a.drain.drain.SetTerms(want.terms)
	}
	if a.drain != nil {
		a.sayDraining()
	}
}

// sayDraining moves the notices that the drain under way is for on to Draining.
func (a *Agent) sayDraining() {
	for _, h := range a.inOrder() {
		if h.wantsDrain() && h.Phase != Draining {
			h.advanceTo(Draining)
			a.events.emit(draining(h.Notice, h.Decision))
		}
	}
}

// wanted adds up what the notices ask for: the gravest kind, and the earliest end of time. A Freeze among them only
// limits how long the drain tries, since nothing of the node is lost to it.
func (a *Agent) wanted(now time.Time) (order, bool) {
	o := order{terms: drain.Terms{Margin: a.o.Margin}}
	for _, h := range a.inOrder() {
		if !h.wantsDrain() || !h.mayDrain(now) {
			continue
		}
		if o.kind == "" || gravity[h.Notice.Type] > gravity[o.kind] {
			o.kind = h.Notice.Type
		}
		end := &o.terms.GiveUp
		if h.Decision.Forced {
			end = &o.terms.Deadline
		}
		if end.IsZero() || h.Decision.Deadline.Before(*end) {
			*end = h.Decision.Deadline
		}
	}
	if o.terms.Forced() {
		o.terms.GiveUp = time.Time{}
		if !o.terms.Deadline.After(a.overtime.passed) {
			o.terms.Deadline = a.overtime.until
		}
	}
	return o, o.kind != ""
}

func (a *Agent) startDrain(ctx context.Context, o order) {
	policy := drainPolicy(o.kind)
	run := &drainRun{order: o, done: make(chan struct{})}
	run.drain = drain.New(a.o.API, drain.Options{
		Node: a.o.Node, Policy: &policy, Terms: o.terms, Volumes: a.o.Volumes, Logger: a.log,
		OnProgress: a.onProgress(),
	})
	var work context.Context
	work, run.cancel = context.WithCancel(ctx)
	a.drain = run
	a.log.Info("draining", "kind", o.kind, "deadline", o.terms.Deadline, "giveUp", o.terms.GiveUp)
	go func() {
		defer close(run.done)
		receipt, err := run.drain.Run(work)
		a.tell(work, func(context.Context) { a.drainEnded(run, receipt, err) })
	}()
}

// onProgress keeps the metrics current, and says what blocks: an obstacle that is new at once, since a Spot machine may
// be gone in ten seconds, and how many pods still wait for those that are known now and then. It runs in the engine's
// goroutine.
func (a *Agent) onProgress() func(drain.Progress) {
	var saidAt time.Time
	var said string
	known := map[string]bool{}
	return func(p drain.Progress) {
		a.o.Metrics.progress(p)
		isNew := false
		for _, b := range p.Obstructed() {
			obstacle := string(b.Reason) + " " + b.Budget
			isNew = isNew || !known[obstacle]
			known[obstacle] = true
		}
		if !isNew && (len(p.Obstructed()) == 0 || time.Since(saidAt) < blockedEvery || p.String() == said) {
			return
		}
		saidAt, said = time.Now(), p.String()
		a.log.Warn("drain is blocked", "progress", said, "blocked", p.Obstructed())
		a.events.emit(blocked(p))
	}
}

// drainEnded records how a drain ended.
func (a *Agent) drainEnded(run *drainRun, r drain.Receipt, err error) {
	if a.drain != run {
		return // it was stopped, and another may be under way
	}
	a.drain.cancel()
	a.drain = nil
	a.o.Metrics.receipt(r)
	if err == nil {
		a.log.Info("drained", "summary", r.Summary(), "receipt", r)
		a.events.emit(drained(r))
	} else {
		a.log.Error("not drained", "summary", r.Summary(), "err", err, "receipt", r)
		a.events.emit(notDrained(r, err))
	}
	if r.Outcome == drain.DeadlinePassed {
		// The machine lives although its time is over: what is left is tried again until it goes or the notice does.
		a.overtime = overtime{passed: run.order.terms.Deadline, until: time.Now().Add(startedWindow)}
	}
	for _, h := range a.handled {
		if h.Phase == Draining {
			a.trace(h, drainSpan(run.order.kind, r, err))
		}
		settle(h, r, err)
	}
}

// settle moves one notice on from Draining.
func settle(h *handling, r drain.Receipt, err error) {
	var refused *drain.Refused
	switch {
	case h.Phase != Draining:
	case err == nil:
		h.advanceTo(Drained)
	case r.Outcome == drain.GaveUp, errors.As(err, &refused):
		h.gaveUp = true
		h.advanceTo(NotDrained)
	}
}

// stopDrain ends the drain, if there is one, and waits until it sends nothing any more.
func (a *Agent) stopDrain() {
	if a.drain == nil {
		return
	}
	run := a.drain
	a.drain = nil
	run.cancel()
	<-run.done
	a.log.Info("drain stopped", "kind", run.order.kind)
}

// stopDrainUnlessNeeded ends the drain before the node is given back, when no other notice wants it.
func (a *Agent) stopDrainUnlessNeeded() {
	if _, needed := a.wanted(time.Now()); !needed {
		a.stopDrain()
	}
}
