package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// lateBindWait is how long after its start a drain expects new pods on the node. In that time a scheduler that has
	// not seen the cordon may still bind a pod to the node.
	lateBindWait = 500 * time.Millisecond
	// finalListInterval is the pause between two final lists while the drain waits for volumes. The watch may miss a
	// pod that arrives in that time.
	finalListInterval = 10 * time.Second
	// emptyCheckTime is how long after its start a drain may list the node's pods even if its timeout has passed.
	emptyCheckTime = 2 * time.Second
	// idleWait is the longest pause of the engine if no time limit comes earlier. Every event ends the pause.
	idleWait = time.Hour
)

// Drain is one drain of one node. Call Run once. SetTimeLimits may be called from any goroutine while it runs.
type Drain struct {
	api     API
	options Options

	mu       sync.Mutex
	newTerms *TimeLimits
	newRules *PodRules
	closed   bool // no new terms are applied any more

	// inbox passes results of the watch and of requests to the engine's goroutine. Only that goroutine touches the
	// fields below.
	inbox *inbox

	terms         TimeLimits
	policy        podrules.Policy
	deadlineSince time.Time // when the drain first had a deadline, or got that of a later notice
	startedAt     time.Time
	ended         bool
	pods          map[string]*podState // by UID
	podsByName    []*podState          // all pods, by namespace and name
	remaining     []*podState          // pods that are not gone; see dropGoneAndSortRemaining
	pdbs          *pdbState
	pdbQueues     map[string]*pdbQueue
	groups        map[groupKey]*groupState
	// queueLengths counts the waiting pods of each PDB queue. It is nil until a step needs it.
	queueLengths map[string]int
	evictions    *requestTracker
	deletions    *requestTracker
	listed       bool
	listErr      error
	limit        *concurrencyLimit
	conditions   conditionWrites
	finalList    finalList
	detachWait   *detachWait
	requests     *evictionRequests // nil until a pod with responders is evicted
	// reportedDrained is true after OnDrained was called and no pod arrived since.
	reportedDrained bool
	// decidingSurges counts the surges that are being decided. surgingOwners has the controllers, by UID, of the pods with
	// a surge that has not returned yet.
	decidingSurges   int
	surgingOwners    map[string]bool
	restoreWaitSince time.Time // since when the drained node waits for them; zero is not yet
	// background counts the goroutines of the watch and the requests. surges counts the running surges.
	background, surges sync.WaitGroup
	// stopped is closed once the context has ended with one of the causes in drain.go.
	stopped chan struct{}
}

// SetTimeLimits changes the time limits. With less time, pods that are stopping get a shorter grace if theirs is longer
// than the time left. More time is used only for the pods that were not evicted yet. Equal time limits change nothing. It
// returns false if the drain has ended. Run may not have returned yet, because surges restore sizes.
func (d *Drain) SetTimeLimits(t TimeLimits) (accepted bool) { return d.setTerms(nil, t) }

// PodRules says which pods a drain handles, and how. Its functions are as in Options.
type PodRules struct {
	PolicyForPod   func(kubeapi.Pod) podrules.Policy
	ShouldDrainPod func(kubeapi.Pod) bool
	// OnApplied, if set, is called once the drain uses these rules, from the engine's goroutine. It must not block.
	OnApplied func()
}

// SetPodRules changes the rules and the time limits while the drain runs. Surges and evictions that still conform go on. It is
// as [Drain.SetTimeLimits] otherwise.
func (d *Drain) SetPodRules(r PodRules, t TimeLimits) (accepted bool) { return d.setTerms(&r, t) }

// setTerms sets the terms that the engine takes over next. Nil rules keep the rules.
func (d *Drain) setTerms(r *PodRules, t TimeLimits) (accepted bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	if r != nil {
		d.newRules = r
	}
	d.newTerms = &t
	d.inbox.putAndWake(nil)
	return true
}

// closeTerms makes setTerms return false from now on. It returns false itself if there are new terms to apply.
func (d *Drain) closeTerms() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = d.newTerms == nil
	return d.closed
}

