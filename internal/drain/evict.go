package drain

import (
	"context"
	"net/http"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// minRetryPause and maxRetryPause are the shortest and the longest pause after a temporary error.
	minRetryPause = 200 * time.Millisecond
	maxRetryPause = 2 * time.Second
	// manualFixPause is the pause after an error that only a person can fix: several PDBs select the pod, or a
	// permission is missing.
	manualFixPause = 10 * time.Second
	// maxRequestTimeout is the longest timeout of a request. The comment of kubeapi.DefaultTimeout gives the reason for
	// its length.
	maxRequestTimeout = kubeapi.DefaultTimeout
	// minRequestTimeout is the shortest timeout of a request, even if the deadline is nearer.
	minRequestTimeout = 2 * time.Second
)

const notServedDetail = "requests for other pods of the node fail or hang"

// tryRemovePod sends the eviction or deletion of a waiting pod if it is allowed now. Otherwise it returns when to try
// again; zero means after the next event.
func (d *Drain) tryRemovePod(ctx context.Context, p *podState, now time.Time) (retryAt time.Time) {
	if wait, at := d.awaitResponders(ctx, p, now); wait {
		return at
	}
	if d.options.DisableEviction {
		return d.removeIfAllowed(ctx, p, now, DeletedOnRequest)
	}
	if waits, at := d.awaitSurge(ctx, p, now); waits {
		return at
	}
	if !d.terms.HasDeadline() {
		return d.removeIfAllowed(ctx, p, now, Evicted)
	}
	if now.Before(p.deleteRetryAt) {
		return earlierNonZero(d.removeIfAllowed(ctx, p, now, Evicted), p.deleteRetryAt)
	}
	if at := forcedDeletionTime(p.wantedGrace, d.terms, d.deadlineSince); now.Before(at) {
		p.forceDeletion = false
		early := at.Add(-conditionLead)
		switch {
		case now.Before(early):
			at = early
		case d.activeEvictionBackoff(p, now) != nil || p.wasRefused():
			d.ensureDisruptionTargetWrite(ctx, p, now)
			if at.Sub(now) < minRetryPause { // too short for one more eviction
				return at
			}
		}
		return earlierNonZero(d.removeIfAllowed(ctx, p, now, Evicted), at)
	}
	if !p.forceDeletion {
		if backoff := d.activeEvictionBackoff(p, now); backoff != nil && !p.wasRefused() {
			p.recordRefusal(backoff.reason, backoff.pdb, d.pdbs.explainObstacle(backoff.reason, &p.pod, backoff.detail), now)
		}
		p.forceDeletion, p.backoff, p.retryAt, p.pause = true, nil, time.Time{}, 0 // the reasons to wait do not apply to a deletion
	}
	hang, since := d.areEvictionsHanging(p, now)
	if !p.wasRefused() && (d.limit.failing || hang) { // requests of other pods fail, so that this pod got no turn
		p.recordRefusal(ObstacleError, "", notServedDetail, now)
	}
	if !p.wasRefused() { // no eviction of this pod was refused yet
		return earlierNonZero(d.removeIfAllowed(ctx, p, now, Evicted), since)
	}
	return d.removeIfAllowed(ctx, p, now, ForceDeleted)
}

// removeIfAllowed sends a request for a pod. It sends none while the pod pauses, waits for a shared backoff, or waits
// in its PDB queue. It then returns when to try again.
func (d *Drain) removeIfAllowed(ctx context.Context, p *podState, now time.Time, method RemovalMethod) (retryAt time.Time) {
	if may, at := d.canSendRequest(p, method, now); !may {
		return at
	}
	if method != Evicted {
		if at := d.ensureDisruptionTargetWrite(ctx, p, now); !at.IsZero() {
			return at
		}
	}
	if method == Evicted {
		if d.canWatchPDBs(p.pod.Namespace, now) && d.hasManyWaitingPods(p.pod.Namespace) { // in this order: counting reads every pod
			d.startPDBWatch(ctx, p.pod.Namespace, now)
		}
		if l, key := d.queueForPod(p); l != nil {
			if at := l.nextSendAt(d.maxQueueWait(p, key, now)); now.Before(at) {
				return at
			}
			l.recordSent(p, now)
		}
	}
	d.sendRemoval(ctx, p, method, now)
	return time.Time{} // the answer wakes the engine
}

