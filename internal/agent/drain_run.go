package agent

import (
	"context"
	"errors"
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

// drainClient returns drain.Options.Client of the agent. An agent of each mode may drain the same node, and neither may
// delete the EvictionRequests of the other.
func (a *Agent) drainClient() string {
	if a.options.ForAWSQueue {
		return "queue-agent"
	}
	return "agent"
}

// blockedEventInterval is the shortest time between two Events about a blocked drain. A new obstacle is reported at
// once.
const blockedEventInterval = 10 * time.Second

// drainSpec combines the demands of all notices into one drain.
type drainSpec struct {
	demands []demand // sorted, without duplicates
	terms   drain.TimeLimits
}

// noticeTypes returns the types of the combined notices, for log lines.
func (o drainSpec) noticeTypes() []notice.Type {
	var all []notice.Type
	for _, c := range o.demands {
		all = append(all, c.noticeType)
	}
	return slices.Compact(all)
}

// matchesPod reports whether a notice demands that the pod leaves the node. The pod policy may still forbid its
// eviction.
func (o drainSpec) matchesPod(p kubeapi.Pod) bool {
	_, ok := mostSevereType(o.demands, &p)
	return ok
}

// podPolicy returns the pod policy for the most severe of the notices that demand the pod's eviction.
func (o drainSpec) podPolicy(p kubeapi.Pod) podrules.Policy {
	kind, _ := mostSevereType(o.demands, &p)
	return policyForType(kind)
}

func (o drainSpec) equal(p drainSpec) bool {
	return slices.Equal(o.demands, p.demands) && o.terms.Margin == p.terms.Margin && o.terms.Deadline.Equal(p.terms.Deadline) &&
		o.terms.AnnouncedAt.Equal(p.terms.AnnouncedAt) && o.terms.TimeoutAt.Equal(p.terms.TimeoutAt)
}

// drainRun is a drain that was started, with its state.
type drainRun struct {
	spec      drainSpec
	drain     *drain.Drain
	cancel    context.CancelCauseFunc
	done      chan struct{}
	takesOver bool // as in drain.Options
	// specVersion counts the changes of spec. appliedVersion is the version that the engine uses.
	specVersion    int64
	appliedVersion atomic.Int64
	// report covers what OnDrained has not delivered. It is valid once done is closed.
	report drain.Report
	// undelivered is the report of OnDrained if the drain was stopped before the agent's goroutine took it. It is valid
	// once done is closed.
	undelivered drain.Report
	// reportDelivered is true from the call of OnDrained until the next pod arrives. The agent may not have recorded
	// the report yet.
	reportDelivered atomic.Bool
	// drained is true from the end of the drain until the next pod arrives.
	drained bool
	// allRequested is true once the eviction of every pod has been requested. Writes that wait for this wait at most
	// until throttleEnd.
	allRequested atomic.Bool
	throttleEnd  time.Time
	// blocked is the progress when the drain was last reported as blocked; nil while nothing blocks it.
	blocked atomic.Pointer[drain.Progress]
}

// blockedProgress returns the progress of the blocked drain for a notice; nil if nothing blocks it.
func (a *Agent) blockedProgress(h *noticeState) *drain.Progress {
	if !h.Phase.isDraining() || !a.isDrainRunning() {
		return nil
	}
	return a.drain.blocked.Load()
}

// setBlocked stores the pods that cannot be evicted and their obstacles, for the node's conditions and for
// notifications.
func (a *Agent) setBlocked(run *drainRun, p *drain.Progress) {
	if was := run.blocked.Swap(p); was != nil || p != nil {
		a.triggerReconcile()
	}
}

// triggerReconcile makes the agent reconcile soon. The drain engine calls it, so it does not block. If the queue is
// full, it does nothing, because the queued updates reconcile anyway.
func (a *Agent) triggerReconcile() {
	select {
	case a.updates <- func(context.Context) {}:
	default:
	}
}

// deadlineExtension gives a drain more time if the instance still runs after the deadline.
type deadlineExtension struct {
	deadline time.Time // the passed deadline
	until    time.Time
}

// syncDrainWithNotices starts, changes or stops the drain, so that it does what the notices need.
func (a *Agent) syncDrainWithNotices(ctx context.Context) {
	now := time.Now()
	a.checkPhases(now)
	want, needed := a.buildDrainSpec(now)
	switch {
	case a.options.DryRun || !needed:
		a.stopDrain(drain.ErrNotNeeded)
	case a.drain == nil:
		a.startDrain(ctx, want)
	case a.drain.reportDelivered.Load() && !slices.Equal(a.drain.spec.demands, want.demands), a.drain.drained && a.needsDrainNow(now):
		a.restartDrain(ctx, want)
	case !slices.Equal(a.drain.spec.demands, want.demands):
		a.changeDemands(ctx, want, now)
	case !a.drain.spec.equal(want):
		if a.isDrainRunning() {
			a.log.Info("the time limits of the drain have changed", "deadline", want.terms.Deadline, "giveUp", want.terms.TimeoutAt)
		}
		a.drain.spec = want
		if !a.drain.drain.SetTimeLimits(want.terms) { // it has ended, and only waits until surges have restored sizes
			a.restartDrain(ctx, want)
		}
	}
	a.updateSlotRequest(now) // after the drain was stopped, if it was
}

// restartDrain replaces the drain by a new one.
func (a *Agent) restartDrain(ctx context.Context, o drainSpec) {
	a.stopDrain(drain.ErrContinued)
	a.startDrain(ctx, o)
}

// changeDemands changes which pods the running drain evicts, and how. A new drain would cancel the surges that run, and start
// other successors. If the drain has ended, and only waits until surges have restored sizes, a new drain replaces it.
func (a *Agent) changeDemands(ctx context.Context, o drainSpec, now time.Time) {
	run := a.drain
	run.spec = o
	run.specVersion++
	version := run.specVersion
	a.startThrottle(run, now)
	if !run.drain.SetPodRules(drain.PodRules{
		PolicyForPod: o.podPolicy, ShouldDrainPod: o.matchesPod, OnApplied: func() { run.appliedVersion.Store(version) },
	}, o.terms) {
		a.restartDrain(ctx, o)
		return
	}
	a.log.Info("the drain is now also for other notices, or for fewer", "for", o.noticeTypes(), "deadline", o.terms.Deadline, "giveUp", o.terms.TimeoutAt)
}

// startThrottle delays writes that only inform people until the drain has requested all evictions.
func (a *Agent) startThrottle(run *drainRun, now time.Time) {
	run.allRequested.Store(false)
	run.throttleEnd = now.Add(throttleTime(run.spec.terms.Deadline, now))
	a.events.throttle.setEnd(run.throttleEnd)
}

// canDrain reports whether pods may be evicted for this notice now.
func (a *Agent) canDrain(h *noticeState, now time.Time) bool {
	next, _ := transition(h.Phase, inputChecked, a.computeTransitionGuard(h, now))
	return next.isDraining() && a.canStartDrain(h, now)
}

// needsDrainNow reports whether a notice needs the eviction of pods that have not left, and may have it now.
func (a *Agent) needsDrainNow(now time.Time) bool {
	return slices.ContainsFunc(a.activeNoticesByUrgency(), func(h *noticeState) bool { return a.canDrain(h, now) })
}

// buildDrainSpec combines the demands of all notices that may drain or keep the node empty. It returns false without
// such a notice. The deadline is the earliest deadline of a forced notice. Other notices have no deadline, because the
// pods survive their interruption; they only limit how long the drain tries. Of these limits the longest one is used,
// and only if no notice is forced.
func (a *Agent) buildDrainSpec(now time.Time) (spec drainSpec, needed bool) {
	o := drainSpec{terms: drain.TimeLimits{Margin: a.options.DeadlineMargin}}
	endless := false
	for _, h := range a.activeNoticesByUrgency() {
		if !a.canDrain(h, now) && !h.keepsNodeEmpty() {
			continue
		}
		if c := newDemand(h); !slices.Contains(o.demands, c) {
			o.demands = append(o.demands, c)
		}
		due := h.Decision.Deadline
		switch {
		case h.Decision.Forced:
			if o.terms.Deadline.IsZero() || due.Before(o.terms.Deadline) {
				o.terms.Deadline, o.terms.AnnouncedAt = due, h.Seen.First
				if h.Notice.Status == notice.Started { // its last seconds are for the pods, not for their PDBs
					o.terms.AnnouncedAt = time.Time{}
				}
			}
			continue
		case h.Phase.isDrained() && !h.Notice.Type.HasDeadline():
			continue // a pod that arrives restarts the drain, with its own time limit
		case due.IsZero() && a.options.ConditionDrainTimeout > 0:
			due = h.DrainStarted.Add(a.options.ConditionDrainTimeout)
		}
		endless = endless || due.IsZero()
		if due.After(o.terms.TimeoutAt) {
			o.terms.TimeoutAt = due
		}
	}
	if endless {
		o.terms.TimeoutAt = time.Time{}
	}
	slices.SortFunc(o.demands, func(x, y demand) int { return strings.Compare(fmt.Sprint(x), fmt.Sprint(y)) })
	if o.terms.HasDeadline() {
		o.terms.TimeoutAt = time.Time{}
		if !o.terms.Deadline.After(a.extension.deadline) {
			o.terms.Deadline = a.extension.until
		}
	}
	return o, len(o.demands) > 0
}

// drainSurger returns the Surger of drains, or nil. An interface with a nil Surger in it would not be nil.
func (a *Agent) drainSurger() drain.Surger {
	if a.options.Surger == nil {
		return nil
	}
	return a.options.Surger
}

// maxInFlight limits the evictions and the deletions in flight of a drain. 0 is the default of drain.Options. In the queue mode
// it is lower, because one process drains many nodes with one client.
func (a *Agent) maxInFlight() int {
	if a.options.ForAWSQueue {
		return 32
	}
	return 0
}

func (a *Agent) startDrain(ctx context.Context, o drainSpec) {
	now := time.Now()
	run := &drainRun{spec: o, done: make(chan struct{}), takesOver: a.mayHaveLeftRequests}
	a.startThrottle(run, now)
	var work context.Context
	work, run.cancel = context.WithCancelCause(ctx)
	run.drain = drain.New(a.options.API, drain.Options{
		MaxInFlight: a.maxInFlight(), Client: a.drainClient(), Node: a.options.Node, PolicyForPod: o.podPolicy, ShouldDrainPod: o.matchesPod, TimeLimits: o.terms, Volumes: a.options.Volumes, Logger: a.log,
		GraceSeconds: a.options.GracePeriodSeconds, DisableEviction: a.options.DisableEviction, EvictionRequests: a.options.EvictionRequests,
		OnProgress: a.newProgressHandler(run), Surger: a.drainSurger(),
		OnDrained: func(r drain.Report) {
			run.reportDelivered.Store(true)
			version := run.appliedVersion.Load()
			isQueued := a.enqueueUpdate(work, func(context.Context) {
				if a.drain == run && version != run.specVersion { // the report is about the demands of before
					if r.CountPodsToRemove() > 0 {
						a.recordStoppedDrain(r)
					}
					a.restartDrain(ctx, run.spec)
					return
				}
				a.recordNodeDrained(run, r)
			})
			if !isQueued {
				run.undelivered = r
			}
		},
		OnPodArrived: func() {
			run.reportDelivered.Store(false)
			a.enqueueUpdate(work, func(context.Context) { a.returnNoticesToDraining(run) })
		},
		WasDrained: a.isDrainedReported(), TakesOver: run.takesOver,
	})
	a.drain, a.mayHaveLeftRequests = run, false
	doing := "draining"
	if !a.needsDrainNow(now) {
		doing = "keeping the drained node empty"
	}
	a.log.Info(doing, "for", o.noticeTypes(), "deadline", o.terms.Deadline, "giveUp", o.terms.TimeoutAt)
	a.restores.Go(func() {
		receipt, err := run.drain.Run(work)
		run.report = receipt
		close(run.done)
		a.enqueueUpdate(work, func(context.Context) { a.recordFailedDrain(run, receipt, err) })
		run.drain.WaitForSurges()
	})
}

// newProgressHandler returns a handler that updates the metrics and reports what blocks the drain. It reports a new
// obstacle at once, because a Spot instance may be gone in ten seconds. It reports changed numbers of known obstacles
// at blockedEventInterval. It clears the report at once when nothing blocks the drain. A retry after the deadline logs only
// obstacles that no drain before it has logged, because each retry has the same ones. The handler runs in the engine's goroutine.
func (a *Agent) newProgressHandler(run *drainRun) func(drain.Progress) {
	var reportedAt time.Time
	var reported string
	isRetry := a.isRetryAfterDeadline(run.spec)
	if !isRetry || a.knownObstacles == nil {
		a.knownObstacles = map[string]bool{}
	}
	known, shown := a.knownObstacles, map[string]bool{}
	return func(p drain.Progress) {
		a.options.Metrics.setDrainProgress(p)
		if hasRequestedAll(p) {
			a.endThrottle(run)
		}
		isNew, isUnreported, obstructed := false, !isRetry, p.BlockedPods()
		for _, b := range obstructed {
			obstacle := string(b.Reason) + " " + b.PDB
			isNew, isUnreported = isNew || !shown[obstacle], isUnreported || !known[obstacle]
			shown[obstacle], known[obstacle] = true, true
		}
		if len(obstructed) == 0 {
			reported = "" // the same obstacle is reported again
			a.setBlocked(run, nil)
		}
		if !isNew && (len(obstructed) == 0 || time.Since(reportedAt) < blockedEventInterval || p.String() == reported) {
			return
		}
		reportedAt, reported = time.Now(), p.String()
		if isUnreported {
			a.log.Warn("drain is blocked", "progress", reported, "blocked", firstN(obstructed, maxLoggedPods))
			a.events.queueEvent(newDrainBlockedEvent(p))
		}
		a.setBlocked(run, &p)
	}
}

// isRetryAfterDeadline reports whether a drain is a retry because the instance still runs after the deadline.
func (a *Agent) isRetryAfterDeadline(o drainSpec) bool {
	return o.terms.HasDeadline() && o.terms.Deadline.Equal(a.extension.until)
}

// recordFailedDrain records the result of a drain that has ended with pods left on the node. It does not report a retry after the
// deadline if no pod has changed, because there is a retry every startedDrainTime.
func (a *Agent) recordFailedDrain(run *drainRun, r drain.Report, err error) {
	if a.drain != run {
		return // it was stopped, and another may be running
	}
	a.drain.cancel(nil)
	a.drain = nil
	if run.appliedVersion.Load() != run.specVersion { // it ended before it knew the demands of now
		a.recordStoppedDrain(r)
		return
	}
	a.events.throttle.setEnd(time.Time{})
	if r.Outcome == drain.DeadlinePassed {
		// The instance outlived its deadline. The drain is retried until the pods have left, the instance is gone or
		// the notice has ended.
		before, isRetry := a.podsAfterDeadline, a.isRetryAfterDeadline(run.spec)
		a.podsAfterDeadline = podStates(r)
		a.extension = deadlineExtension{deadline: run.spec.terms.Deadline, until: time.Now().Add(startedDrainTime)}
		if isRetry && a.podsAfterDeadline == before {
			a.storeDrainResult(r, err) // another notice may have begun since the report
			return
		}
	}
	a.log.Error("not drained", "summary", r.Summary(), "err", observe.ClipBytes(err.Error(), maxEventMessageBytes))
	a.events.queueEvent(newNotDrainedEvent(r, err))
	a.recordDrainEnd(r, err)
}

// podStates returns a text that changes if a pod of the report that has to leave is removed or ends in another way.
func podStates(r drain.Report) string {
	states := string(r.Outcome)
	for _, p := range r.Pods {
		if p.Action != podrules.Skip {
			states += "\n" + p.UID + " " + string(p.Removal) + " " + string(p.End)
		}
	}
	return states
}

// recordDrainEnd records the end of a drain in the metrics, the log, the notifications and the notices.
func (a *Agent) recordDrainEnd(r drain.Report, err error) {
	a.options.Metrics.recordDrain(r)
	a.logReport(r)
	a.storeDrainResult(r, err)
	now := time.Now()
	for _, h := range a.activeNoticesByUrgency() {
		if h.Phase.isDraining() {
			a.recordSpan(h, newDrainSpan(h.Notice.Type, r, err))
			a.drainedByThisProcess = err == nil
		}
		switch {
		case err == nil:
			a.handleInput(h, inputEmptied, now)
		case r.Outcome != drain.DeadlinePassed:
			a.handleInput(h, inputFailed, now)
		}
	}
	a.updateSlotRequest(now)
}

// maxLoggedPods limits the number of pods in the log of one drain. A container runtime splits lines longer than 16 KiB.
const maxLoggedPods = 20

// logReport logs the drain report, and one line for each pod that was killed, force-deleted or left behind. After a
// cancelled drain, it has no such line for pods that are left: they may stay, or another drain evicts them.
func (a *Agent) logReport(r drain.Report) {
	r.Log(a.log)
	odd := slices.DeleteFunc(slices.Clone(r.Pods), func(p drain.PodReport) bool {
		left := p.IsNotRemoved() && r.Outcome != drain.Cancelled
		return p.Action == podrules.Skip || !left && p.End != drain.Killed && p.Removal != drain.ForceDeleted
	})
	for _, p := range firstN(odd, maxLoggedPods) {
		a.log.Warn("pod was killed, force-deleted or left behind", "namespace", p.Namespace, "pod", p.Name, "owner", p.Owner,
			"asked", p.Removal, "end", p.End, "graceWanted", p.WantedGraceSeconds, "graceGiven", p.GivenGraceSeconds)
	}
	if more := len(odd) - maxLoggedPods; more > 0 {
		a.log.Warn("more pods were killed, force-deleted or left behind", "pods", more)
	}
}

func firstN[T any](all []T, most int) []T { return all[:min(len(all), most)] }

// endDrain stops a running drain at the end of the agent, and waits until it sends no more requests. If the Node has a record of
// the drain, the next agent of the node continues it, or deletes its EvictionRequests.
func (a *Agent) endDrain() {
	var cause error
	if slices.ContainsFunc(a.activeNoticesByUrgency(), func(h *noticeState) bool { return h.recordedPhase.isDraining() && h.claim.isCurrent() }) {
		cause = drain.ErrContinuedLater
	}
	a.stopDrain(cause)
	a.restores.Wait()
	defer a.options.Metrics.clearRemainingPods() // the process may have other agents
	// The report of the drain may be in the queue.
	for {
		select {
		case update := <-a.updates:
			update(context.Background())
		default:
			return
		}
	}
}

// stopDrain stops a running drain, and waits until it has ended. The cause is one of the drain package, or nil. If it lets the
// surges restore sizes in the background, the wait is short.
func (a *Agent) stopDrain(cause error) {
	if a.drain == nil {
		return
	}
	run := a.drain
	a.drain = nil
	run.cancel(cause)
	<-run.done
	if errors.Is(cause, drain.ErrContinued) {
		hasRequest := func(p drain.PodReport) bool { return p.EvictionRequest != nil }
		a.mayHaveLeftRequests = a.mayHaveLeftRequests || run.takesOver || slices.ContainsFunc(run.report.Pods, hasRequest)
	}
	a.events.throttle.setEnd(time.Time{})
	a.log.Info("drain stopped", "for", run.spec.noticeTypes(), "summary", run.report.Summary())
	if !run.reportDelivered.Load() || run.report.CountPodsToRemove() > 0 {
		a.recordStoppedDrain(run.report)
	}
	if run.undelivered.CountPodsToRemove() > 0 {
		a.recordStoppedDrain(run.undelivered)
	}
}

// recordStoppedDrain records in metrics and log what a stopped drain did with each pod. If the drain deleted a pod
// despite its PDB, it also emits an Event (invariant I2: such a deletion is reported).
func (a *Agent) recordStoppedDrain(r drain.Report) {
	a.options.Metrics.recordDrain(r)
	a.logReport(r)
	if slices.ContainsFunc(r.Pods, func(p drain.PodReport) bool { return p.Removal == drain.ForceDeleted }) {
		a.events.queueEvent(newDrainStoppedEvent(r))
	}
}

// deleteLeftRequestsOnce deletes the EvictionRequests that an earlier process has left, if no drain continues them soon: the notice
// has ended, or its drain waits for a drain slot or another tool. A failure only leaves requests that end with their pods.
func (a *Agent) deleteLeftRequestsOnce(ctx context.Context) {
	if !a.mayHaveLeftRequests || a.options.EvictionRequests == nil || a.options.DryRun || a.drain != nil {
		return
	}
	for _, h := range a.notices {
		if a.mayDrainSoon(h, time.Now()) {
			return
		}
	}
	bounded, cancel := a.withStepTimeout(ctx, nil)
	defer cancel()
	err := drain.DeleteEvictionRequests(bounded, a.options.EvictionRequests, a.drainClient(), a.options.Node)
	a.mayHaveLeftRequests = err != nil && isInterrupted(bounded)
	if err != nil {
		a.log.Warn("cannot delete the EvictionRequests of an earlier process: they end with their pods", "err", err)
	}
}

// mayDrainSoon reports whether a drain for the notice starts now, or may start once the notice is read or the node is cordoned.
func (a *Agent) mayDrainSoon(h *noticeState, now time.Time) bool {
	switch {
	case h.Phase == Releasing:
		return false
	case !a.mayActOnNotice(h, now), h.keepsNodeEmpty():
		return true
	case a.isWaitingForSlot(h, now) && len(a.options.DrainSlots.Holders()) == 0: // the slots are not read yet
		return h.needsDrain() && h.Phase != Yielded
	}
	return a.isDrainDue(h, now)
}

// stopUnneededDrain stops the drain if no notice needs a drain, or if no notice may drain the node now.
func (a *Agent) stopUnneededDrain() {
	if _, needed := a.buildDrainSpec(time.Now()); !needed {
		a.stopDrain(drain.ErrNotNeeded)
	}
}