// applyNewTerms takes over what SetTimeLimits and SetPodRules have set.
func (d *Drain) applyNewTerms(now time.Time) {
	d.mu.Lock()
	t, r := d.newTerms, d.newRules
	d.newTerms, d.newRules = nil, nil
	d.mu.Unlock()
	if t == nil {
		return
	}
	if r != nil {
		d.options.PolicyForPod, d.options.ShouldDrainPod = r.PolicyForPod, r.ShouldDrainPod
		for _, p := range d.pods {
			p.decided = false // also of terminating pods: those that the rules before skipped may now be waited for
		}
		if r.OnApplied != nil {
			r.OnApplied()
		}
	}
	if t.HasDeadline() && (!d.terms.HasDeadline() || t.AnnouncedAt.After(d.deadlineSince)) {
		d.deadlineSince = now
	}
	d.terms = *t
	d.policy = policyFor(d.options, d.terms)
	for _, p := range d.pods {
		d.decidePodAction(p, now)
		d.reviewSurge(p)
		if p.requesting { // its timeout was computed from the old terms
			p.shortenRequest(now)
		}
	}
}

// Run drains the node; see the function Run.
func (d *Drain) Run(ctx context.Context) (Report, error) {
	work, stop := context.WithCancel(ctx)
	defer stop()
	d.startedAt = time.Now()
	d.deadlineSince = d.startedAt
	d.stopped = make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		if leavesRequests(ctx) || leavesSurges(ctx) {
			close(d.stopped)
		}
	})()
	if d.options.TakesOver && d.options.EvictionRequests != nil && !d.options.DisableEviction {
		d.startEvictionRequests(work)
	}
	d.background.Go(func() {
		if err := d.watchPods(work, d.newPodHandler()); work.Err() == nil {
			d.inbox.putAndWake(func(time.Time) { d.recordWatchError(fmt.Errorf("the watch of its pods ended: %w", err)) })
		}
	})
	outcome := d.runUntilOutcome(work)
	for outcome == Drained && d.options.OnDrained != nil || !d.closeTerms() {
		if outcome == Drained && d.options.OnDrained != nil {
			outcome = d.redrainOnArrival(work)
		} else { // the caller changed the terms just before the end
			outcome = d.runUntilOutcome(work)
		}
	}
	d.ended = true
	endedAt := time.Now()
	stop()
	d.background.Wait()
	d.withdrawEvictionRequests(ctx) // first, so that the responders stop soon
	d.awaitRestores(ctx)
	d.processInbox() // answers that arrived while the drain ended
	report := d.newReport(outcome)
	report.EndedAt = endedAt
	return report, d.outcomeError(ctx, outcome, report)
}

// leavesRequests reports whether another drain takes over the EvictionRequests.
func leavesRequests(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return errors.Is(cause, ErrContinued) || errors.Is(cause, ErrContinuedLater)
}

// leavesSurges reports whether the surges may restore the sizes in the background.
func leavesSurges(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return errors.Is(cause, ErrContinued) || errors.Is(cause, ErrNotNeeded)
}

// runUntilOutcome runs the engine until the drain ends, and returns how it ended. In each round it decides what to do,
// and then waits for an event or for the next due time.
func (d *Drain) runUntilOutcome(ctx context.Context) Outcome {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		d.processInbox()
		now := time.Now()
		d.applyNewTerms(now)
		if ctx.Err() != nil {
			d.reportProgress()
			if d.options.OnDrained == nil && d.isEmpty() && d.finalList.done { // only volumes are still waited for
				return Drained
			}
			return Cancelled
		}
		review := d.applyDueTimers(now)
		d.reportArrivalOnce()
		outcome, over := d.checkOutcome(now)
		if over {
			d.reportProgress()
			return outcome
		}
		next := earlierNonZero(d.advanceRemovals(ctx, now), review)
		d.reportProgress()
		timer.Reset(max(0, next.Sub(now)))
		select {
		case <-ctx.Done():
		case <-d.inbox.filled:
		case <-timer.C:
		}
	}
}

func (d *Drain) processInbox() {
	for _, n := range d.inbox.takeAll() {
		n(time.Now())
	}
}

