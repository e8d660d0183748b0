package drain

import (
	"cmp"
	"context"
	"math"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/surge"
)

const (
	// maxConcurrentSurges limits the surges of one drain that run at once. A node has 110 pods by default.
	maxConcurrentSurges = 128
	// maxDecisionTime limits one decision. It is shorter if less time is left.
	maxDecisionTime = 10 * time.Second
	// maxSurgeTime limits a surge without another time limit, in addition to the longest start of its successor.
	maxSurgeTime = 10 * time.Minute
	// minSurgeLead and maxSurgeLead limit the time between the end of a surge and the start of its pod's grace. In that
	// time the pod is evicted, or its PDB denies that.
	minSurgeLead = 2 * time.Second
	maxSurgeLead = 10 * time.Second
	// maxLeaveWait is how long the watch may take to show that a pod leaves after its surge said so.
	maxLeaveWait = 5 * time.Second
	// maxRestoreWait limits how long the end of a drain waits for surges to restore the size of their owners. They need
	// at most 15 s for that, after they have waited for their pods to leave.
	maxRestoreWait = 20 * time.Second
	// maxContinuedWait is the same wait if the caller has other work, perhaps a drain that has only seconds. The surges go on in
	// the background.
	maxContinuedWait = time.Second
	// deniedDecisionPause is the shortest time between two decisions about a pod after its PDB denied the eviction.
	deniedDecisionPause = 10 * time.Second
	// failedDecisionPause is the shortest time until a decision that could not be made is tried again. It is shorter than the margin
	// before the last time for a successor.
	failedDecisionPause = time.Second
	// maxUndecidedTime is how long a pod is not evicted because the API server does not answer what the decision needs. With a time limit
	// for surges, it is at most a quarter of the time that is left.
	maxUndecidedTime = 2 * time.Minute
	// minFailedSurgePause and maxFailedSurgePause limit the time until a pod may surge again after its surge failed.
	minFailedSurgePause = 30 * time.Second
	maxFailedSurgePause = 10 * time.Minute
)

// SurgeReport is the surge of one pod: the decision, its last progress and its result.
type SurgeReport struct {
	Decision surge.Decision `json:"decision,omitzero"`
	Progress surge.Progress `json:"progress,omitzero"`
	Result   surge.Result   `json:"result,omitzero"`
	// Problem says why nothing was decided, or why the size of the owner was not restored yet.
	Problem string `json:"problem,omitempty"`
	// Room is nil in a drain. A caller of [Predict] may set it.
	Room *SuccessorRoom `json:"room,omitempty"`
}

// hasSucceeded reports whether the pod left after its successor was ready. It is false for nil.
func (r *SurgeReport) hasSucceeded() bool {
	return r != nil && r.Result.PodLeft && !r.Result.ReadyAt.IsZero()
}

// String returns the decision and the result in one line, such as "needed: it is the only pod of Deployment shop/web;
// a start takes about 20s; successor shop/web-2 is ready". It returns "" for nil.
func (r *SurgeReport) String() string {
	if r == nil {
		return ""
	}
	var parts []string
	if r.Decision.Verdict != "" {
		parts = append(parts, string(r.Decision.Verdict)+": "+cmp.Or(r.Decision.Detail, r.Decision.Reason))
	}
	for _, text := range []string{describeStart(&r.Decision), r.Room.String(), describeSurgeResult(r.Result)} {
		if text != "" {
			parts = append(parts, text)
		}
	}
	if r.Problem != "" {
		parts = append(parts, r.Problem)
	}
	return strings.Join(parts, "; ")
}

// describeStart returns how long the successor takes to start, as far as it is known. It returns "" if none starts.
func describeStart(d *surge.Decision) string {
	if d.Verdict != surge.Needed {
		return ""
	}
	var parts []string
	if d.StartupSeconds > 0 {
		parts = append(parts, "a start takes about "+roundSeconds(d.StartupSeconds))
	}
	if d.LaunchSeconds > 0 {
		parts = append(parts, "a new instance takes up to "+roundSeconds(d.LaunchSeconds))
	}
	return strings.Join(parts, ", ")
}

