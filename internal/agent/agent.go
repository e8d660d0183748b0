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
	"regexp"
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

// NodeSource is a Source that reads its notices off the agent's own Node. With one, the agent follows the Node from its
// start and hands it on: there is never more than one watch.
type NodeSource interface {
	Source
	// Resume tells, before the first See, of this source's notices that an earlier agent was handling.
	Resume(notices []notice.Notice)
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
	Tracer    Tracer // nil keeps no spans
	Log       *slog.Logger
}

// Agent guards one node. Run it once.
type Agent struct {
	o      Options
	log    *slog.Logger
	events *events

	announcer  *announcer
	obstructed atomic.Pointer[drain.Progress] // what blocks the drain under way

	// wake brings news to the one goroutine that owns what is below.
	wake chan func(ctx context.Context)

	ready atomic.Bool // the node has been read

	keeper   *cordon.Keeper
	restored bool
	// snapshots are the latest by source; a source that has not been read since the start has none.
	snapshots map[string]notice.Snapshot
	handled   map[string]*handling       // by owner
	garbled   map[string]map[string]bool // by source, what is not understood and was said to be
	drain     *drainRun
	overtime  overtime
	node      *nodeWatch
	since     string // the version of the Node that was last read or made here
	retry     time.Duration
	others    []string // other tools at work on the node
	looked    bool     // others is known
	// conditions is what is known of failures to write the node's.
	conditions conditionTrouble
}

// New prepares an agent.
func New(o Options) *Agent {
	a := &Agent{
		o: o, log: o.Log, handled: map[string]*handling{}, snapshots: map[string]notice.Snapshot{}, garbled: map[string]map[string]bool{},
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
			source.Run(work, func(s notice.Snapshot) {
				a.tell(work, func(context.Context) { a.read(source.Name(), s) })
			})
		})
	}
	if a.o.Slots != nil {
		group.Go(func() { a.o.Slots.Run(work, func() { a.tell(work, func(context.Context) {}) }) })
	}
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
		a.o.Heartbeat.Beat()
		timer.Reset(a.reconcile(work))
		switch {
		case asked == nil && !a.underWay():
			return ctx.Err()
		case a.o.ExitAfterDrain && a.handledOne():
			return ErrDrained
		}
	}
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
// says so, and the notice is acknowledged or waits for other machines, whose agents see to it.
func (a *Agent) handledOne() bool {
	for _, h := range a.handled {
		approved := a.o.Approver == nil || h.Phase == Acknowledged || h.Notice.Status == notice.Started || h.waitsFor != ""
		if h.drainedHere && h.drained() && !h.dirty && approved && a.events.said() && a.told() {
			return true
		}
	}
	return false
}

// tell brings news to the agent's goroutine.
func (a *Agent) tell(ctx context.Context, news func(context.Context)) {
	select {
	case a.wake <- news:
	case <-ctx.Done():
	}
}

// read takes in a snapshot of one source's notices.
func (a *Agent) read(source string, s notice.Snapshot) {
	a.snapshots[source] = s
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
	a.announce(now)
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
	return []step{a.awaitImpact, a.yield, a.awaitTurn, a.hold, a.awaitDrain, a.approve}
}

// restore reads, once, what an earlier agent left on the node. Until it is read nothing else is done: the notice that
// is being handled might look like a new one.
func (a *Agent) restore(ctx context.Context) error {
	if a.restored {
		return nil
	}
	node, err := a.readNode(ctx)
	if err != nil {
		return fmt.Errorf("node %s: what is on it cannot be read: %w", a.o.Node, err)
	}
	if a.keeper, err = cordon.New(a.o.API, node.Name, node.UID); err != nil {
		return err
	}
	a.events.about(node.UID)
	records, problems := cordon.List(node)
	for _, err := range problems {
		a.log.Error("annotation on the node cannot be understood, and stays", "err", err)
	}
	for _, r := range records {
		a.resume(r)
	}
	for _, source := range a.nodeSources() {
		source.Resume(a.handledFrom(source.Name()))
	}
	a.others, a.looked = cordon.Others(node), len(a.nodeSources()) > 0
	a.restored = true
	if !a.ready.Swap(true) {
		a.events.emit(unspoken(Guarding, notice.Notice{}))
	}
	return nil
}

// readNode gives the Node that was found at the start, and afterwards reads it.
func (a *Agent) readNode(ctx context.Context) (*kubeapi.Node, error) {
	if found := a.o.Found; found != nil {
		a.o.Found = nil
		return found, nil
	}
	return a.o.API.GetNode(ctx, a.o.Node)
}

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

// handledFrom lists the notices of one source that are being handled.
func (a *Agent) handledFrom(source string) []notice.Notice {
	var all []notice.Notice
	for _, h := range a.handled {
		if h.Notice.Source == source {
			all = append(all, h.Notice)
		}
	}
	return all
}

