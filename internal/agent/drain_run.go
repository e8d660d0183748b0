package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

// blockedEvery is the least time between two Events that say what blocks a drain, unless it is something new.
const blockedEvery = 10 * time.Second

// order is what all notices together ask of a drain.
type order struct {
	demands []demand // none twice, in order
	terms   drain.Terms
}

// kinds names the types of the notices, for people.
func (o order) kinds() []notice.Type {
	var all []notice.Type
	for _, c := range o.demands {
		all = append(all, c.kind)
	}
	return slices.Compact(all)
}

// concerns reports that a pod has to leave for one of the notices, or would if policy did not keep it.
func (o order) concerns(p kubeapi.Pod) bool {
	_, ok := governingType(o.demands, &p)
	return ok
}

// policyOf is what a pod gets by the gravest of the notices that concern it.
func (o order) policyOf(p kubeapi.Pod) podrules.Policy {
	kind, _ := governingType(o.demands, &p)
	return drainPolicy(kind)
}

func (o order) equal(p order) bool {
	return slices.Equal(o.demands, p.demands) && o.terms.Margin == p.terms.Margin &&
		o.terms.Deadline.Equal(p.terms.Deadline) && o.terms.GiveUp.Equal(p.terms.GiveUp)
}

// drainRun is a drain that is under way.
type drainRun struct {
	order  order
	drain  *drain.Drain
	cancel context.CancelFunc
	done   chan struct{}
	// receipt is of all that has not been handed out by OnDrained, once done is closed.
	receipt drain.Receipt
	// handedOut is true from when OnDrained was called, though its receipt may not be in the books yet, until another pod comes.
	handedOut atomic.Bool
	// drained is true from when the node was drained until another pod comes to it.
	drained bool
	// asked is true once every pod has been asked; quietUntil is when what waits for that does no longer.
	asked      atomic.Bool
	quietUntil time.Time
	// blocked is how far it was when that was said last; nil while nothing blocks it.
	blocked atomic.Pointer[drain.Progress]
}

// blockedProgress returns how far the drain under way for a notice is; nil while nothing blocks it.
func (a *Agent) blockedProgress(h *noticeState) *drain.Progress {
	if !h.Phase.isDraining() || !a.underWay() {
		return nil
	}
	return a.drain.blocked.Load()
}

// setBlocked keeps what blocks a drain, for the node's conditions and notifications.
func (a *Agent) setBlocked(run *drainRun, p *drain.Progress) {
	if was := run.blocked.Swap(p); was != nil || p != nil {
		a.wakeUp()
	}
}

// wakeUp has the agent have a turn. It is called by the engine, and does not wait: when there is no room for the news, the
// agent is about to have one.
func (a *Agent) wakeUp() {
	select {
	case a.wake <- func(context.Context) {}:
	default:
	}
}

// overtime is the time that a drain gets whose deadline has passed although the machine still lives.
type overtime struct {
	passed time.Time // the deadline
	until  time.Time
}

// steer starts, adjusts or stops the drain, so that it does what the notices ask for now.
func (a *Agent) steer(ctx context.Context) {
	now := time.Now()
	a.check(now)
	want, needed := a.wanted(now)
	switch {
	case a.o.DryRun || !needed:
		a.stopDrain()
	case a.drain == nil:
		a.startDrain(ctx, want)
	case !slices.Equal(a.drain.order.demands, want.demands), a.drain.drained && a.anyWaits(now):
		a.stopDrain()
		a.startDrain(ctx, want)
	case !a.drain.order.equal(want):
		if a.underWay() {
			a.log.Info("the drain's time has changed", "deadline", want.terms.Deadline, "giveUp", want.terms.GiveUp)
		}
		a.drain.order = want
		a.drain.drain.SetTerms(want.terms)
	}
	a.claimSlot(now) // after the drain was stopped, if it was
}

// mayDrain reports that the pods may go on account of a notice.
func (a *Agent) mayDrain(h *noticeState, now time.Time) bool {
	next, _ := transition(h.Phase, inputChecked, a.guard(h, now))
	return next.isDraining() && a.canStart(h, now)
}