func roundSeconds(s float64) string { return (time.Duration(math.Ceil(s)) * time.Second).String() }

// SecondsGained returns how long the pod kept running while its successor started. Without the surge, its owner would
// have been short of a pod for that time. It is 0 if the pod did not leave after its successor was ready.
func (r *SurgeReport) SecondsGained() float64 {
	if !r.hasSucceeded() || r.Result.StartedAt.IsZero() {
		return 0
	}
	return max(0, r.Result.ReadyAt.Sub(r.Result.StartedAt).Seconds())
}

// clipTexts returns the report with short texts for the log. It returns nil for nil.
func (r *SurgeReport) clipTexts() *SurgeReport {
	if r == nil {
		return nil
	}
	short := *r
	for _, text := range []*string{&short.Decision.Detail, &short.Progress.Detail, &short.Result.Detail, &short.Problem} {
		*text = observe.ClipBytes(*text, maxLoggedTextBytes)
	}
	return &short
}

// surgePhase is the state of one pod's surge in the engine.
type surgePhase int

const (
	surgeUndecided surgePhase = iota
	surgeDeciding
	// surgeQueued: it is needed, and waits for another surge of the drain.
	surgeQueued
	surgeRunning
	// surgeLeft: the surge has made the pod leave, but the watch has not shown that yet.
	surgeLeft
	// surgeSettled: the pod is evicted without a surge.
	surgeSettled
)

// podSurge is the engine's state of one pod's surge. Only the engine's goroutine touches it.
type podSurge struct {
	// controller is the UID of the pod's controller. Pods of one controller surge one after the other, because each
	// successor may make the surges of the others unnecessary.
	controller string
	phase      surgePhase
	report     SurgeReport
	// decidedUntil is the time limit that the last decision was made for; zero is none.
	decidedUntil time.Time
	// decidedDenied is true if that decision was made while the PDB denied the eviction.
	decidedDenied bool
	// run is the last surge until it has returned, also after it was given up.
	run *surgeRun
	// denied is true if a PDB has denied the eviction since the last decision.
	denied bool
	nextAt time.Time // earliest time of the next decision about a settled pod
	// retryAt is when a decision that could not be made is tried again, and undecidedUntil when the pod is evicted without one. Both are
	// zero if no decision has failed since the last one.
	retryAt, undecidedUntil time.Time
	leftAt                  time.Time // when the surge said that the pod leaves
	failures                int
	decided                 int    // number of decisions
	waitsFor                string // detail of the obstacle in the phases running and left
}

// surgeRun is one call of Surger.Run.
type surgeRun struct {
	startedAt time.Time
	// limit is when the time limits end the surge; zero is never. giveUpAt ends it in any case.
	limit, giveUpAt time.Time
	cancel          context.CancelFunc
	// decideAgain makes its end lead to a new decision.
	decideAgain bool
}

// newSurge returns a surge that is not decided yet, or nil if the Surger is not asked about the pod.
func (d *Drain) newSurge(p *podState) *podSurge {
	if !d.asksSurger(p) {
		return nil
	}
	return &podSurge{controller: fromkubeapi.FindController(&p.pod).UID}
}

// asksSurger reports whether the Surger decides about the pod. A pod without a controller, of a Job or of a DaemonSet has no
// successor, and a pod of a group leaves together with the others. They cost no decision. The Surger refuses further kinds, such as a
// StatefulSet, and the report has the reason.
func (d *Drain) asksSurger(p *podState) bool {
	if d.options.Surger == nil || d.options.DisableEviction || !p.group.IsZero() || isExemptFromPDBs(&p.pod) {
		return false
	}
	c := fromkubeapi.FindController(&p.pod)
	return c != nil && c.Kind != "Job" && c.Kind != "DaemonSet"
}

// surgeEnd returns when the surge of a pod has to end, so that the pod can then be evicted and still has its whole grace.
// Zero means no limit.
func (d *Drain) surgeEnd(p *podState) time.Time {
	end, since := d.terms.lastRemovalTime(), d.deadlineSince
	if !d.terms.HasDeadline() {
		if d.terms.TimeoutAt.IsZero() {
			return time.Time{}
		}
		end, since = d.terms.TimeoutAt, d.startedAt
	}
	at := end.Add(-max(p.wantedGrace+graceRounding, minRequestTimeout))
	return at.Add(-min(max(at.Sub(since)/8, minSurgeLead), maxSurgeLead))
}