func (d *Drain) newPodHandler() kubeapi.Handler[kubeapi.Pod] {
	return kubeapi.Handler[kubeapi.Pod]{
		Replaced: func(all []kubeapi.Pod) { d.inbox.putAndWake(func(now time.Time) { d.replacePods(all, now) }) },
		Changed: func(p kubeapi.Pod) {
			d.inbox.putAndWake(func(now time.Time) { d.addOrUpdatePod(p, now).watched = true })
		},
		Deleted: func(p kubeapi.Pod) { d.inbox.putAndWake(func(now time.Time) { d.markPodGone(p, now) }) },
		Failed:  func(err error) { d.inbox.putAndWake(func(time.Time) { d.recordWatchError(err) }) },
	}
}

func (d *Drain) recordWatchError(err error) {
	d.options.Logger.Warn("cannot watch the node's pods", "node", d.options.Node, "err", err)
	if !d.listed {
		d.listErr = err
	}
}

// replacePods takes over a list of the watch. A pod that only a final list has shown may be newer than this list, because a slow
// answer can come after the answer to a later request. If this list lacks the pod, the pod is missing. The watch or the next
// final list then shows whether it is gone (I7).
func (d *Drain) replacePods(all []kubeapi.Pod, now time.Time) {
	d.listed, d.listErr = true, nil
	var known []string
	for uid, p := range d.pods {
		switch {
		case p.watched:
			known = append(known, uid)
		case !p.gone:
			p.missing = true
			d.finalList.done, d.finalList.nextAt = false, time.Time{}
		}
	}
	d.mergePodList(all, known, now)
	for _, p := range all {
		d.pods[p.UID].watched = true
	}
}

// mergePodList takes over a list of the node's pods. A pod with a UID in known that is not in the list is gone.
func (d *Drain) mergePodList(all []kubeapi.Pod, known []string, now time.Time) {
	there := make(map[string]bool, len(all))
	for _, p := range all {
		there[p.UID] = true
		d.addOrUpdatePod(p, now)
	}
	for _, uid := range known {
		if p := d.pods[uid]; p != nil && !there[uid] {
			p.markGone(now)
			d.attributeToSurge(p, now)
		}
	}
}

func (d *Drain) addOrUpdatePod(pod kubeapi.Pod, now time.Time) *podState {
	p := d.pods[pod.UID]
	if p == nil {
		p = &podState{wantedGrace: wantedGrace(&pod, d.options.GraceSeconds), wave: waveIndex(&pod, d.options.WaveBoundaries)}
		p.pod = pod
		d.pods[pod.UID] = p
		d.remaining = append(d.remaining, p)
		i, _ := slices.BinarySearchFunc(d.podsByName, p, compareByName)
		d.podsByName = slices.Insert(d.podsByName, i, p)
	}
	p.missing = false
	p.setPod(pod)
	d.attributeToSurge(p, now)
	d.decidePodAction(p, now)
	d.reviewSurge(p)
	d.pdbs.assignPDBBackoff(p, now)
	return p
}

func (d *Drain) markPodGone(pod kubeapi.Pod, now time.Time) {
	p := d.pods[pod.UID]
	if p == nil {
		return
	}
	p.setPod(pod)
	p.markGone(now)
	d.attributeToSurge(p, now)
	d.options.Logger.Debug("pod is gone", "pod", p.name(), "end", p.end)
}

// decidePodAction decides what to do with a pod, by the rules, the policy and the caller's options. It decides again
// until the pod is evicted, because a protection may be added or removed. If another client deletes the pod, the last
// decision stays.
func (d *Drain) decidePodAction(p *podState, now time.Time) {
	if p.gone || p.removal != NotRemoved || p.requesting || (p.isTerminating() && p.decided) {
		return
	}
	policy := d.policy
	if d.options.PolicyForPod != nil {
		policy = d.options.PolicyForPod(p.pod)
	}
	facts := fromkubeapi.PodFacts(&p.pod)
	if d.options.ShouldDrainPod != nil && !d.options.ShouldDrainPod(p.pod) {
		facts.Flags |= podrules.Excluded
	}
	if d.options.AddFacts != nil {
		d.options.AddFacts(&facts, &p.pod)
	}
	p.group = d.findGroup(&facts, &p.pod)
	v := policy.Decide(&facts, now)
	p.decision, p.action, p.decided, p.reviewAt = Decision{v.Rule, v.Reason(&facts)}, v.Action, true, time.Time{}
	if v.ValidUntil != 0 {
		p.reviewAt = time.Unix(0, v.ValidUntil)
	}
}

