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
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
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
	FollowNode(ctx context.Context, name string, h kubeapi.Handler[kubeapi.Node]) error
}

// Source tells of the notices. *azure.Source is one.
type Source interface {
	Run(ctx context.Context, emit func(notice.Snapshot))
	LastRead() time.Time
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
	Machine  func(providerID string) (string, error)
	API      API
	Source   Source
	Approver Approver // nil never approves
	Volumes  drain.VolumeAPI
	Impact   Impact
	Margin   time.Duration
	// TaintEffect also taints the node while a notice holds it; empty does not.
	TaintEffect string
	DryRun      bool
	Metrics     *Metrics
	// Heartbeat is beaten at every turn of the agent's loop.
	Heartbeat interface{ Beat() }
	Tracer    Tracer // nil keeps no spans
	Log       *slog.Logger
}

// Agent guards one node. Run it once.
type Agent struct {
	o      Options
	log    *slog.Logger
	events *events

	// wake brings news to the one goroutine that owns what is below.
	wake chan func(ctx context.Context)

	ready atomic.Bool // the node has been read

	uid      string
	keeper   *cordon.Keeper
	restored bool
	known    bool // a snapshot has been read since the start
	snapshot notice.Snapshot
	handled  map[string]*handling // by notice ID
	drain    *drainRun
	overtime overtime
	node     *nodeWatch
	retry    time.Duration
	others   []string
}

// New prepares an agent.
func New(o Options) *Agent {
	a := &Agent{o: o, log: o.Log, handled: map[string]*handling{}, wake: make(chan func(context.Context), 16)}
	a.events = newEvents(o.API, o.Node, func() string { return a.uid }, func() { o.Metrics.EventsFailed.Inc() })
	return a
}

// Run guards the node until ctx ends. It returns nothing but ctx's end: whatever fails is tried again.
func (a *Agent) Run(ctx context.Context) error {
	work, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	group.Go(func() { a.events.run(work) })
	group.Go(func() {
		a.o.Source.Run(work, func(s notice.Snapshot) { a.tell(work, func(context.Context) { a.read(s) }) })
	})
	defer a.stopDrain()
	defer a.stopWatching()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case news := <-a.wake:
			news(work)
		case <-timer.C:
		}
		a.o.Heartbeat.Beat()
		timer.Reset(a.reconcile(work))
	}
}

// Ready says what the agent has not read yet since it started: the node, or the notices. Until both are read it
// guards nothing. It may be called from any goroutine.
func (a *Agent) Ready() error {
	switch {
	case !a.ready.Load():
		return fmt.Errorf("node %s: what is on it has not been read yet", a.o.Node)
	case a.o.Source.LastRead().IsZero():
		return errors.New("the notices have not been read yet")
	}
	return nil
}

// tell brings news to the agent's goroutine.
func (a *Agent) tell(ctx context.Context, news func(context.Context)) {
	select {
	case a.wake <- news:
	case <-ctx.Done():
	}
}

// read takes in a snapshot of the notices.
func (a *Agent) read(s notice.Snapshot) {
	a.known, a.snapshot = true, s
	for _, p := range slices.Concat(s.Unreadable, s.Warnings) {
		a.log.Error("part of the notices cannot be understood", "notice", p.ID, "err", p.Err)
		a.o.Metrics.Unreadable.Inc()
	}
}

// reconcile brings the node to where the notices want it, and returns when to look again if nothing happens before.
func (a *Agent) reconcile(ctx context.Context) time.Duration {
	next, err := a.advance(ctx)
	if err == nil {
		a.retry = 0
		return next
	}
	if ctx.Err() != nil {
		return whenAsked
	}
	a.o.Metrics.StepsFailed.Inc()
	a.log.Error("will try again", "err", err)
	a.retry = min(max(2*a.retry, firstRetry), lastRetry)
	return a.retry
}

func (a *Agent) advance(ctx context.Context) (time.Duration, error) {
	if err := a.restore(ctx); err != nil {
		return whenAsked, err
	}
	now := time.Now()
	a.absorb()
	next, err := a.release(ctx, now)
	errs := []error{err}
	for _, h := range a.inOrder() {
		for _, step := range a.steps() {
			wait, err := step(ctx, h, now)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", h.Notice.Type, h.Notice.ID, err))
				break
			}
			if wait > 0 {
				next = min(next, wait)
				break
			}
		}
	}
	a.steer(ctx)
	a.watchNode(ctx)
	a.count()
	if slices.ContainsFunc(a.inOrder(), (*handling).unrecorded) {
		next = 0
	}
	return next, errors.Join(errs...)
}

// step is one thing to be done for a notice. It is done when it returns 0 and no error; until then the steps after
// it wait. A positive duration is when to look again.
type step func(ctx context.Context, h *handling, now time.Time) (time.Duration, error)

func (a *Agent) steps() []step {
	return []step{a.awaitImpact, a.hold, a.awaitDrain, a.approve}
}