// anyWaits reports that a notice is there for which the pods are to go and have not.
func (a *Agent) anyWaits(now time.Time) bool {
	return slices.ContainsFunc(a.inOrder(), func(h *noticeState) bool { return a.mayDrain(h, now) })
}

// wanted adds up what the notices ask for, and the earliest end of time. A Freeze or a condition only limits how long
// the drain tries, since nothing of the node is lost to it; of several, the one that has the most time. A drained node is
// kept empty for as long as its notices last.
func (a *Agent) wanted(now time.Time) (order, bool) {
	o := order{terms: drain.Terms{Margin: a.o.Margin}}
	endless := false
	for _, h := range a.inOrder() {
		if !a.mayDrain(h, now) && !h.wantsEmpty() {
			continue
		}
		if c := demandOf(h); !slices.Contains(o.demands, c) {
			o.demands = append(o.demands, c)
		}
		due := h.Decision.Deadline
		switch {
		case h.Decision.Forced:
			if o.terms.Deadline.IsZero() || due.Before(o.terms.Deadline) {
				o.terms.Deadline = due
			}
			continue
		case h.Phase.isDrained() && h.Notice.Type == notice.Condition:
			continue // a pod that comes to the node has it begin anew, and then has its own time
		case due.IsZero() && a.o.ConditionDrain > 0:
			due = h.Began.Add(a.o.ConditionDrain)
		}
		endless = endless || due.IsZero()
		if due.After(o.terms.GiveUp) {
			o.terms.GiveUp = due
		}
	}
	if endless {
		o.terms.GiveUp = time.Time{}
	}
	slices.SortFunc(o.demands, func(x, y demand) int { return strings.Compare(fmt.Sprint(x), fmt.Sprint(y)) })
	if o.terms.Forced() {
		o.terms.GiveUp = time.Time{}
		if !o.terms.Deadline.After(a.overtime.passed) {
			o.terms.Deadline = a.overtime.until
		}
	}
	return o, len(o.demands) > 0
}

func (a *Agent) startDrain(ctx context.Context, o order) {
	now := time.Now()
	run := &drainRun{order: o, done: make(chan struct{}), quietUntil: now.Add(quietFor(o.terms.Deadline, now))}
	a.events.throttle.until(run.quietUntil)
	var work context.Context
	work, run.cancel = context.WithCancel(ctx)
	run.drain = drain.New(a.o.API, drain.Options{
		Node: a.o.Node, PolicyOf: o.policyOf, Select: o.concerns, Terms: o.terms, Volumes: a.o.Volumes, Logger: a.log,
		GraceSeconds: a.o.GraceSeconds, DisableEviction: a.o.DisableEviction, OnProgress: a.onProgress(run),
		OnDrained: func(r drain.Receipt) {
			run.handedOut.Store(true)
			a.tell(work, func(context.Context) { a.nodeDrained(run, r) })
		},
		OnArrival: func() {
			run.handedOut.Store(false)
			a.tell(work, func(context.Context) { a.podArrived(run) })
		},
		WasDrained: a.isReliedOn(),
	})
	a.drain = run
	doing := "draining"
	if !a.anyWaits(now) {
		doing = "keeping the drained node empty"
	}
	a.log.Info(doing, "for", o.kinds(), "deadline", o.terms.Deadline, "giveUp", o.terms.GiveUp)
	go func() {
		defer close(run.done)
		receipt, err := run.drain.Run(work)
		run.receipt = receipt
		a.tell(work, func(context.Context) { a.drainEnded(run, receipt, err) })
	}()
}

// onProgress keeps the metrics current, and says what blocks: an obstacle that is new at once, since a Spot machine may
// be gone in ten seconds, and how many pods still wait for those that are known now and then. That nothing blocks any
// more is shown at once. It runs in the engine's goroutine.
func (a *Agent) onProgress(run *drainRun) func(drain.Progress) {
	var saidAt time.Time
	var said string
	known := map[string]bool{}
	return func(p drain.Progress) {
		a.o.Metrics.progress(p)
		if askedAll(p) {
			a.askedEverybody(run)
		}
		isNew, obstructed := false, p.Obstructed()
		for _, b := range obstructed {
			obstacle := string(b.Reason) + " " + b.Budget
			isNew = isNew || !known[obstacle]
			known[obstacle] = true
		}
		if len(obstructed) == 0 {
			a.setBlocked(run, nil)
		}
		if !isNew && (len(obstructed) == 0 || time.Since(saidAt) < blockedEvery || p.String() == said) {
			return
		}
		saidAt, said = time.Now(), p.String()
		a.log.Warn("drain is blocked", "progress", said, "blocked", first(obstructed, mostLogged))
		a.events.emit(blocked(p))
		a.setBlocked(run, &p)
	}
}

