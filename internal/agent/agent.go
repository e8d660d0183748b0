// Package agent guards one node: it hears that the machine is about to be interrupted, cordons, drains in time, lets
// the platform begin early, and gives the node back when the machine lived.
//
// It works alone. What it must not forget is on its own Node object (package cordon), so that a restarted agent goes on
// where the last one was killed, and a manager, where there is one, can read it.
//
// One goroutine owns all state. Whatever happens (a new snapshot of the notices, an end of the drain, a change of the
// Node, a timer) leads to one reconciliation: for each notice, a list of steps, each of them idempotent, stopping at
// the first that is not done.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

const (
	// DefaultMargin before a deadline covers the kubelet's report of a pod's end and the API server's answer.
	DefaultMargin = 2 * time.Second
	// firstRetry and lastRetry bound the pause after a failed step: a Spot notice may be of 30 s or less.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 2 * time.Second
	// whenAsked stands for "not by itself": something else wakes the agent. It is also how often an idle agent shows
	// that it is alive.
	whenAsked = time.Minute
)

// API is what the agent asks of the API server. *kubeapi.Client is one.
type API interface {
	drain.API
	cordon.API
	EventAPI
	NodeLister
	PodLister
	// FollowNode begins after a version of the Node that is known; with none it tells the Node first.
	FollowNode(ctx context.Context, name, since string, h kubeapi.Handler[kubeapi.Node]) error
}

// Source tells of notices. *azure.Source and *condition.Source are such.
type Source interface {
	// Name is the Source of its notices, which no other source has.
	Name() string
	Run(ctx context.Context, emit func(notice.Snapshot))
	LastRead() time.Time
}

// Resumer is a Source that needs to know which of its notices an earlier agent was handling.
type Resumer interface {
	Source
	// Resume tells of them, before the first See of a [NodeSource].
	Resume(notices []notice.Notice)
}

// NodeSource is a Source that reads its notices off the agent's own Node. With one, the agent follows the Node from its
// start and hands it on: there is never more than one watch.
type NodeSource interface {
	Resumer
	// See takes in a newer state of the Node, and does not block.
	See(node *kubeapi.Node)
}

// Approver lets the platform begin. *azure.Client is one.
type Approver interface {
	Approve(ctx context.Context, ids ...string) error
}

// Options are an agent's parts and settings. All are needed but those with a default.
type Options struct {
	Node     string
	Resource string // this machine's name as its notices spell it
	// Machine gives the name of another node's machine, from its spec.providerID.
	Machine func(providerID string) (string, error)
	API     API
	// Found is the Node as it was read just before; nil has the agent read it.
	Found *kubeapi.Node
	// Sources differ in name. Whether a notice is over is for its own source to say.
	Sources  []Source
	Approver Approver // of interruptions; nil never approves
	Volumes  drain.VolumeAPI
	Impact   Impact
	Margin   time.Duration
	// ConditionDrain is for how long pods are asked to leave on account of a condition; 0 is for as long as it holds.
	ConditionDrain time.Duration
	// Slots limits how many nodes are drained at once for what can wait; nil does not.
	Slots Slots
	// Taint is put on the node, and Labels are, while a notice holds it.
	Taint  Taint
	Labels map[string]string
	// LabelOwnCordon has the Labels be there only while the cordon is the agent's own.
	LabelOwnCordon bool
	// GraceSeconds replaces every pod's own grace; negative or nil keeps it.
	GraceSeconds *int64
	// DisableEviction deletes the pods from the start, past all disruption budgets: the user's own option (I2).
	DisableEviction bool
	// StopGrace is how long the end of Run waits for a drain under way. An agent that is started anew goes on anyway.
	StopGrace time.Duration
	// ExitAfterDrain ends Run once a notice of its time is handled: drained, acknowledged where that is wanted, said.
	ExitAfterDrain bool
	// Voice puts the Kubernetes Events into other words; nil has none.
	Voice  Voice
	DryRun bool
	// Notifier is told of the moments of every notice that something is done about; nil tells nobody.
	Notifier Notifier
	Metrics  *Metrics
	// Heartbeat is beaten at every turn of the agent's loop.
	Heartbeat interface{ Beat() }
	Tracer    observe.Tracer // nil keeps no spans
	Log       *slog.Logger
}