// restore reads, once, what an earlier agent left on the node. Until it is read nothing else is done: the notice that
// is being handled might look like a new one.
func (a *Agent) restore(ctx context.Context) error {
	if a.restored {
		return nil
	}
	node, err := a.o.API.GetNode(ctx, a.o.Node)
	if err != nil {
		return fmt.Errorf("node %s: what is on it cannot be read: %w", a.o.Node, err)
	}
	if a.keeper, err = cordon.New(a.o.API, node.Name, node.UID); err != nil {
		return err
	}
	a.uid = node.UID
	records, problems := cordon.List(node)
	for _, err := range problems {
		a.log.Error("annotation on the node cannot be understood, and stays", "err", err)
	}
	for _, r := range records {
		a.resume(r)
	}
	a.restored = true
	a.ready.Store(true)
	return nil
}

// resume takes up what an earlier agent recorded. Records of other owners, such as a manager, are not ours to judge.
func (a *Agent) resume(r cordon.Record) {
	var h handling
	if err := json.Unmarshal(r.State, &h); err != nil || h.Notice.ID == "" || owner(h.Notice.Source, h.Notice.ID) != r.Owner {
		a.log.Info("the node is held by another", "owner", r.Owner, "reason", r.Reason)
		return
	}
	if a.handled[h.Notice.ID] != nil {
		return // the Node was read again; what is in memory is newer
	}
	h.held, h.touched, h.restored = true, true, true
	if h.Phase == NotDrained {
		h.Phase = Cordoned // a new start is a new try
	}
	a.handled[h.Notice.ID] = &h
	if now, due := time.Now(), h.Decision.Deadline; h.Decision.Forced && now.After(due) && due.After(a.overtime.passed) {
		// The machine outlived its deadline, so that what is left on it has not been tried in vain yet.
		a.overtime = overtime{passed: due, until: now.Add(startedWindow)}
	}
	a.log.Info("going on where an earlier agent stopped", "id", h.Notice.ID, "type", h.Notice.Type, "phase", h.Phase)
}

// absorb takes the snapshot's notices into the handlings, and decides about those that are new or have changed.
func (a *Agent) absorb() {
	for _, n := range a.snapshot.Notices {
		h := a.handled[n.ID]
		if h == nil {
			h = &handling{Seen: seen{First: a.snapshot.At}}
			a.handled[n.ID] = h
		}
		if n.Status == notice.Started && h.Seen.Started.IsZero() {
			h.Seen.Started = a.snapshot.At
		}
		if n.NotBefore.IsZero() && n.Status == h.Notice.Status {
			n.NotBefore = h.Notice.NotBefore // unreadable now, known before: the last good state stands
		}
		a.decide(h, n)
	}
}

// decide applies the policy to the newest state of a notice and says what has changed.
func (a *Agent) decide(h *handling, n notice.Notice) {
	d := a.o.Impact.Decide(n, h.Seen)
	isNew := h.Decision.Reason == ""
	same := !isNew && h.Decision.equal(d) && h.Notice.Status == n.Status
	h.Notice, h.Decision = n, d
	if same {
		return
	}
	h.dirty, h.gaveUp = true, false
	a.log.Info("notice", "id", n.ID, "type", n.Type, "status", n.Status, "action", d.Action, "deadline", d.Deadline,
		"reason", d.Reason, "new", isNew, "resources", n.Resources, "description", n.Description)
	if !isNew {
		a.events.emit(changed(n, d))
		return
	}
	if !h.restored {
		a.o.Metrics.Notices.With(string(n.Type), string(d.Action)).Inc()
	}
	a.events.emit(noticed(n, d))
	a.traceNotice(h)
}

// release lets go of every notice that is over, and returns when to look again. Only a snapshot that was read since the
// start can say that a notice is over (I7).
func (a *Agent) release(ctx context.Context, now time.Time) (time.Duration, error) {
	next := whenAsked
	if !a.known {
		return next, nil
	}
	var errs []error
	for id, h := range a.handled {
		if !a.snapshot.Over(id) {
			h.over, h.missing = false, time.Time{}
			continue
		}
		if h.missing.IsZero() {
			h.missing = now
		}
		if wait := h.lingers(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		h.over = true
		if err := a.letGo(ctx, h); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(a.handled, id)
	}
	return next, errors.Join(errs...)
}

// letGo takes from the node what was put there on account of one notice.
func (a *Agent) letGo(ctx context.Context, h *handling) error {
	a.stopDrainUnlessNeeded()
	if h.touched && !a.o.DryRun {
		if err := a.unhold(ctx, h); err != nil {
			return err
		}
	}
	a.log.Info("notice is over", "id", h.Notice.ID, "type", h.Notice.Type, "phase", h.Phase)
	a.events.emit(over(h.Notice))
	a.o.Metrics.Over.With(string(h.Notice.Type)).Inc()
	return nil
}

// inOrder gives the handlings that are not over, the most urgent first.
func (a *Agent) inOrder() []*handling {
	all := make([]*handling, 0, len(a.handled))
	for _, h := range a.handled {
		if !h.over {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(x, y *handling) int {
		if c := x.Decision.Deadline.Compare(y.Decision.Deadline); c != 0 {
			return c
		}
		return strings.Compare(x.Notice.ID, y.Notice.ID)
	})
	return all
}