// applyDueTimers decides again about pods with an expired protection. It also skips pods that have been terminating for
// longer than Options.SkipTerminatingAfter. It returns when it has to be called again, or zero.
func (d *Drain) applyDueTimers(now time.Time) (next time.Time) {
	for _, p := range d.remaining {
		if p.gone {
			continue
		}
		if p.removal == NotRemoved && !p.requesting && !p.isTerminating() && !p.reviewAt.IsZero() {
			if !now.Before(p.reviewAt) {
				d.decidePodAction(p, now)
			}
			next = earlierNonZero(next, p.reviewAt)
		}
		if d.options.SkipTerminatingAfter <= 0 || !p.isTerminating() || !p.needsRemoval() {
			continue
		}
		if end := p.pod.DeletionTimestamp.Add(d.options.SkipTerminatingAfter); now.Before(end) {
			next = earlierNonZero(next, end)
		} else {
			p.action = podrules.Skip
		}
	}
	return next
}

// checkOutcome returns how the drain has ended, or false if it has not ended.
func (d *Drain) checkOutcome(now time.Time) (outcome Outcome, over bool) {
	switch {
	case d.listed && d.hasPod(func(p *podState) bool { return p.needsRemoval() && p.action == podrules.RefuseDrain }):
		return RefusedByPolicy, true
	case d.isEmpty() && d.finalList.done && d.isDetachWaitOver(now) && d.areSurgesOver(now):
		return Drained, true
	case d.terms.HasDeadline() && !now.Before(d.terms.Deadline):
		return DeadlinePassed, true
	case d.hasTimedOut(now):
		return TimedOut, true
	}
	return "", false
}

// hasTimedOut reports whether a voluntary drain stops trying. A drain may start after its timeout, because its process was
// restarted. If the node may be empty, such a drain has emptyCheckTime to confirm that (I8).
func (d *Drain) hasTimedOut(now time.Time) bool {
	if d.terms.TimeoutAt.IsZero() || now.Before(d.terms.TimeoutAt) {
		return false
	}
	mayBeEmpty := !d.listed || d.isEmpty() && !d.finalList.done
	return !mayBeEmpty || !now.Before(d.startedAt.Add(emptyCheckTime))
}

func (d *Drain) hasPod(is func(*podState) bool) bool { return slices.ContainsFunc(d.remaining, is) }

// isEmpty reports whether the node's pods were listed and no pod has to be removed.
func (d *Drain) isEmpty() bool { return d.listed && !d.hasPod((*podState).needsRemoval) }

// finalList tracks the list request that confirms that the node is empty. It is sent after the last known pod was gone.
// A watch may lag or break, so a pod may exist that the watch has not reported (invariant I7: unknown is not gone). The
// request is repeated while the drain waits for volumes.
type finalList struct {
	inFlight bool
	done     bool
	nextAt   time.Time
	listedAt time.Time // when the last list that succeeded was requested
}

// startFinalListIfEmpty sends the final list request if no known pod has to be removed. It returns when it has to be
// called again; zero means after the next event.
func (d *Drain) startFinalListIfEmpty(ctx context.Context, now time.Time) (checkAt time.Time) {
	r := &d.finalList
	if !d.isEmpty() {
		r.done, r.nextAt = false, time.Time{}
		return time.Time{}
	}
	if r.inFlight {
		return time.Time{}
	}
	if at := laterOf(r.nextAt, d.startedAt.Add(lateBindWait)); now.Before(at) {
		return at
	}
	r.inFlight = true
	known := slices.Collect(maps.Keys(d.pods)) // the watch may report a pod first that arrived after the list was made
	d.background.Go(func() {
		at := time.Now()
		pods, err := d.listPods(ctx)
		d.inbox.putAndWake(func(now time.Time) {
			r.inFlight = false
			if err != nil {
				r.done, r.nextAt = false, now.Add(maxRetryPause)
				d.recordWatchError(err)
				return
			}
			d.mergePodList(pods, known, now)
			r.done, r.nextAt, r.listedAt = true, now.Add(finalListInterval), at // an arriving pod resets done and nextAt
		})
	})
	return time.Time{}
}