// awaitSurge reports whether the eviction of a waiting pod has to wait for its surge or for the decision about it. It
// starts both. If the pod waits, it returns when to ask again; zero means after the next event.
func (d *Drain) awaitSurge(ctx context.Context, p *podState, now time.Time) (waits bool, retryAt time.Time) {
	if p.surge == nil {
		if p.surge = d.newSurge(p); p.surge == nil {
			return false, time.Time{}
		}
	}
	s := p.surge
	end := d.surgeEnd(p)
	if s.phase == surgeRunning {
		end = earlierNonZero(end, s.run.giveUpAt)
	}
	if !end.IsZero() && !now.Before(end) {
		d.giveUpSurge(p, now)
		return false, time.Time{}
	}
	if s.phase == surgeSettled && p.isSurgeDecisionDue(now, end) && d.arePDBsRead(p.pod.Namespace) {
		s.phase = surgeUndecided
	}
	isOwnerSurging := s.run != nil || d.surgingOwners[s.controller]
	if s.phase == surgeUndecided && !isOwnerSurging && d.decidingSurges < d.options.maxOtherInFlight() && !now.Before(s.retryAt) {
		d.startSurgeDecision(ctx, p, end)
	}
	if s.phase == surgeQueued && !isOwnerSurging && len(d.surgingOwners) < maxConcurrentSurges {
		d.startSurge(ctx, p, now)
		end = earlierNonZero(end, s.run.giveUpAt)
	}
	if s.phase == surgeLeft {
		end = earlierNonZero(end, s.leftAt.Add(maxLeaveWait))
		if !now.Before(end) {
			s.phase = surgeSettled // evicting a pod that leaves changes nothing
		}
	}
	if !s.delaysEviction() || p.mayLeaveBeforeSuccessor() {
		return false, time.Time{}
	}
	waitsFor := s.waitsFor
	switch {
	case isOwnerSurging && (s.phase == surgeUndecided || s.phase == surgeQueued):
		waitsFor = "waits for the surge of another pod of its owner"
	case s.phase == surgeQueued:
		waitsFor = "waits for another surge of this drain"
	}
	if waitsFor != "" && (p.blocked.Reason != ObstacleSurge || p.blocked.Detail != waitsFor) {
		p.setBlocked(ObstacleSurge, "", waitsFor, now)
	}
	if s.phase == surgeUndecided && now.Before(s.retryAt) {
		return true, earlierNonZero(end, s.retryAt)
	}
	return true, end
}

// delaysEviction reports whether the pod must not be evicted in the present phase. A nil surge does not delay it.
func (s *podSurge) delaysEviction() bool {
	switch {
	case s == nil || s.phase == surgeSettled:
		return false
	case s.phase == surgeRunning && s.report.Progress.Step == surge.Evictable:
		return s.run.decideAgain
	}
	return true
}

// isSurgeDecisionDue reports whether the drain has to decide again about a pod that may be evicted without a surge. end is when a surge
// has to end.
func (p *podState) isSurgeDecisionDue(now, end time.Time) bool {
	s, last := p.surge, p.surge.report.Decision
	if s.denied && !now.Before(s.nextAt) {
		return true
	}
	hasFailed := s.report.Problem != ""
	return last.Verdict == surge.NotYet && !p.deniedSince().IsZero() && (!now.Before(last.DecideAgainAt) || !end.Equal(s.decidedUntil)) &&
		(!hasFailed || !now.Before(s.nextAt))
}

// deniedSince returns since when the PDB of the pod has denied each eviction; zero means that it may allow the next one.
func (p *podState) deniedSince() time.Time {
	if p.backoff == nil || p.backoff.reason != ObstaclePDB {
		return time.Time{}
	}
	return p.backoff.refusedSince
}