// canSendRequest reports whether a request for a pod may be sent now. If not, it returns when it may be sent. Zero
// means that the answer to another request decides.
func (d *Drain) canSendRequest(p *podState, method RemovalMethod, now time.Time) (allowed bool, from time.Time) {
	if now.Before(p.retryAt) {
		return false, p.retryAt
	}
	for _, backoff := range d.backoffsForRequest(p, method) {
		if open, at := backoff.allowsRequest(now); !open {
			if method != GraceShortened && (p.blocked.Reason != backoff.reason || p.blocked.PDB != backoff.pdb) {
				p.setBlocked(backoff.reason, backoff.pdb, d.pdbs.explainObstacle(backoff.reason, &p.pod, backoff.detail), now)
			}
			return false, at
		}
	}
	reached, _ := d.isLimitReached(p, method, now)
	return !reached, time.Time{}
}

// areEvictionsHanging reports whether the evictions in flight use the whole limit and all were sent more than
// slowResponse ago. A forced deletion does not wait for hanging evictions. The time since is when the evictions count
// as hanging without an answer before; zero means never.
func (d *Drain) areEvictionsHanging(p *podState, now time.Time) (hang bool, since time.Time) {
	reached, lastSentAt := d.isLimitReached(p, Evicted, now)
	if !reached {
		return false, time.Time{}
	}
	since = lastSentAt.Add(slowResponse)
	return !now.Before(since), since
}

// backoffsForRequest returns the backoffs that delay a request for this pod. A PDB's backoff does not delay a deletion.
func (d *Drain) backoffsForRequest(p *podState, method RemovalMethod) []*sharedBackoff {
	server := d.trackerFor(method).busyBackoff
	if p.backoff == nil || (p.backoff.evictionsOnly && method != Evicted) {
		return []*sharedBackoff{server}
	}
	return []*sharedBackoff{server, p.backoff}
}

// activeEvictionBackoff returns the backoff that delays the eviction of a pod now, or nil. The refusal of another pod's
// eviction may have started it.
func (d *Drain) activeEvictionBackoff(p *podState, now time.Time) *sharedBackoff {
	for _, backoff := range d.backoffsForRequest(p, Evicted) {
		if open, _ := backoff.allowsRequest(now); !open {
			return backoff
		}
	}
	return nil
}

func (d *Drain) sendRemoval(ctx context.Context, p *podState, method RemovalMethod, now time.Time) {
	r, given := d.newRemoval(p, now)
	send := d.api.DeletePod
	if method == Evicted {
		send = d.api.EvictPod
	}
	d.startRequest(ctx, p, method, send, r, d.requestTimeout(p, method, now), func(answered time.Time) {
		if l, _ := d.queueForPod(p); l != nil && method == Evicted {
			l.recordEvictionAccepted(p, now, answered)
		}
		d.recordRemovalAccepted(p, method, given, now)
	})
}

// newRemoval returns the eviction or deletion request for a pod, and the grace in it.
func (d *Drain) newRemoval(p *podState, now time.Time) (request kubeapi.PodRemoval, grace time.Duration) {
	given := capGrace(p.wantedGrace, d.terms, now)
	r := kubeapi.PodRemoval{Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID}
	if given != p.wantedGrace || d.options.GraceSeconds != nil && *d.options.GraceSeconds >= 0 {
		seconds := int64(given / time.Second)
		r.GracePeriodSeconds = &seconds
	}
	return r, given
}

// startRequest sends one request for a pod in the background. After a success, accepted is called in the engine's
// goroutine.
func (d *Drain) startRequest(ctx context.Context, p *podState, method RemovalMethod, send func(context.Context, kubeapi.PodRemoval) error,
	r kubeapi.PodRemoval, timeout time.Duration, accepted func(answered time.Time),
) {
	backoffs := d.backoffsForRequest(p, method)
	sent := time.Now()
	for _, backoff := range backoffs {
		backoff.inFlight++
		backoff.lastSentAt = sent
	}
	p.requesting = true
	tracker := d.trackerFor(method)
	tracker.inFlight++
	tracker.lastSentAt = sent
	tracker.inFlightByNamespace[p.pod.Namespace]++
	if p.firstSentAt.IsZero() {
		p.firstSentAt = sent
	}
	p.lastSentAt, tracker.lastSentByNamespace[p.pod.Namespace] = sent, sent
	bounded, cancel := context.WithTimeout(ctx, timeout)
	p.shortenRequest = func(now time.Time) { time.AfterFunc(d.requestTimeout(p, method, now), cancel) }
	d.background.Go(func() {
		defer cancel()
		err := send(bounded, r)
		answered := time.Now()
		d.inbox.putAndWake(func(now time.Time) {
			d.recordRequestFinished(p, tracker, backoffs)
			d.limit.adjustAfterResponse(sent, answered, err)
			if err != nil {
				d.delayPodAfterError(ctx, p, method, now, err)
				d.decidePodAction(p, now) // the pod or the rules may have changed during the request
				d.reviewSurge(p)
				return
			}
			for _, backoff := range backoffs {
				backoff.reset()
			}
			accepted(now)
		})
	})
}

