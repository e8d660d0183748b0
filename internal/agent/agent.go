// Package agent guards one node. It reads notices that the instance will be interrupted, cordons the node and drains
// it in time. It lets the platform begin early, and restores the node if the instance survives.
//
// The agent needs no manager. It records its state on its own Node object (package cordon). A restarted agent
// continues from there, and a manager can read it.
//
// One goroutine owns all state. Every change triggers one reconcile: a new snapshot of the notices, the end of the
// drain, a change of the Node, or a timer. A reconcile runs a list of idempotent steps for each notice, and stops at
// the first step that is not done.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

const (
	// DefaultDeadlineMargin is the time between the planned end of the last pod and the deadline. In this time the
	// kubelet reports the pod's end, and the API server answers.
	DefaultDeadlineMargin = 2 * time.Second
	// minRetryDelay and maxRetryDelay limit the pause after a failed step. They are short because a Spot notice may
	// come only 30 s before the instance stops.
	minRetryDelay = 100 * time.Millisecond
	maxRetryDelay = 2 * time.Second
	// idleInterval is the pause between two reconciles if no change triggers one. An idle agent updates its heartbeat
	// at this interval.
	idleInterval = time.Minute
)

// API lists the agent's requests to the API server. *kubeapi.Client implements it.
type API interface {
	drain.API
	cordon.API
	EventAPI
	NodeLister
	PodLister
	// WatchNode watches the Node from resourceVersion since. If since is empty, it first calls h with the present
	// Node.
	WatchNode(ctx context.Context, name, since string, h kubeapi.Handler[kubeapi.Node]) error
}

// Source reads notices from one place, such as Azure's metadata service. *azure.Source and *condition.Source implement
// it.
type Source interface {
	// Name is the Source field of its notices. No two sources share a name.
	Name() string
	Run(ctx context.Context, emit func(notice.Snapshot))
	LastRead() time.Time
}

// Resumer is a Source that, after a restart, has to know the notices that the previous agent process was handling.
type Resumer interface {
	Source
	// ResumeNotices passes these notices. It is called before the first See of a [NodeSource].
	ResumeNotices(notices []notice.Notice)
}

// NodeSource is a Source that reads its notices from the agent's own Node. With a NodeSource the agent watches the Node
// from the start, and passes each new state of the Node to the NodeSource. So one watch of the Node is enough.
type NodeSource interface {
	Resumer
	// ObserveNode passes a newer state of the Node. It does not block.
	ObserveNode(node *kubeapi.Node)
}

// Approver tells the platform that the interruption may begin before its deadline. *azure.Client implements it.
type Approver interface {
	Approve(ctx context.Context, ids ...string) error
}

// Surger starts successors of pods before they leave the node. *surge.Surger implements it.
type Surger interface {
	drain.Surger
	// RestoreExpired restores the sizes of owners after a crashed process has left their surges. It returns when ctx ends.
	RestoreExpired(ctx context.Context)
}

// Options configures an agent. A field is required unless its comment names a default.
type Options struct {
	Node         string
	ResourceName string // the instance's name as its notices spell it
	// InstanceName returns the name of an instance from its Node's spec.providerID.
	InstanceName func(providerID string) (string, error)
	API          API
	// InitialNode is the Node as just read; nil makes the agent read it.
	InitialNode *kubeapi.Node
	// Sources have different names. Only a notice's own source can report that the notice ended.
	Sources  []Source
	Approver Approver // approves interruptions; nil never approves
	// Approvers approve the interruptions of some sources instead of Approver, by the name of the source.
	Approvers map[string]Approver
	Volumes   drain.VolumeAPI
	Surger    Surger // starts successors of pods before they leave; nil starts none
	// EvictionRequests asks the responders of a pod before its eviction; nil asks none.
	EvictionRequests drain.EvictionRequestAPI
	Policy           NoticePolicy
	DeadlineMargin   time.Duration
	// ConditionDrainTimeout limits a drain for a node condition; 0 lets it continue while the condition is true.
	ConditionDrainTimeout time.Duration
	// DrainSlots limits how many nodes are drained at once for notices that can wait; nil disables the limit.
	DrainSlots DrainSlots
	// Taint and Labels are set on the node while a notice has a claim on it.
	Taint  Taint
	Labels map[string]string
	// ForAWSQueue is true for an agent of the AWS queue mode, which handles only records of the source notice.AWSQueue. Any
	// other agent leaves these records alone, because an agent of each mode may handle the same node.
	ForAWSQueue bool
	// TaintsFor returns the taints for a notice, instead of Taint; nil uses Taint.
	TaintsFor func(notice.Notice) []cordon.Taint
	// LabelsFor returns labels for a notice in addition to Labels, from the time when it was first read; nil returns none.
	LabelsFor func(n notice.Notice, first time.Time) map[string]string
	// LabelOwnCordon sets Labels only while the cordon is the agent's own.
	LabelOwnCordon bool
	// GracePeriodSeconds replaces the grace period of every pod, in seconds; nil or negative keeps the pod's own.
	GracePeriodSeconds *int64
	// DisableEviction deletes the pods from the start, despite PodDisruptionBudgets. It is the user's explicit option
	// (I2).
	DisableEviction bool
	// StopTimeout limits how long the end of Run waits for a running drain. A restarted agent continues the drain in
	// any case.
	StopTimeout time.Duration
	// ExitAfterDrain ends Run once a notice with a deadline is handled: drained, approved if configured, and
	// reported.
	ExitAfterDrain bool
	// EventFormatter formats Kubernetes Events differently; nil keeps the agent's own format.
	EventFormatter EventFormatter
	DryRun         bool
	// Notifier receives the moments of every notice that is not ignored; nil sends nothing.
	Notifier Notifier
	Metrics  *Metrics
	// Heartbeat beats at every iteration of the agent's loop.
	Heartbeat interface{ Beat() }
	Tracer    observe.Tracer // nil records no spans
	Log       *slog.Logger
}