// mayLeaveBeforeSuccessor reports whether a pod that gets a successor because of a denial may be evicted before that: its PDB allows
// evictions again. Otherwise a successor that is never Ready would delay the drain.
func (p *podState) mayLeaveBeforeSuccessor() bool {
	s := p.surge
	if s.phase != surgeRunning || s.run.decideAgain || s.report.Decision.Reason != surge.ReasonPDBDenies {
		return false
	}
	step := s.report.Progress.Step
	return p.deniedSince().IsZero() && (step == surge.Raising || step == surge.AwaitingReady)
}

// arePDBsRead reports whether the PDBs of a namespace were read, or cannot be read now.
func (d *Drain) arePDBsRead(namespace string) bool {
	ns := d.pdbs.namespaces[namespace]
	return ns == nil || ns.known || !ns.watching
}

// startSurgeDecision asks the Surger in the background whether a pod gets a successor first. end is when the answer is
// of no use any more.
func (d *Drain) startSurgeDecision(ctx context.Context, p *podState, end time.Time) {
	s := p.surge
	s.phase, s.denied, s.decidedUntil, s.waitsFor = surgeDeciding, false, d.surgeEnd(p), ""
	if s.undecidedUntil.IsZero() {
		wait := maxUndecidedTime
		if !end.IsZero() {
			wait = min(wait, time.Until(end)/4)
		}
		s.undecidedUntil = time.Now().Add(wait)
	}
	limit := min(maxDecisionTime, time.Until(s.undecidedUntil))
	d.decidingSurges++
	pod, until := p.pod, s.decidedUntil
	pdbs, _ := d.pdbs.pdbsCovering(&p.pod)
	deniedSince := p.deniedSince()
	s.decidedDenied = !deniedSince.IsZero()
	d.background.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		decision, err := d.options.Surger.Decide(bounded, pod, pdbs, deniedSince, until)
		d.inbox.putAndWake(func(now time.Time) { d.recordSurgeDecision(p, decision, err, now) })
	})
}

func (d *Drain) recordSurgeDecision(p *podState, decision surge.Decision, err error, now time.Time) {
	d.decidingSurges--
	s := p.surge
	if s.phase != surgeDeciding { // given up
		return
	}
	if again := now.Add(failedDecisionPause); err != nil && s.report.Decision.Verdict != surge.NotYet && again.Before(s.undecidedUntil) && !d.ended {
		s.phase, s.retryAt = surgeUndecided, again
		s.waitsFor = describeUndecided(err)
		if s.report.Problem != s.waitsFor { // an outage has the same error each second
			s.report.Problem = s.waitsFor
			d.options.Logger.Warn("cannot decide yet whether a pod gets a successor first", "pod", p.name(), "err", err, "evictedAt", s.undecidedUntil)
		}
		return
	}
	s.renewDecisionTime()
	s.phase, s.nextAt = surgeSettled, now.Add(deniedDecisionPause)
	// The first decision is usually made before the PDBs were read. A denial is news for a decision that was made without one.
	if s.decided++; s.decided == 1 || !s.decidedDenied {
		s.nextAt = now
	}
	if err != nil && s.report.Decision.Verdict == surge.NotYet { // soon again, because the pause may cost the last chance
		s.nextAt, s.report.Problem = now.Add(failedDecisionPause), describeUndecided(err)
	} else {
		s.report.setDecision(decision, err)
	}
	log := d.options.Logger
	switch {
	case err != nil:
		if !d.ended {
			log.Warn("cannot decide whether a pod gets a successor first: it is evicted without", "pod", p.name(), "err", err)
		}
	case decision.Verdict == surge.Refused:
		log.Info("pod gets no successor before it leaves", "pod", p.name(), "reason", decision.Reason, "detail", decision.Detail)
	case decision.Verdict == surge.Needed:
		s.phase = surgeQueued
		if end := d.surgeEnd(p); !end.IsZero() && (s.decidedUntil.IsZero() || end.Before(s.decidedUntil)) {
			s.phase = surgeUndecided // less time than it was decided for
		}
	}
}

// renewDecisionTime gives the next decision its whole time, at once.
func (s *podSurge) renewDecisionTime() { s.retryAt, s.undecidedUntil = time.Time{}, time.Time{} }