// drainEnded records how a drain ended that did not empty the node.
func (a *Agent) drainEnded(run *drainRun, r drain.Receipt, err error) {
	if a.drain != run {
		return // it was stopped, and another may be under way
	}
	a.drain.cancel()
	a.drain = nil
	a.events.throttle.until(time.Time{})
	a.log.Error("not drained", "summary", r.Summary(), "err", observe.Clip(err.Error(), maxMessage))
	a.events.emit(notDrained(r, err))
	if r.Outcome == drain.DeadlinePassed {
		// The machine lives although its time is over: what is left is tried again until it goes or the notice does.
		a.overtime = overtime{passed: run.order.terms.Deadline, until: time.Now().Add(startedWindow)}
	}
	a.book(r, err)
}

// book takes a drain's end into the books: of the metrics, the log, the notifications and the notices.
func (a *Agent) book(r drain.Receipt, err error) {
	a.o.Metrics.receipt(r)
	a.logPods(r)
	a.noteEnd(r, err)
	now := time.Now()
	for _, h := range a.inOrder() {
		if h.Phase.isDraining() {
			a.trace(h, drainSpan(h.Notice.Type, r, err))
			a.drainedHere = err == nil
		}
		switch {
		case err == nil:
			a.take(h, inputEmptied, now)
		case r.Outcome != drain.DeadlinePassed:
			a.take(h, inputFailed, now)
		}
	}
	a.claimSlot(now)
}

// mostLogged bounds what is logged of the pods of one drain. A container runtime splits lines of more than 16 KiB.
const mostLogged = 20

// logPods logs the pods that did not end as they should have, a line each. After a drain that was stopped those that are
// left do not count: nobody wants them to go any more, or another drain sees to them.
func (a *Agent) logPods(r drain.Receipt) {
	odd := slices.DeleteFunc(slices.Clone(r.Pods), func(p drain.PodReceipt) bool {
		left := p.Left() && r.Outcome != drain.Cancelled
		return p.Action == podrules.Leave || !left && p.End != drain.Killed && p.Asked != drain.Forced
	})
	for _, p := range first(odd, mostLogged) {
		a.log.Warn("pod did not end in its own time", "namespace", p.Namespace, "pod", p.Name, "owner", p.Owner,
			"asked", p.Asked, "end", p.End, "graceWanted", p.GraceWanted, "graceGiven", p.GraceGiven)
	}
	if more := len(odd) - mostLogged; more > 0 {
		a.log.Warn("more pods did not end in their own time", "pods", more)
	}
}

func first[T any](all []T, most int) []T { return all[:min(len(all), most)] }

// stopDrain ends the drain, if there is one, and waits until it sends nothing any more.
func (a *Agent) stopDrain() {
	if a.drain == nil {
		return
	}
	run := a.drain
	a.drain = nil
	run.cancel()
	<-run.done
	a.events.throttle.until(time.Time{})
	a.log.Info("drain stopped", "for", run.order.kinds(), "summary", run.receipt.Summary())
	if !run.handedOut.Load() || run.receipt.Touched() > 0 {
		a.bookStopped(run.receipt)
	}
}

// bookStopped takes into the books what a drain had done when it was stopped, and says so where a pod was deleted past what
// blocked its eviction (I2).
func (a *Agent) bookStopped(r drain.Receipt) {
	a.o.Metrics.receipt(r)
	a.logPods(r)
	if slices.ContainsFunc(r.Pods, func(p drain.PodReceipt) bool { return p.Asked == drain.Forced }) {
		a.events.emit(drainStopped(r))
	}
}

// stopDrainUnlessNeeded ends the drain that no notice wants any more, or may have any more.
func (a *Agent) stopDrainUnlessNeeded() {
	if _, needed := a.wanted(time.Now()); !needed {
		a.stopDrain()
	}
}