func (d *Drain) recordRequestFinished(p *podState, tracker *requestTracker, backoffs []*sharedBackoff) {
	for _, backoff := range backoffs {
		backoff.inFlight--
	}
	p.requesting = false
	tracker.inFlight--
	if tracker.inFlightByNamespace[p.pod.Namespace]--; tracker.inFlightByNamespace[p.pod.Namespace] == 0 {
		delete(tracker.inFlightByNamespace, p.pod.Namespace)
	}
}

// requestTimeout returns the timeout of a request.
//
// With a deadline the timeout is short enough for a forced deletion and retries, even if the API server hangs. After a
// timeout the next request gets a longer timeout: a slow API server has a queue, and a request that times out loses its
// place in it.
func (d *Drain) requestTimeout(p *podState, method RemovalMethod, now time.Time) time.Duration {
	if !d.terms.HasDeadline() {
		return maxRequestTimeout
	}
	left := d.terms.lastRemovalTime().Sub(now) / 3
	if p.unansweredRequest != NotRemoved {
		left *= 2
	}
	if at := forcedDeletionTime(p.wantedGrace, d.terms, d.deadlineSince); method == Evicted && at.After(now) {
		left = at.Sub(now) + extraEvictionWait(p.wantedGrace, d.terms, d.deadlineSince)
		if p.wasRefused() { // the pod is deleted at that time
			return min(left, maxRequestTimeout)
		}
	}
	return min(max(left, minRequestTimeout), maxRequestTimeout)
}

func (d *Drain) recordRemovalAccepted(p *podState, method RemovalMethod, given time.Duration, asked time.Time) {
	p.removal, p.removalAt, p.unansweredRequest = method, asked, NotRemoved
	p.blocked = BlockedPod{}
	if !p.isTerminating() { // otherwise the watch has already reported the real grace
		p.givenGrace = given
	}
	if method == ForceDeleted {
		d.options.Logger.Warn("pod deleted although its eviction is blocked: no time is left before the deadline",
			"pod", p.name(), "graceSeconds", int64(p.givenGrace/time.Second), "delays", p.delays)
	}
}

// delayPodAfterError delays a pod after a failed request. Depending on the error, it also delays the other pods that
// meet the same obstacle.
func (d *Drain) delayPodAfterError(ctx context.Context, p *podState, method RemovalMethod, now time.Time, err error) {
	status := kubeapi.ToStatusError(err)
	if isServerFailure(status) {
		p.recordUnansweredRequest(method)
	}
	if d.ended || p.gone || ctx.Err() != nil {
		return
	}
	d.options.Logger.Debug("pod request failed", "pod", p.name(), "how", method, "err", err)
	if isAPIServerBusy(err) { // this concerns all pods: keep the longest grace first
		p.busyCount++
	} else {
		p.refusalCount++
	}
	tracker, detail := d.trackerFor(method), err.Error()
	if status != nil && status.Message != "" {
		detail = status.Message
	}
	switch {
	case status == nil:
		d.extendBackoffForPod(p, tracker.failureBackoff, detail, now, minRetryPause, maxRetryPause)
	case method == Evicted && isPDBDenial(status):
		d.delayPodAfterPDBDenial(ctx, p, now, status)
	case isMultiplePDBError(status):
		d.startPDBWatch(ctx, p.pod.Namespace, now)
		p.noteSurgeDenial()
		d.extendBackoffForPod(p, d.pdbs.multiplePDBBackoff(&p.pod), detail, now, manualFixPause, manualFixPause)
	case isNamespaceTerminating(status):
		d.delayPod(p, ObstacleError, namespaceDeletedDetail, now, maxRetryPause)
	case isWebhookError(status):
		d.delayPodLonger(p, ObstacleWebhook, detail, now)
	case status.Code == http.StatusForbidden && method != Evicted && !d.options.DisableEviction:
		// The denial may pass: the API server reads its RBAC rules after its own start. Until the next try, the pod is evicted.
		p.forceDeletion, p.deleteRetryAt = false, now.Add(d.capPauseToDeadline(manualFixPause, now))
		d.delayPod(p, ObstacleForbidden, detail, now, minRetryPause)
	case status.Code == http.StatusForbidden:
		d.extendBackoffForPod(p, d.pdbs.forbiddenBackoff(&p.pod, method), detail, now, manualFixPause, manualFixPause)
	case isAPIServerBusy(err):
		d.extendBackoffForPod(p, tracker.busyBackoff, detail, now, addJitter(max(minRetryPause, min(status.RetryAfter, maxRetryPause))), addJitter(maxRetryPause))
	case status.Code >= http.StatusInternalServerError:
		d.extendBackoffForPod(p, tracker.failureBackoff, detail, now, minRetryPause, maxRetryPause)
	default:
		// A conflict means that another pod has taken the name. "Not found" can also mean that the PDB was deleted
		// during the request. The pod counts as present until the watch reports otherwise (I7).
		d.delayPodLonger(p, ObstacleError, detail, now)
	}
	if method != Evicted { // most backoffs do not apply to deletions
		p.retryAt = laterOf(p.retryAt, now.Add(d.capPauseToDeadline(minRetryPause, now)))
	}
}