func (d *Drain) watchPods(ctx context.Context, h kubeapi.Handler[kubeapi.Pod]) error {
	return d.api.WatchPodsOnNode(ctx, d.options.Node, h)
}

func (d *Drain) listPods(ctx context.Context) ([]kubeapi.Pod, error) {
	pods, err := d.api.ListPodsOnNode(ctx, d.options.Node)
	if err != nil {
		return nil, fmt.Errorf("node %s: listing its pods: %w", d.options.Node, err)
	}
	return pods, nil
}

// listOnce returns the first list that follow delivers, or its first failure. It then ends follow.
func listOnce[T any](
	ctx context.Context, watch func(context.Context, kubeapi.Handler[T]) error,
) (all []T, err error) {
	once, enough := context.WithCancel(ctx)
	defer enough()
	err = errors.New("no answer")
	ended := watch(once, kubeapi.Handler[T]{
		Replaced: func(list []T) {
			if once.Err() == nil {
				all, err = list, nil
				enough()
			}
		},
		Failed: func(e error) {
			if once.Err() == nil {
				err = e
				enough()
			}
		},
	})
	if err != nil && ctx.Err() != nil {
		err = ended
	}
	return all, err
}

// advanceRemovals sends the requests that are due. It returns when it has to be called again if no event comes earlier.
func (d *Drain) advanceRemovals(ctx context.Context, now time.Time) (next time.Time) {
	next = d.nextTimeLimit(now)
	if !d.listed {
		return next
	}
	next = earlierNonZero(next, d.holdGroups(ctx, now))
	pods := d.dropGoneAndSortRemaining()
	d.queueLengths, d.evictions.waitingNamespaces, d.deletions.waitingNamespaces = nil, nil, nil
	next = earlierNonZero(next, d.startFinalListIfEmpty(ctx, now))
	next = earlierNonZero(next, d.startVolumePollIfDue(ctx, now))
	next = earlierNonZero(next, d.nextRestoreCheck(now))
	next = earlierNonZero(next, d.syncEvictionRequests(now))
	open := d.waveStartTimes(now)
	for _, p := range pods {
		switch {
		case p.requesting || !p.needsRemoval():
		case p.isWaiting() && now.Before(open[p.wave]):
			d.holdReleasedGroup(p)
			p.setBlocked(ObstacleEarlierWave, "", "pods of lower priority are evicted first", now)
			next = earlierNonZero(next, open[p.wave])
		case p.held:
			next = earlierNonZero(next, d.tryReleaseGroup(ctx, p, now))
		case p.isWaiting():
			next = earlierNonZero(next, d.tryRemovePod(ctx, p, now))
		default:
			next = earlierNonZero(next, d.shortenGraceIfTooLong(ctx, p, now))
		}
	}
	return next
}