func (r *SurgeReport) setDecision(decision surge.Decision, err error) {
	r.Decision, r.Problem = decision, ""
	if err != nil {
		r.Problem = describeUndecided(err)
	}
}

func describeUndecided(err error) string {
	return "whether it needs a successor is unknown: " + err.Error()
}

func (d *Drain) startSurge(ctx context.Context, p *podState, now time.Time) {
	s := p.surge
	bounded, cancel := context.WithCancel(ctx)
	run := &surgeRun{
		startedAt: now, limit: d.surgeEnd(p), giveUpAt: now.Add(maxSurgeTime + s.report.Decision.MaxStartTime()), cancel: cancel,
	}
	s.phase, s.run = surgeRunning, run
	s.report.Progress, s.report.Result, s.report.Problem = surge.Progress{Step: surge.Raising, Since: now}, surge.Result{}, ""
	s.waitsFor = describeSurge(s.report.Progress)
	d.surgingOwners[s.controller] = true
	r := surge.Request{
		Pod: p.pod, Node: d.options.Node, Decision: s.report.Decision, Until: run.limit, GiveUpAt: run.giveUpAt,
		OnProgress: func(progress surge.Progress) {
			d.inbox.putAndWake(func(now time.Time) { d.recordSurgeProgress(p, run, progress, now) })
		},
	}
	d.options.Logger.Info("pod gets a successor before it leaves", "pod", p.name(), "reason", r.Decision.Reason, "detail", r.Decision.Detail, "until", earlierNonZero(run.limit, run.giveUpAt))
	d.surges.Go(func() {
		defer cancel()
		result := d.options.Surger.Run(bounded, r)
		d.inbox.putAndWake(func(now time.Time) { d.recordSurgeResult(p, run, result, now) })
	})
}

// describeSurge returns what a pod waits for, without times, so that equal texts mean the same step.
func describeSurge(p surge.Progress) string {
	text := string(p.Step)
	if p.Successor != "" {
		text += ", successor " + p.Successor
	}
	if p.Detail != "" {
		text += ": " + p.Detail
	}
	return text
}

func (d *Drain) recordSurgeProgress(p *podState, run *surgeRun, progress surge.Progress, now time.Time) {
	s := p.surge
	if s.phase != surgeRunning || s.run != run {
		return
	}
	s.report.Progress, s.waitsFor = progress, describeSurge(progress)
	d.attributeToSurge(p, now)
}

// recordSurgeResult records the end of a surge. If the pod has not left, the drain evicts it as without a surge, and
// the report keeps the reason.
func (d *Drain) recordSurgeResult(p *podState, run *surgeRun, result surge.Result, now time.Time) {
	s, log := p.surge, d.options.Logger
	delete(d.surgingOwners, s.controller)
	for _, other := range d.remaining { // this successor may make theirs unnecessary
		if o := other.surge; o != nil && (o.phase == surgeQueued || o.phase == surgeUndecided) && o.controller == s.controller {
			o.phase = surgeUndecided
			o.renewDecisionTime() // it has waited for this surge, and not for an answer
		}
	}
	givenUp := s.phase != surgeRunning
	if givenUp && !result.PodLeft {
		result.Reason, result.Detail = s.report.Result.Reason, s.report.Result.Detail
	}
	s.run, s.report.Result = nil, result
	log.Info("surge ended", "pod", p.name(), "left", result.PodLeft, "successor", result.Successor, "reason", result.Reason, "detail", result.Detail)
	if result.RestoreErr != nil {
		s.report.Problem = "the size of its owner is not restored yet: " + result.RestoreErr.Error()
		log.Warn("cannot restore the size of an owner after a surge: another process restores it when the record expires", "pod", p.name(), "err", result.RestoreErr)
	}
	for i := range p.delays {
		if p.delays[i].Reason == ObstacleSurge {
			p.delays[i].Detail = describeSurgeResult(result)
		}
	}
	if givenUp {
		return
	}
	if p.blocked.Reason == ObstacleSurge {
		p.blocked = BlockedPod{}
	}
	end := d.surgeEnd(p)
	hasMoreTime := !run.limit.IsZero() && !now.Before(run.limit.Add(-minSurgeLead)) && (end.IsZero() || end.After(now.Add(minSurgeLead)))
	switch {
	case result.PodLeft:
		s.phase, s.leftAt, s.waitsFor = surgeLeft, now, describeSurgeResult(result)
		d.attributeToSurge(p, now)
	case run.decideAgain || hasMoreTime:
		s.phase, s.waitsFor = surgeUndecided, ""
	default:
		s.settleFailed(now)
	}
}

