package drain

import (
	"context"
	"net/http"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// minRetryPause and maxRetryPause bound the pause after a temporary error.
	minRetryPause = 200 * time.Millisecond
	maxRetryPause = 2 * time.Second
	// manualFixPause is the pause if only a person can remove the obstacle: multiple PDBs on a pod, or a missing
	// permission.
	manualFixPause = 10 * time.Second
	// maxRequestTimeout limits a request; see kubeapi.DefaultTimeout for why it is so long.
	maxRequestTimeout = kubeapi.DefaultTimeout
	// minRequestTimeout is what a request gets even if no time is left.
	minRequestTimeout = 2 * time.Second
)

const notServedDetail = "requests for other pods of the node fail or hang"

// tryRemovePod evicts or deletes a waiting pod if that is allowed now. Otherwise it returns when to try again.
func (d *Drain) tryRemovePod(ctx context.Context, p *podState, now time.Time) (retryAt time.Time) {
	if d.options.DisableEviction {
		return d.removeIfAllowed(ctx, p, now, DeletedOnRequest)
	}
	if !d.terms.HasDeadline() || !p.canDelete {
		return d.removeIfAllowed(ctx, p, now, Evicted)
	}
	if at := forcedDeletionTime(p.wantedGrace, d.terms, d.deadlineSince); now.Before(at) {
		p.forceDeletion = false
		early := at.Add(-conditionLead)
		switch {
		case now.Before(early):
			at = early
		case d.activeEvictionBackoff(p, now) != nil || len(p.delays) > 0:
			d.ensureDisruptionTargetWrite(ctx, p, now)
			if at.Sub(now) < minRetryPause { // too short for one more eviction
				return at
			}
		}
		return earlierNonZero(d.removeIfAllowed(ctx, p, now, Evicted), at)
	}
	if !p.forceDeletion {
		if backoff := d.activeEvictionBackoff(p, now); backoff != nil && len(p.delays) == 0 {
			p.addOrExtendDelay(backoff.reason, d.pdbs.explainObstacle(backoff.reason, &p.pod, backoff.detail), now)
		}
		p.forceDeletion, p.backoff, p.retryAt, p.pause = true, nil, time.Time{}, 0 // the reasons to wait do not apply to a deletion
	}
	hang, since := d.areEvictionsHanging(p, now)
	if len(p.delays) == 0 && (d.limit.failing || hang) { // requests of other pods fail, so that this pod got no turn
		p.addOrExtendDelay(ObstacleError, notServedDetail, now)
	}
	if len(p.delays) == 0 { // no eviction of this pod was refused yet
		return earlierNonZero(d.removeIfAllowed(ctx, p, now, Evicted), since)
	}
	return d.removeIfAllowed(ctx, p, now, ForceDeleted)
}

// removeIfAllowed sends the request unless the pod has to pause, or to wait for a shared backoff or its PDB queue.
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

// canSendRequest reports whether a request for a pod may be sent now. If not, it returns from when on; zero means when an
// answer comes.
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
	return d.trackerFor(method).inFlight < d.concurrencyLimitForPod(p, method, now), time.Time{}
}

// areEvictionsHanging reports whether the evictions in flight use the whole limit and none was answered within a
// second. A forced deletion does not wait for them. The result since is when that will be the case without an answer;
// zero means never.
func (d *Drain) areEvictionsHanging(p *podState, now time.Time) (hang bool, since time.Time) {
	if d.evictions.inFlight < d.concurrencyLimitForPod(p, Evicted, now) {
		return false, time.Time{}
	}
	since = d.evictions.lastSentAt.Add(slowResponse)
	return !now.Before(since), since
}

// backoffsForRequest returns the backoffs that a request has to respect. Deletions ignore PDB backoffs.
func (d *Drain) backoffsForRequest(p *podState, method RemovalMethod) []*sharedBackoff {
	server := d.trackerFor(method).busyBackoff
	if p.backoff == nil || (p.backoff.evictionsOnly && method != Evicted) {
		return []*sharedBackoff{server}
	}
	return []*sharedBackoff{server, p.backoff}
}

// activeEvictionBackoff returns the backoff that blocks the eviction of a pod now, or nil. A refusal of another pod's eviction
// counts too.
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

// newRemoval returns the request for a pod and the grace that it gives.
func (d *Drain) newRemoval(p *podState, now time.Time) (request kubeapi.PodRemoval, grace time.Duration) {
	given := capGrace(p.wantedGrace, d.terms, now)
	r := kubeapi.PodRemoval{Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID}
	if given != p.wantedGrace || d.options.GraceSeconds != nil && *d.options.GraceSeconds >= 0 {
		seconds := int64(given / time.Second)
		r.GracePeriodSeconds = &seconds
	}
	return r, given
}