// earlierNonZero returns the earlier of two times, where zero means never.
func earlierNonZero(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// nextTimeLimit returns the next time at which a time limit may end the drain, or the time after idleWait if that is earlier.
func (d *Drain) nextTimeLimit(now time.Time) time.Time {
	next := now.Add(idleWait)
	for _, t := range []time.Time{d.terms.Deadline, d.terms.TimeoutAt, d.startedAt.Add(emptyCheckTime)} {
		if t.After(now) && t.Before(next) {
			next = t
		}
	}
	return next
}

// waveStartTimes returns the start time of each wave. The first wave with pods starts now. A later wave starts once the
// pods of all earlier waves are gone, or at its latest start before the deadline.
func (d *Drain) waveStartTimes(now time.Time) []time.Time {
	open := make([]time.Time, len(d.options.WaveBoundaries)+1)
	longest := make([]time.Duration, len(open))
	first := len(open)
	for _, p := range d.remaining {
		if p.needsRemoval() {
			longest[p.wave] = max(longest[p.wave], p.wantedGrace)
			first = min(first, p.wave)
		}
	}
	for wave := first + 1; wave < len(open); wave++ {
		open[wave] = now.Add(idleWait)
		if at, limited := latestWaveStart(longest[wave], d.terms, d.deadlineSince); limited {
			open[wave] = at
		}
	}
	return open
}

// dropGoneAndSortRemaining removes gone pods from the list, and returns the others in the order of eviction.
//
// The first criterion is the wave. Within a wave, the pods of groups come last. Then pods with fewer refusals come first, so that a blocked pod never
// delays a free one. Then pods with a longer grace come first, because they need more time. Answers that the API server
// is busy count as refusals too, but as the last criterion, because they may concern one pod only.
//
// Equal pods are sorted by UID, which is practically random. Nodes that are drained together often run the same apps.
// If every drain began with the same app, their evictions would conflict on one PDB.
//
// While requests fail, the limit may be one request. Then the namespaces get requests in turn.
func (d *Drain) dropGoneAndSortRemaining() []*podState {
	lastSent := func(p *podState) time.Time {
		if !d.limit.failing {
			return time.Time{}
		}
		return laterOf(d.evictions.lastSentByNamespace[p.pod.Namespace], d.deletions.lastSentByNamespace[p.pod.Namespace])
	}

	d.remaining = slices.DeleteFunc(d.remaining, func(p *podState) bool { return p.gone })
	slices.SortFunc(d.remaining, func(a, b *podState) int {
		return cmp.Or(a.wave-b.wave, compareHeld(a, b), lastSent(a).Compare(lastSent(b)), a.refusalCount-b.refusalCount, cmp.Compare(b.wantedGrace, a.wantedGrace), a.busyCount-b.busyCount,
			strings.Compare(a.pod.UID, b.pod.UID))
	})
	return d.remaining
}

func compareByName(a, b *podState) int {
	if c := strings.Compare(a.pod.Namespace, b.pod.Namespace); c != 0 {
		return c
	}
	if c := strings.Compare(a.pod.Name, b.pod.Name); c != 0 {
		return c
	}
	return strings.Compare(a.pod.UID, b.pod.UID)
}

func (d *Drain) reportProgress() {
	if d.options.OnProgress != nil {
		d.options.OnProgress(d.newProgress())
	}
}

func (d *Drain) newProgress() Progress {
	p := Progress{Node: d.options.Node, StartedAt: d.startedAt, Deadline: d.terms.Deadline, Listed: d.listed}
	p.RemainingPods = make([]BlockedPod, 0, len(d.remaining))
	for _, s := range d.podsByName {
		switch {
		case s.action == podrules.Skip:
			p.Skipped++
			continue
		case s.gone:
			p.Gone++
		case s.removal != NotRemoved || s.isTerminating():
			p.Stopping++
			p.RemainingPods = append(p.RemainingPods, s.toBlockedPod(d.startedAt))
		default:
			p.Waiting++
			if s.surge != nil && s.surge.phase == surgeRunning {
				p.Surging++
			}
			p.RemainingPods = append(p.RemainingPods, s.toBlockedPod(d.startedAt))
		}
		p.Total++
	}
	return p
}

func (d *Drain) newReport(outcome Outcome) Report {
	r := Report{Node: d.options.Node, Outcome: outcome, StartedAt: d.startedAt, EndedAt: time.Now(), Deadline: d.terms.Deadline, Pods: []PodReport{}}
	if outcome == Drained {
		r.Volumes, r.PodsListedAt = d.detachWait.report, d.finalList.listedAt
	}
	for _, p := range d.podsByName {
		r.Pods = append(r.Pods, p.toReport())
	}
	return r
}

// outcomeError returns the error of Run for an outcome.
func (d *Drain) outcomeError(ctx context.Context, outcome Outcome, r Report) error {
	switch outcome {
	case Drained:
		return nil
	case Cancelled:
		return fmt.Errorf("node %s: drain cancelled: %w", d.options.Node, context.Cause(ctx))
	case RefusedByPolicy:
		e := &RefusedError{Node: d.options.Node}
		for _, p := range r.Pods {
			if p.Action == podrules.RefuseDrain && p.IsNotRemoved() {
				e.Pods = append(e.Pods, p)
			}
		}
		return e
	}
	e := &UnfinishedError{Node: d.options.Node, Outcome: outcome, Blocked: d.newProgress().RemainingPods}
	if !d.listed {
		e.ListErr = d.listErr
		if e.ListErr == nil {
			e.ListErr = fmt.Errorf("no answer from the API server")
		}
	}
	return e
}