// settleFailed lets the pod be evicted without a surge. The next decision comes later after each failure, because every
// surge starts and stops a pod.
func (s *podSurge) settleFailed(now time.Time) {
	s.renewDecisionTime()
	s.phase, s.waitsFor = surgeSettled, ""
	s.nextAt = now.Add(min(minFailedSurgePause<<min(s.failures, 8), maxFailedSurgePause))
	s.failures++
}

func describeSurgeResult(r surge.Result) string {
	switch {
	case r.PodLeft && r.Successor != "":
		return "successor " + r.Successor + " is ready"
	case r.PodLeft:
		return "left"
	case r.Detail != "":
		return r.Reason + ": " + r.Detail
	}
	return r.Reason
}

// giveUpSurge ends the surge of a pod because no time is left. The pod is evicted while the surge restores the size of
// the owner.
func (d *Drain) giveUpSurge(p *podState, now time.Time) {
	s := p.surge
	if s.phase == surgeSettled {
		return
	}
	if s.phase == surgeRunning || s.phase == surgeQueued {
		s.report.Result.Reason, s.report.Result.Detail = surge.ReasonNoTime, "no time was left to wait for the successor"
		d.options.Logger.Info("surge given up: no time is left", "pod", p.name(), "step", s.report.Progress.Step)
	} else if s.report.Decision.Verdict == "" {
		s.report.Problem = "no time was left to find out whether it needs a successor"
	}
	if s.run != nil && now.Before(earlierNonZero(s.run.limit, s.run.giveUpAt)) { // otherwise it ends by itself
		s.run.cancel()
	}
	if p.blocked.Reason == ObstacleSurge {
		p.blocked = BlockedPod{}
	}
	s.settleFailed(now)
}

// reviewSurge applies new time limits, or a new decision about a pod, to its surge. A surge that no longer fits is
// cancelled and decided again, because its time limit cannot change while it runs.
func (d *Drain) reviewSurge(p *podState) {
	s := p.surge
	if s == nil || s.phase != surgeRunning {
		return
	}
	end := d.surgeEnd(p)
	isNearer := !end.IsZero() && (s.run.limit.IsZero() || end.Before(s.run.limit))
	if p.action != podrules.Evict || isNearer && !s.fitsBefore(end) {
		s.run.decideAgain = true
		s.run.cancel()
	}
}

// fitsBefore reports whether the running surge is expected to end before a time. If so, cancelling it would only lose
// its progress.
func (s *podSurge) fitsBefore(end time.Time) bool {
	switch s.report.Progress.Step {
	case surge.AwaitingEndpoint, surge.Removing, surge.Evictable:
		return true
	}
	d := s.report.Decision
	return d.StartupSeconds > 0 && !s.run.startedAt.Add(d.ExpectedStartTime()).After(end)
}

// attributeToSurge records a terminating pod as removed by its surge, unless a request of the drain or of another client
// has evicted it.
func (d *Drain) attributeToSurge(p *podState, now time.Time) {
	s := p.surge
	if s == nil || p.removal != NotRemoved || p.requesting || p.unansweredRequest != NotRemoved || !p.gone && !p.isTerminating() {
		return
	}
	removing := s.phase == surgeRunning && (s.report.Progress.Step == surge.Removing || s.report.Progress.Step == surge.Restoring)
	if (removing || s.phase == surgeLeft) && !hasEvictionCondition(&p.pod) {
		p.removal, p.removalAt, p.blocked = Surged, p.stoppingSince, BlockedPod{}
		if p.removalAt.IsZero() {
			p.removalAt = now
		}
	}
}