// Agent guards one node. Run it once.
type Agent struct {
	o      Options
	log    *slog.Logger
	events *events

	announcer *announcer

	// wake brings news to the one goroutine that owns what is below.
	wake chan func(ctx context.Context)

	ready atomic.Bool // the node has been read

	requests interrupter

	keeper   *cordon.Keeper
	restored bool
	// snapshots are the latest by source; a source that has not been read since the start has none.
	snapshots map[string]notice.Snapshot
	handled   map[string]*noticeState    // by owner
	garbled   map[string]map[string]bool // by source, what is not understood and was said to be
	drain     *drainRun
	overtime  overtime
	// drainedHere is true while the node is drained by this process, and not only by an earlier one.
	drainedHere bool
	node        *nodeWatch
	since       string // the version of the Node that was last read or made here
	retry       time.Duration
	others      []string // other tools at work on the node
	looked      bool     // others is known
	// unschedulable is true while the Node is known to take no new pods.
	unschedulable bool
	// conditions is what is known of failures to write the node's.
	conditions conditionTrouble
}

// New prepares an agent.
func New(o Options) *Agent {
	a := &Agent{
		o: o, log: o.Log, handled: map[string]*noticeState{}, snapshots: map[string]notice.Snapshot{}, garbled: map[string]map[string]bool{},
		wake: make(chan func(context.Context), 16),
	}
	a.events = newEvents(o.API, o.Node, func() { o.Metrics.EventsFailed.Inc() }, o.Voice)
	a.announcer = newAnnouncer(&a.o)
	return a
}

// waitForEvents waits until all Events are written, for a moment.
func (a *Agent) waitForEvents() {
	for end := time.Now().Add(lastWords); !a.events.said() && time.Now().Before(end); {
		time.Sleep(listenEvery)
	}
}

// ErrDrained is what Run returns when it was to end after a drain. Nothing is wrong.
var ErrDrained = errors.New("the node is drained")

// Run guards the node until ctx ends. It returns nothing but ctx's end, or ErrDrained where that was asked for: whatever
// fails is tried again.
func (a *Agent) Run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	group.Go(func() { a.events.run(work) })
	group.Go(func() { a.announcer.run(work) })
	for _, source := range a.o.Sources {
		group.Go(func() {
			var last *notice.Snapshot
			source.Run(work, func(s notice.Snapshot) {
				tell := a.tell
				if last == nil || !sameMoments(*last, s) {
					tell = a.interrupt
				}
				last = &s
				tell(work, func(context.Context) { a.read(source.Name(), s) })
			})
		})
	}
	if a.o.Slots != nil {
		group.Go(func() { a.followSlots(work) })
	}
	defer context.AfterFunc(ctx, func() { a.interrupt(work, func(context.Context) {}) })()
	defer a.waitForEvents() // of which the drain that is stopped now may make one
	defer a.stopDrain()
	defer a.stopWatching()
	timer := time.NewTimer(0)
	defer timer.Stop()
	asked := ctx.Done()
	var graceOver <-chan time.Time
	for {
		select {
		case <-asked:
			if !a.underWay() || a.o.StopGrace <= 0 {
				return ctx.Err()
			}
			a.log.Info("asked to stop: waiting for the drain under way", "atMost", a.o.StopGrace.String())
			asked, graceOver = nil, time.After(a.o.StopGrace)
		case <-graceOver:
			return ctx.Err()
		case news := <-a.wake:
			news(work)
		case <-timer.C:
		}
		if asked != nil && ctx.Err() != nil {
			continue // no more requests before that is seen
		}
		a.o.Heartbeat.Beat()
		timer.Reset(a.reconcile(work))
		switch {
		case asked == nil && !a.underWay():
			return ctx.Err()
		case a.o.ExitAfterDrain && a.handledOne() && a.events.said() && a.told():
			return ErrDrained
		}
	}
}

// followSlots has the agent have a turn whenever something is new of its drain slot. Only the loss of it is urgent: on a large
// cluster the others take turns all the time, and each turn would end a slow request of ours.
func (a *Agent) followSlots(ctx context.Context) {
	held := false
	a.o.Slots.Run(ctx, func() {
		had := held
		held = a.o.Slots.Held()
		tell := a.tell
		if had && !held {
			tell = a.interrupt
		}
		tell(ctx, func(context.Context) {})
	})
}

// Ready says what the agent has not read yet since it started: the node, or the notices. Until both are read it
// guards nothing. It may be called from any goroutine.
func (a *Agent) Ready() error {
	if !a.ready.Load() {
		return fmt.Errorf("node %s: what is on it has not been read yet", a.o.Node)
	}
	for _, source := range a.o.Sources {
		if source.LastRead().IsZero() {
			return fmt.Errorf("the notices have not been read yet: source %s", source.Name())
		}
	}
	return nil
}