// delayPodAfterPDBDenial delays a pod after a PDB has denied its eviction. All pods of that PDB share the delay.
func (d *Drain) delayPodAfterPDBDenial(ctx context.Context, p *podState, now time.Time, status *kubeapi.StatusError) {
	d.startPDBWatch(ctx, p.pod.Namespace, now)
	p.noteSurgeDenial()
	longest := maxPDBPauseVoluntary
	if d.terms.HasDeadline() {
		longest = maxPDBPauseForced
	}
	pause := max(minRetryPause, min(status.RetryAfter, longest))
	d.extendBackoffForPod(p, d.pdbs.backoffOfDenyingPDB(&p.pod, status), denialMessage(status), now, pause, longest)
	d.pdbs.assignMissingBackoffs(d.remaining, p.pod.Namespace, now)
}

// extendBackoffForPod makes a pod wait for a shared backoff, and makes the backoff longer: at least pause, at most
// longest.
func (d *Drain) extendBackoffForPod(p *podState, backoff *sharedBackoff, detail string, now time.Time, minPause, maxPause time.Duration) {
	backoff.detail = detail
	backoff.extend(now, d.capPauseToDeadline(minPause, now), d.capPauseToDeadline(maxPause, now))
	if backoff.reason != ObstacleAPIServerBusy { // that one applies to every pod anyway
		p.backoff = backoff
	}
	explained := d.pdbs.explainObstacle(backoff.reason, &p.pod, detail)
	p.setBlocked(backoff.reason, backoff.pdb, explained, now)
	p.recordRefusal(backoff.reason, backoff.pdb, explained, now)
}

// delayPod makes this pod wait for pause. Other pods are not delayed.
func (d *Drain) delayPod(p *podState, reason ObstacleKind, detail string, now time.Time, pause time.Duration) {
	p.setBlocked(reason, "", detail, now)
	p.recordRefusal(reason, "", detail, now)
	p.retryAt = now.Add(d.capPauseToDeadline(pause, now))
}

// delayPodLonger makes this pod wait, longer after each failure. Other pods are not delayed.
func (d *Drain) delayPodLonger(p *podState, reason ObstacleKind, detail string, now time.Time) {
	p.pause = min(max(2*p.pause, minRetryPause), maxRetryPause)
	d.delayPod(p, reason, detail, now, p.pause)
}

// capPauseToDeadline returns pause, or one eighth of the time before the deadline if that is shorter.
func (d *Drain) capPauseToDeadline(pause time.Duration, now time.Time) time.Duration {
	if !d.terms.HasDeadline() {
		return pause
	}
	return min(pause, max(minRetryPause, d.terms.lastRemovalTime().Sub(now)/8))
}

// shortenGraceIfTooLong shortens the grace of a terminating pod that would run longer than the instance.
//
// It sends the request as late as possible. The API server counts a shorter grace from the pod's deletion, not from now
// (k8s.io/apiserver/pkg/registry/rest, BeforeDelete). If a pod was deleted 2 minutes ago and 30 seconds are left, a
// grace of 30 seconds would kill it at once.
func (d *Drain) shortenGraceIfTooLong(ctx context.Context, p *podState, now time.Time) (retryAt time.Time) {
	if !d.terms.HasDeadline() || !p.isTerminating() || p.graceShortened {
		return time.Time{}
	}
	end := d.terms.lastRemovalTime()
	if !p.pod.DeletionTimestamp.After(end.Add(time.Second)) {
		return time.Time{}
	}
	if at := laterOf(end.Add(-time.Second), p.deleteRetryAt); now.Before(at) {
		return at
	}
	if may, at := d.canSendRequest(p, GraceShortened, now); !may {
		return at
	}
	seconds := int64(1)
	r := kubeapi.PodRemoval{Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID, GracePeriodSeconds: &seconds}
	d.startRequest(ctx, p, GraceShortened, d.api.DeletePod, r, minRequestTimeout, func(time.Time) {
		p.graceShortened = true
		if p.removal == NotRemoved {
			p.removal, p.removalAt = GraceShortened, now
		}
	})
	return time.Time{}
}