// startRequest sends one request for a pod in the background. If it succeeds, it calls accepted in the engine's
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
	p.lastSentAt, d.lastSentByNamespace[p.pod.Namespace] = sent, sent
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

// requestTimeout returns how long a request may take.
//
// Under a deadline, a hanging API server must not cost a pod its forced deletion and its retries. After a timeout the
// next request gets more time: a timed-out request loses its place in the queue of a slow API server.
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
		if len(p.delays) > 0 { // the pod is deleted at that time
			return min(left, maxRequestTimeout)
		}
	}
	return min(max(left, minRequestTimeout), maxRequestTimeout)
}

// recordRemovalAccepted records that the API server accepted a request.
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

// delayPodAfterError decides what a failed request means for the pod, and for other pods with the same obstacle.
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
		d.extendBackoffForPod(p, d.pdbs.multiplePDBBackoff(&p.pod), detail, now, manualFixPause, manualFixPause)
	case isNamespaceTerminating(status):
		d.delayPod(p, ObstacleError, namespaceDeletedDetail, now, maxRetryPause)
	case isWebhookError(status):
		d.delayPodLonger(p, ObstacleWebhook, detail, now)
	case status.Code == http.StatusForbidden && method != Evicted && !d.options.DisableEviction:
		p.canDelete = false // only eviction is left to try
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

// delayPodAfterPDBDenial makes a pod wait for the backoff of the PDB that denied its eviction, together with all pods of that
// PDB.
func (d *Drain) delayPodAfterPDBDenial(ctx context.Context, p *podState, now time.Time, status *kubeapi.StatusError) {
	d.startPDBWatch(ctx, p.pod.Namespace, now)
	longest := maxPDBPauseVoluntary
	if d.terms.HasDeadline() {
		longest = maxPDBPauseForced
	}
	pause := max(minRetryPause, min(status.RetryAfter, longest))
	d.extendBackoffForPod(p, d.pdbs.backoffOfDenyingPDB(&p.pod, status), denialMessage(status), now, pause, longest)
	d.pdbs.assignMissingBackoffs(d.remaining, p.pod.Namespace)
}

// extendBackoffForPod makes a pod wait for a shared backoff and extends it: by at least minPause, and longer each time up to
// maxPause.
func (d *Drain) extendBackoffForPod(p *podState, backoff *sharedBackoff, detail string, now time.Time, minPause, maxPause time.Duration) {
	backoff.detail = detail
	backoff.extend(now, d.capPauseToDeadline(minPause, now), d.capPauseToDeadline(maxPause, now))
	if backoff.reason != ObstacleAPIServerBusy { // that one applies to every pod anyway
		p.backoff = backoff
	}
	explained := d.pdbs.explainObstacle(backoff.reason, &p.pod, detail)
	p.setBlocked(backoff.reason, backoff.pdb, explained, now)
	p.addOrExtendDelay(backoff.reason, explained, now)
}

// delayPod makes one pod wait for an obstacle of its own.
func (d *Drain) delayPod(p *podState, reason ObstacleKind, detail string, now time.Time, pause time.Duration) {
	p.setBlocked(reason, "", detail, now)
	p.addOrExtendDelay(reason, detail, now)
	p.retryAt = now.Add(d.capPauseToDeadline(pause, now))
}

// delayPodLonger makes one pod wait for an obstacle of its own, longer each time.
func (d *Drain) delayPodLonger(p *podState, reason ObstacleKind, detail string, now time.Time) {
	p.pause = min(max(2*p.pause, minRetryPause), maxRetryPause)
	d.delayPod(p, reason, detail, now, p.pause)
}

// capPauseToDeadline limits a pause to one eighth of the time before the deadline.
func (d *Drain) capPauseToDeadline(pause time.Duration, now time.Time) time.Duration {
	if !d.terms.HasDeadline() {
		return pause
	}
	return min(pause, max(minRetryPause, d.terms.lastRemovalTime().Sub(now)/8))
}

// shortenGraceIfTooLong ends the grace of a terminating pod that would outlive the instance.
//
// It waits until the last moment, because the API server counts a shorter grace from the pod's deletion, not from now
// (k8s.io/apiserver/pkg/registry/rest, BeforeDelete). A pod that was deleted 2 minutes ago would be killed at once if
// it got the 30 seconds that are left.
func (d *Drain) shortenGraceIfTooLong(ctx context.Context, p *podState, now time.Time) (retryAt time.Time) {
	if !d.terms.HasDeadline() || !p.isTerminating() || !p.canDelete || p.graceShortened {
		return time.Time{}
	}
	end := d.terms.lastRemovalTime()
	if !p.pod.DeletionTimestamp.After(end.Add(time.Second)) {
		return time.Time{}
	}
	if at := end.Add(-time.Second); now.Before(at) {
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