// handledOne reports that a notice has been handled as far as it can be from here: the node is drained and its record
// says so, and the notice is acknowledged, or cannot be, or waits for other machines, whose agents see to it; or that it has
// ended since. No other notice with a deadline may still wait for its drain.
func (a *Agent) handledOne() bool {
	for _, h := range a.handled {
		approved := a.o.Approver == nil || h.recorded == Acknowledged || !approvable(h.Notice) || h.waitsFor != ""
		switch {
		case h.Phase.isDraining(), h.Decision.Forced && h.wantsDrain():
			return false
		case h.Phase.isDrained() && !(h.claim.isCurrent() && approved):
			return false
		}
	}
	return a.drainedHere
}

// tell brings news to the agent's goroutine.
func (a *Agent) tell(ctx context.Context, news func(context.Context)) {
	select {
	case a.wake <- news:
	case <-ctx.Done():
	}
}

// interrupt brings news to the agent's goroutine that must not wait for its requests: a notice came, changed or ended, a
// drain slot is lost, or the agent is to end.
func (a *Agent) interrupt(ctx context.Context, news func(context.Context)) {
	a.requests.interrupt()
	a.tell(ctx, func(ctx context.Context) {
		news(ctx)
		a.requests.taken()
	})
}

// reconcile brings the node to where the notices want it, and returns when to look again if nothing happens before.
func (a *Agent) reconcile(ctx context.Context) time.Duration {
	pass, end := a.requests.pass(ctx)
	defer end()
	next, err := a.advance(ctx, pass)
	switch {
	case err == nil:
		a.retry = 0
	case ctx.Err() != nil:
		return whenAsked
	case interrupted(pass):
		return listenEvery // what has interrupted it is about to be taken in
	default:
		a.o.Metrics.StepsFailed.Inc()
		a.log.Error("will try again", "err", err)
		a.retry = min(max(2*a.retry, firstRetry), lastRetry)
		next = a.retry
	}
	if at := a.nextDrain(time.Now()); !at.IsZero() {
		next = min(next, max(0, time.Until(at)))
	}
	if a.o.ExitAfterDrain && a.handledOne() {
		next = min(next, listenEvery) // Events and notifications of it may be all that is left
	}
	return next
}

// advance makes one pass over all notices, the most urgent first. What is started lives for as long as ctx; the requests
// that it waits for end with pass.
func (a *Agent) advance(ctx, pass context.Context) (time.Duration, error) {
	if err := a.restore(pass); err != nil {
		return whenAsked, err
	}
	a.absorb()
	a.announce(time.Now())
	next := a.markEnded(time.Now())
	a.stopDrainUnlessNeeded() // before any request, which may take long
	var errs []error
	for _, h := range a.inOrder() {
		wait, err := a.advanceOne(ctx, pass, h)
		next = min(next, wait)
		errs = append(errs, err)
	}
	wait, err := a.release(pass)
	next = min(next, wait)
	errs = append(errs, err)
	a.steer(ctx)
	a.watchNode(ctx)
	a.count()
	if !a.o.DryRun && slices.ContainsFunc(a.inOrder(), func(h *noticeState) bool { return h.claim.state == claimOutdated }) {
		next = 0
	}
	return next, errors.Join(errs...)
}

// advanceOne takes the steps of one notice, up to the first that is not done. An urgent drain does not wait for the steps of
// other notices, nor for its own once it may start.
func (a *Agent) advanceOne(ctx, pass context.Context, h *noticeState) (time.Duration, error) {
	steer := func() {
		if now := time.Now(); h.Decision.Forced && h.isUrgent(now) && a.mayDrain(h, now) {
			a.steer(ctx)
		}
	}
	steer()
	defer steer()
	if h.Decision.Action == Ignore {
		return whenAsked, nil
	}
	for _, step := range []step{a.awaitNode, a.writeClaim, a.awaitDrain, a.approve} {
		bounded, cancel := a.bound(pass, h)
		wait, err := step(bounded, h, time.Now())
		cancel()
		if err != nil {
			return whenAsked, fmt.Errorf("%s %s: %w", h.Notice.Type, h.Notice.ID, err)
		}
		if wait > 0 {
			return wait, nil
		}
	}
	return whenAsked, nil
}

// step is one thing to be done for a notice. It is done when it returns 0 and no error; until then the steps after
// it wait. A positive duration is when to look again.
type step func(ctx context.Context, h *noticeState, now time.Time) (time.Duration, error)

// nodeSources are the sources that read the Node.
func (a *Agent) nodeSources() []NodeSource {
	var all []NodeSource
	for _, source := range a.o.Sources {
		if s, ok := source.(NodeSource); ok {
			all = append(all, s)
		}
	}
	return all
}