// resume takes up what an earlier agent recorded. Records of other owners, such as a manager, are not ours to judge.
func (a *Agent) resume(r cordon.Record) {
	var h handling
	if err := json.Unmarshal(r.State, &h); err != nil || h.Notice.ID == "" || owner(h.Notice.Source, h.Notice.ID) != r.Owner {
		a.log.Info("the node is held by another", "owner", r.Owner, "reason", r.Reason)
		return
	}
	if a.handled[r.Owner] != nil {
		return // the Node was read again; what is in memory is newer
	}
	// A record without a cordon may be the rest of one that could not be taken away whole, and is made sure of.
	h.cordoned = r.Cordon != ""
	h.held, h.touched, h.restored = h.cordoned, true, true
	h.saidDraining = h.Phase == Draining
	if h.Phase == NotDrained {
		h.Phase, h.Began = Cordoned, time.Time{} // a new start is a new try
	}
	a.handled[r.Owner] = &h
	if now, due := time.Now(), h.Decision.Deadline; h.Decision.Forced && now.After(due) && due.After(a.overtime.passed) {
		// The machine outlived its deadline, so that what is left on it has not been tried in vain yet.
		a.overtime = overtime{passed: due, until: now.Add(startedWindow)}
	}
	a.log.Info("going on where an earlier agent stopped", "id", h.Notice.ID, "type", h.Notice.Type, "phase", h.Phase)
}

// absorb takes the snapshots' notices into the handlings, and decides about those that are new or have changed.
func (a *Agent) absorb() {
	for _, source := range a.o.Sources {
		s := a.snapshots[source.Name()]
		a.absorbFrom(s)
		a.sayUnreadable(source.Name(), s.Unreadable)
	}
}

// position is where an entry is in its list, which changes when another one comes or goes.
var position = regexp.MustCompile(`\[\d+\]`)

// sayUnreadable says what a source announces for this machine that cannot be understood, once for as long as that is the same.
// An entry that may be another machine's is logged and counted: each node would say it.
func (a *Agent) sayUnreadable(source string, parts []notice.Problem) {
	said, all := map[string]bool{}, []string{}
	for _, p := range parts {
		if !p.Named {
			continue
		}
		key := p.ID + "\x00" + position.ReplaceAllString(p.Err.Error(), "")
		if !a.garbled[source][key] && !said[key] {
			all = append(all, p.Err.Error())
		}
		said[key] = true
	}
	if len(all) > 0 {
		a.events.emit(unreadable(source, strings.Join(all, "; ")))
	}
	a.garbled[source] = said
}

func (a *Agent) absorbFrom(s notice.Snapshot) {
	for _, n := range s.Notices {
		key := owner(n.Source, n.ID)
		h := a.handled[key]
		if h == nil {
			h = &handling{Seen: Seen{First: s.At}}
			a.handled[key] = h
		}
		if n.Status == notice.Started && h.Seen.Started.IsZero() {
			h.Seen.Started = s.At
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
	h.dirty, h.gaveUp, h.unguarded = true, false, false
	a.log.Info("notice", "id", n.ID, "type", n.Type, "status", n.Status, "action", d.Action, "deadline", d.Deadline,
		"reason", d.Reason, "new", isNew, "resources", n.Resources, "description", n.Description)
	if !isNew {
		a.events.emit(changed(n, d))
		return
	}
	if !h.restored {
		a.o.Metrics.Notices.With(string(n.Type), string(d.Action)).Inc()
	}
	if now := time.Now(); d.Action.drains() && !a.o.DryRun {
		a.events.hush.until(now.Add(quietFor(d.Deadline, now)))
	}
	a.events.emit(noticed(n, d))
	a.traceNotice(h)
}

// isOver reports that a notice is over. Only a snapshot that its own source has read since the start can say so (I7);
// where that source is no longer listened to, its notices count for nothing any more.
func (a *Agent) isOver(h *handling) bool {
	if s, known := a.snapshots[h.Notice.Source]; known {
		return s.Over(h.Notice.ID)
	}
	return !slices.ContainsFunc(a.o.Sources, func(s Source) bool { return s.Name() == h.Notice.Source })
}

// release lets go of every notice that is over, and returns when to look again.
func (a *Agent) release(ctx context.Context, now time.Time) (time.Duration, error) {
	next := whenAsked
	var errs []error
	for key, h := range a.handled {
		if !a.isOver(h) {
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
		if wait := a.conditions.next.Sub(now); h.leftover && wait > 0 {
			next = min(next, wait)
			continue
		}
		err := a.letGo(ctx, h)
		switch {
		case cordon.IsConditions(err):
			// What is left on the node is theirs and their record's, which is kept until they can be taken away (I3).
			a.conditionsFailed(err, now)
			h.leftover = true
			next = min(next, a.conditions.pause)
		case err != nil:
			errs = append(errs, err)
		default:
			delete(a.handled, key)
		}
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
	a.announceOver(h)
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
		due, other := x.Decision.Deadline, y.Decision.Deadline
		switch {
		case due.IsZero() != other.IsZero():
			if due.IsZero() {
				return 1 // what is never due comes last
			}
			return -1
		case !due.Equal(other):
			return due.Compare(other)
		}
		return strings.Compare(x.Notice.ID, y.Notice.ID)
	})
	return all
}