// areSurgesOver reports whether no surge of the drained pods restores the size of its owner any more. It waits for that
// at most maxRestoreWait, and never past a time limit of the drain: the node is drained.
func (d *Drain) areSurgesOver(now time.Time) bool {
	if len(d.surgingOwners) == 0 {
		return true
	}
	if d.restoreWaitSince.IsZero() {
		d.restoreWaitSince = now
	}
	if now.Before(d.restoreWaitEnd()) {
		return false
	}
	for _, p := range d.pods {
		if p.surge != nil && p.surge.run != nil {
			p.surge.run.cancel()
		}
	}
	return true
}

// restoreWaitEnd returns until when a drained node waits for surges.
func (d *Drain) restoreWaitEnd() time.Time {
	return earlierNonZero(d.restoreWaitSince.Add(maxRestoreWait), earlierNonZero(d.terms.Deadline, d.terms.TimeoutAt))
}

// nextRestoreCheck returns when areSurgesOver has to be called again; zero means after the next event.
func (d *Drain) nextRestoreCheck(now time.Time) time.Time {
	if len(d.surgingOwners) == 0 || !d.isEmpty() {
		d.restoreWaitSince = time.Time{}
	}
	if end := d.restoreWaitEnd(); !d.restoreWaitSince.IsZero() && now.Before(end) {
		return end
	}
	return time.Time{}
}

// WaitForSurges waits until no surge of an ended drain runs any more.
func (d *Drain) WaitForSurges() { d.surges.Wait() }

// awaitRestores waits until the surges of an ended drain have restored the sizes of their owners, at most
// maxRestoreWait. If the caller has other work, it waits maxContinuedWait.
func (d *Drain) awaitRestores(ctx context.Context) {
	if d.options.Surger == nil {
		return
	}
	done := make(chan struct{})
	go func() { d.surges.Wait(); close(done) }()
	timer := time.NewTimer(maxRestoreWait)
	defer timer.Stop()
	for stopped := d.stopped; ; {
		select {
		case <-done:
			return
		case <-stopped:
			stopped = nil
			if leavesSurges(ctx) {
				timer.Reset(maxContinuedWait)
			}
		case <-timer.C:
			if !leavesSurges(ctx) {
				d.options.Logger.Warn("surges have not restored the sizes of their owners in time: another process restores them when their records expire",
					"node", d.options.Node)
			}
			return
		}
	}
}

// toSurgeReport returns the surge of a pod for the report. It is nil if the pod needs no successor.
func (p *podState) toSurgeReport() *SurgeReport {
	if p.surge == nil {
		return nil
	}
	r := p.surge.report
	isNeeded := r.Decision.Verdict == surge.Needed || r.Decision.Verdict == surge.Refused || r.Decision.Verdict == surge.NotYet && p.isWaiting()
	if !isNeeded && r.Problem == "" && r.Result.StartedAt.IsZero() {
		return nil
	}
	return &r
}

// noteSurgeDenial makes the drain decide again about a pod after its PDBs have denied its eviction.
func (p *podState) noteSurgeDenial() {
	if s := p.surge; s != nil {
		s.denied = true
	}
}

// predictSurges decides for each waiting pod whether it would get a successor first. A pod that its PDB would deny now counts as denied
// since now.
func (d *Drain) predictSurges(ctx context.Context, now time.Time) {
	slots := make(chan struct{}, d.options.maxOtherInFlight())
	for _, p := range d.dropGoneAndSortRemaining() {
		if !p.isWaiting() || !d.asksSurger(p) {
			continue
		}
		p.surge = &podSurge{}
		pdbs, _ := d.pdbs.pdbsCovering(&p.pod)
		pod, until := p.pod, d.surgeEnd(p)
		var deniedSince time.Time
		if p.blocked.Reason == ObstaclePDB {
			deniedSince = now
		}
		slots <- struct{}{}
		d.background.Go(func() {
			defer func() { <-slots }()
			bounded, cancel := context.WithTimeout(ctx, maxDecisionTime)
			defer cancel()
			p.surge.report.setDecision(d.options.Surger.Decide(bounded, pod, pdbs, deniedSince, until))
		})
	}
	d.background.Wait()
}