// Agent guards one node. Run may be called once.
type Agent struct {
	options Options
	log     *slog.Logger
	events  *eventWriter

	notifications *notificationSender

	// updates passes changes to the goroutine that owns the fields below.
	updates chan func(ctx context.Context)

	ready atomic.Bool // the node has been read

	requests interrupter

	claimWriter *cordon.ClaimWriter
	recordsRead bool
	// snapshots holds the latest snapshot of each source that has been read since the start.
	snapshots          map[string]notice.Snapshot
	notices            map[string]*noticeState    // by claim owner
	reportedUnreadable map[string]map[string]bool // unreadable parts already reported, by source
	drain              *drainRun
	restores           sync.WaitGroup // counts the drains until their surges have restored sizes
	// mayHaveLeftRequests is true if an earlier process may have left EvictionRequests, and no drain has followed.
	mayHaveLeftRequests bool
	extension           deadlineExtension
	// podsAfterDeadline has the states of the pods at the end of the latest drain that ended at its deadline.
	podsAfterDeadline string
	// knownObstacles has the obstacles that the latest drain and its retries have reported. The goroutine of the drain uses it.
	knownObstacles map[string]bool
	// drainedByThisProcess is true once this process has drained the node, and not only an earlier one.
	drainedByThisProcess bool
	nodeWatch            *nodeWatch
	nodeVersion          string // resourceVersion of the Node when last read or written
	retryDelay           time.Duration
	reconcileFailure     reconcileFailure
	otherTools           []string // other tools that take the node out of service
	otherToolsKnown      bool     // otherTools is known
	// unschedulable is true while the Node is known to be unschedulable.
	unschedulable bool
	// conditionBackoff tracks failures to write the node's conditions.
	conditionBackoff conditionBackoff
}

// New returns an agent that does nothing until Run is called.
func New(o Options) *Agent {
	a := &Agent{
		options: o, log: o.Log, notices: map[string]*noticeState{}, snapshots: map[string]notice.Snapshot{}, reportedUnreadable: map[string]map[string]bool{},
		updates: make(chan func(context.Context), 16),
	}
	a.events = newEventWriter(o.API, o.Node, func() { o.Metrics.EventsFailed.Inc() }, o.EventFormatter)
	a.notifications = newNotificationSender(&a.options)
	return a
}

// waitForEvents waits until all queued Events are written or have failed, at most flushTimeout.
func (a *Agent) waitForEvents() {
	for end := time.Now().Add(flushTimeout); !a.events.isIdle() && time.Now().Before(end); {
		time.Sleep(shortPollInterval)
	}
}

// ErrDrained is the error of Run if the agent ended because of Options.ExitAfterDrain. It reports success: the node is
// drained.
var ErrDrained = errors.New("the node is drained")

// Run guards the node until ctx ends. It returns the error of ctx. With Options.ExitAfterDrain it returns ErrDrained
// once the node is drained. Run retries every failure and returns none of them.
func (a *Agent) Run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	group.Go(func() { a.events.run(work) })
	group.Go(func() { a.notifications.run(work) })
	for _, source := range a.options.Sources {
		group.Go(func() {
			var last *notice.Snapshot
			source.Run(work, func(s notice.Snapshot) {
				enqueue := a.enqueueUpdate
				if last == nil || !hasSameNotices(*last, s) {
					enqueue = a.interruptAndEnqueue
				}
				last = &s
				enqueue(work, func(context.Context) { a.storeSnapshotAndLogProblems(source.Name(), s) })
			})
		})
	}
	if a.options.DrainSlots != nil {
		group.Go(func() { a.reconcileOnDrainSlotChange(work) })
	}
	if a.options.Surger != nil {
		group.Go(func() { a.options.Surger.RestoreExpired(work) })
	}
	defer context.AfterFunc(ctx, func() { a.interruptAndEnqueue(work, func(context.Context) {}) })()
	defer a.waitForEvents() // stopping the drain may queue one more
	defer a.endDrain()
	defer a.stopNodeWatch()
	timer := time.NewTimer(0)
	defer timer.Stop()
	stopRequested := ctx.Done()
	var stopTimeout <-chan time.Time
	for {
		select {
		case <-stopRequested:
			if !a.isDrainRunning() || a.options.StopTimeout <= 0 {
				return ctx.Err()
			}
			a.log.Info("stopping: waiting for the running drain", "atMost", a.options.StopTimeout.String())
			stopRequested, stopTimeout = nil, time.After(a.options.StopTimeout)
		case <-stopTimeout:
			return ctx.Err()
		case update := <-a.updates:
			update(work)
		case <-timer.C:
		}
		if stopRequested != nil && ctx.Err() != nil {
			continue // send no more requests before the stop is handled
		}
		a.options.Heartbeat.Beat()
		timer.Reset(a.reconcile(work))
		switch {
		case stopRequested == nil && !a.isDrainRunning():
			return ctx.Err()
		case a.options.ExitAfterDrain && a.canExitAfterDrain() && a.events.isIdle() && a.areNotificationsSent():
			return ErrDrained
		}
	}
}

// reconcileOnDrainSlotChange triggers a reconcile whenever the drain slot changes. The loss of this node's slot also
// interrupts the agent's running requests. Other changes of the slots do not: in a large cluster other nodes take slots
// all the time, and each interruption would end a slow request.
func (a *Agent) reconcileOnDrainSlotChange(ctx context.Context) {
	held := false
	a.options.DrainSlots.Run(ctx, func() {
		had := held
		held = a.options.DrainSlots.IsHeld()
		enqueue := a.enqueueUpdate
		if had && !held {
			enqueue = a.interruptAndEnqueue
		}
		enqueue(ctx, func(context.Context) {})
	})
}

// CheckReady returns nil once the agent has read its node and the notices of every source. Before, it returns an error
// that names what was not read yet, because the agent does not guard the node until then. It may be called from any
// goroutine.
func (a *Agent) CheckReady() error {
	if !a.ready.Load() {
		return fmt.Errorf("node %s has not been read yet", a.options.Node)
	}
	for _, source := range a.options.Sources {
		if source.LastRead().IsZero() {
			return fmt.Errorf("source %s: the notices have not been read yet", source.Name())
		}
	}
	return nil
}

// canExitAfterDrain reports whether this process has drained the node and has nothing left to do for its notices. It
// returns false while a pod is evicted, or while a notice with a deadline still waits for its drain. It also returns
// false while a drained notice is not recorded on the Node, or not yet approved. Approval does not count if it is
// impossible, or if it waits for other instances.
func (a *Agent) canExitAfterDrain() bool {
	for _, h := range a.notices {
		approved := a.approverOf(h.Notice) == nil || h.recordedPhase == Acknowledged || !isApprovable(h.Notice) || h.waitsFor != ""
		switch {
		case h.Phase.isDraining(), h.Decision.Forced && h.needsDrain():
			return false
		case h.Phase.isDrained() && !(h.claim.isCurrent() && approved):
			return false
		}
	}
	return a.drainedByThisProcess
}

// enqueueUpdate passes update to the agent's goroutine, which runs it. If ctx ends first, update is not run, and the result
// is false.
func (a *Agent) enqueueUpdate(ctx context.Context, update func(context.Context)) (isQueued bool) {
	select {
	case a.updates <- update:
		return true
	case <-ctx.Done():
		return false
	}
}

// interruptAndEnqueue ends the agent's running requests, and then runs update in the agent's goroutine. It is for
// urgent updates: a notice came, changed or ended, a drain slot was lost, or the agent has to stop.
func (a *Agent) interruptAndEnqueue(ctx context.Context, update func(context.Context)) (isQueued bool) {
	a.requests.interruptRequests()
	return a.enqueueUpdate(ctx, func(ctx context.Context) {
		update(ctx)
		a.requests.markHandled()
	})
}

// reconcile changes the node as its notices require. It returns when to reconcile again if no change triggers a
// reconcile earlier.
func (a *Agent) reconcile(ctx context.Context) (recheckAfter time.Duration) {
	pass, end := a.requests.startPass(ctx)
	defer end()
	next, err := a.reconcileNotices(ctx, pass)
	switch {
	case err == nil:
		a.retryDelay, a.reconcileFailure = 0, reconcileFailure{}
	case ctx.Err() != nil:
		return idleInterval
	case isInterrupted(pass):
		return shortPollInterval // the update that interrupted it is about to be handled
	default:
		a.options.Metrics.StepsFailed.Inc()
		a.logReconcileFailure(err)
		a.retryDelay = min(max(2*a.retryDelay, minRetryDelay), maxRetryDelay)
		next = a.retryDelay
	}
	if at := a.nextForcedDrainStart(time.Now()); !at.IsZero() {
		next = min(next, max(0, time.Until(at)))
	}
	if a.options.ExitAfterDrain && a.canExitAfterDrain() {
		next = min(next, shortPollInterval) // only Events and notifications may be left to send
	}
	return next
}

// reconcileFailure holds what was logged about reconciles that have failed since the last one that succeeded.
type reconcileFailure struct {
	text     string // the last logged error without digits
	loggedAt time.Time
	failures int
}

// failureLogInterval is how often a lasting failure to reconcile is logged.
const failureLogInterval = time.Minute

// logReconcileFailure logs a failed reconcile, unless the same failure was logged within failureLogInterval. The agent may fail
// every maxRetryDelay for days, for example without a right. Digits do not count, because the port of a connection
// differs each time.
func (a *Agent) logReconcileFailure(err error) {
	f := &a.reconcileFailure
	f.failures++
	text := strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, err.Error())
	if text == f.text && time.Since(f.loggedAt) < failureLogInterval {
		return
	}
	f.text, f.loggedAt = text, time.Now()
	a.log.Error("reconcile failed, will retry", "err", err, "failures", f.failures)
}

// reconcileNotices handles all notices once, the most urgent first. The drain and the watch that it starts end with
// ctx. The requests that it waits for end with pass.
func (a *Agent) reconcileNotices(ctx, pass context.Context) (recheckAfter time.Duration, err error) {
	if err := a.resumeFromRecordsOnce(pass); err != nil {
		return idleInterval, err
	}
	a.mergeSnapshots()
	a.queueNotifications(time.Now())
	next := a.markEndedNotices(time.Now())
	a.stopUnneededDrain() // before any request, because a request may take long
	var errs []error
	for _, h := range a.activeNoticesByUrgency() {
		wait, err := a.reconcileNotice(ctx, pass, h)
		next = min(next, wait)
		errs = append(errs, err)
	}
	a.deleteLeftRequestsOnce(pass) // before the records that tell the next process of them
	wait, err := a.removeEndedClaims(pass)
	next = min(next, wait)
	errs = append(errs, err)
	a.syncDrainWithNotices(ctx)
	a.startOrStopNodeWatch(ctx)
	a.updateNoticeMetrics()
	if !a.options.DryRun && slices.ContainsFunc(a.activeNoticesByUrgency(), func(h *noticeState) bool { return h.claim.state == claimOutdated }) {
		next = 0
	}
	return next, errors.Join(errs...)
}

// reconcileNotice runs the steps of one notice, and stops at the first step that is not done. If the drain of a forced
// notice may start and cannot wait, reconcileNotice starts it before and after the steps. So an urgent drain does not
// wait for steps of other notices, or for the rest of its own steps.
func (a *Agent) reconcileNotice(ctx, pass context.Context, h *noticeState) (recheckAfter time.Duration, err error) {
	adjust := func() {
		if now := time.Now(); h.Decision.Forced && h.isUrgent(now) && a.canDrain(h, now) {
			a.syncDrainWithNotices(ctx)
		}
	}
	adjust()
	defer adjust()
	if h.Decision.Action == Ignore {
		return idleInterval, nil
	}
	for _, step := range []step{a.checkNodeAccess, a.writeClaimIfNeeded, a.checkDrainFinished, a.approveWhenAllDrained} {
		bounded, cancel := a.withStepTimeout(pass, h)
		wait, err := step(bounded, h, time.Now())
		cancel()
		if err != nil {
			return idleInterval, fmt.Errorf("%s %s: %w", h.Notice.Type, h.Notice.ID, err)
		}
		if wait > 0 {
			return wait, nil
		}
	}
	return idleInterval, nil
}

// step does one thing for a notice. It returns 0 and no error once it is done, and only then the next step runs. A
// positive result is the time until the step is tried again.
type step func(ctx context.Context, h *noticeState, now time.Time) (time.Duration, error)

func (a *Agent) nodeSources() []NodeSource {
	var all []NodeSource
	for _, source := range a.options.Sources {
		if s, ok := source.(NodeSource); ok {
			all = append(all, s)
		}
	}
	return all
}
