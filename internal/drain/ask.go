package drain

import (
	"context"
	"net/http"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// firstPause and lastPause bound the wait after an error that may pass by itself.
	firstPause = 200 * time.Millisecond
	lastPause  = 2 * time.Second
	// settledPause is for obstacles that only a person removes: several budgets on a pod, a missing right.
	settledPause = 10 * time.Second
	// longestRequest bounds a request; see kubeapi.DefaultTimeout for why it is so long.
	longestRequest = kubeapi.DefaultTimeout
	// shortestRequest is what a request gets even when there is no time left.
	shortestRequest = 2 * time.Second
)

const notServed = "the API server does not carry out the requests for other pods of the node"

// ask asks a waiting pod to leave, if it may be asked now, and returns when to look again otherwise.
func (d *Drain) ask(ctx context.Context, p *podState, now time.Time) time.Time {
	if d.o.DisableEviction {
		return d.unlessWaiting(ctx, p, now, DeletedOnRequest)
	}
	if !d.terms.Forced() || !p.mayDelete {
		return d.unlessWaiting(ctx, p, now, Evicted)
	}
	if at := forceAt(p.wanted, d.terms, d.since); now.Before(at) {
		p.forcing = false
		early := at.Add(-conditionLead)
		switch {
		case now.Before(early):
			at = early
		case d.refusing(p, now) != nil || len(p.delays) > 0:
			d.setDisruptionTarget(ctx, p, now)
			if at.Sub(now) < firstPause { // too little for one more eviction
				return at
			}
		}
		return sooner(d.unlessWaiting(ctx, p, now, Evicted), at)
	}
	if !p.forcing {
		if g := d.refusing(p, now); g != nil && len(p.delays) == 0 {
			p.delay(g.reason, d.budgets.explain(g.reason, &p.pod, g.detail), now)
		}
		p.forcing, p.gate, p.notBefore, p.pause = true, nil, time.Time{}, 0 // what was waited for is over
	}
	hang, since := d.evictionsHang(p, now)
	if len(p.delays) == 0 && (d.window.failing || hang) { // its turn has not come because the others' requests fail
		p.delay(Failing, notServed, now)
	}
	if len(p.delays) == 0 { // no eviction of it was refused yet
		return sooner(d.unlessWaiting(ctx, p, now, Evicted), since)
	}
	return d.unlessWaiting(ctx, p, now, Forced)
}

// unlessWaiting sends the request unless the pod has to pause, or to wait at a gate.
func (d *Drain) unlessWaiting(ctx context.Context, p *podState, now time.Time, how Asked) time.Time {
	if may, at := d.mayRequest(p, how, now); !may {
		return at
	}
	if how != Evicted {
		if at := d.setDisruptionTarget(ctx, p, now); !at.IsZero() {
			return at
		}
	}
	if how == Evicted {
		if d.canFollow(p.pod.Namespace, now) && d.crowded(p.pod.Namespace) { // in this order: counting looks at every pod
			d.followBudgets(ctx, p.pod.Namespace, now)
		}
		if l, key := d.laneOf(p); l != nil {
			if at := l.free(d.longestQueueWait(p, key, now)); now.Before(at) {
				return at
			}
			l.sent(p, now)
		}
	}
	d.request(ctx, p, how, now)
	return time.Time{} // its answer wakes us
}

// mayRequest reports whether a request for a pod may be sent now, and else from when on; zero is when an answer comes.
func (d *Drain) mayRequest(p *podState, how Asked, now time.Time) (bool, time.Time) {
	if now.Before(p.notBefore) {
		return false, p.notBefore
	}
	for _, g := range d.gatesBefore(p, how) {
		if open, at := g.open(now); !open {
			if how != Shortened && (p.blocked.Reason != g.reason || p.blocked.Budget != g.name) {
				p.obstruct(g.reason, g.name, d.budgets.explain(g.reason, &p.pod, g.detail), now)
			}
			return false, at
		}
	}
	return d.requestsOf(how).inFlight < d.roomFor(p, how, now), time.Time{}
}

// evictionsHang reports whether as many evictions as may be under way are, and none of them was answered within a second. A pod with only its
// time to stop left does not wait for them. Since is when that will be so if no answer comes; zero is never.
func (d *Drain) evictionsHang(p *podState, now time.Time) (hang bool, since time.Time) {
	if d.evictions.inFlight < d.roomFor(p, Evicted, now) {
		return false, time.Time{}
	}
	since = d.evictions.sentAt.Add(slowly)
	return !now.Before(since), since
}

// gatesBefore returns the gates that a request has to pass. No budget stands before a deletion.
func (d *Drain) gatesBefore(p *podState, how Asked) []*gate {
	server := d.requestsOf(how).server
	if p.gate == nil || (p.gate.evictions && how != Evicted) {
		return []*gate{server}
	}
	return []*gate{server, p.gate}
}

// refusing returns the gate that keeps a pod from being evicted now: what refused the eviction of another pod would refuse
// its own. Nil is none.
func (d *Drain) refusing(p *podState, now time.Time) *gate {
	for _, g := range d.gatesBefore(p, Evicted) {
		if open, _ := g.open(now); !open {
			return g
		}
	}
	return nil
}

// request sends one eviction or deletion.
func (d *Drain) request(ctx context.Context, p *podState, how Asked, now time.Time) {
	r, given := d.removal(p, now)
	send := d.api.DeletePod
	if how == Evicted {
		send = d.api.Evict
	}
	d.send(ctx, p, how, send, r, d.patience(p, how, now), func(answered time.Time) {
		if l, _ := d.laneOf(p); l != nil && how == Evicted {
			l.accepted(p, now, answered)
		}
		d.accepted(p, how, given, now)
	})
}

// removal is the request for a pod, and the grace it gives.
func (d *Drain) removal(p *podState, now time.Time) (kubeapi.Removal, time.Duration) {
	given := grantedGrace(p.wanted, d.terms, now)
	r := kubeapi.Removal{Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID}
	if given != p.wanted || d.o.GraceSeconds != nil && *d.o.GraceSeconds >= 0 {
		seconds := int64(given / time.Second)
		r.Grace = &seconds
	}
	return r, given
}

// send makes one request for a pod in the background, and calls accepted in the engine's goroutine if it succeeds.
func (d *Drain) send(ctx context.Context, p *podState, how Asked, send func(context.Context, kubeapi.Removal) error,
	r kubeapi.Removal, patience time.Duration, accepted func(answered time.Time),
) {
	gates := d.gatesBefore(p, how)
	sent := time.Now()
	for _, g := range gates {
		g.busy++
		g.sentAt = sent
	}
	p.requesting = true
	all := d.requestsOf(how)
	all.inFlight++
	all.sentAt = sent
	all.underWay[p.pod.Namespace]++
	p.triedAt, d.lastSent[p.pod.Namespace] = sent, sent
	bounded, cancel := context.WithTimeout(ctx, patience)
	p.giveUp = func(now time.Time) { time.AfterFunc(d.patience(p, how, now), cancel) }
	d.background.Go(func() {
		defer cancel()
		err := send(bounded, r)
		answered := time.Now()
		d.inbox.put(func(now time.Time) {
			d.answered(p, all, gates)
			d.window.heard(sent, answered, err)
			if err != nil {
				d.refused(ctx, p, how, now, err)
				return
			}
			for _, g := range gates {
				g.allow()
			}
			accepted(now)
		})
	})
}

// answered takes a request off the ones under way.
func (d *Drain) answered(p *podState, all *requests, gates []*gate) {
	for _, g := range gates {
		g.busy--
	}
	p.requesting = false
	all.inFlight--
	if all.underWay[p.pod.Namespace]--; all.underWay[p.pod.Namespace] == 0 {
		delete(all.underWay, p.pod.Namespace)
	}
}

// patience is how long a request may take. Under a deadline an API server that hangs must not cost a pod the moment
// at which it has to be deleted, nor the attempts after that. One that was not answered in its time is given more the
// next time: giving up costs a request its place in the queue of an API server that is only slow.
func (d *Drain) patience(p *podState, how Asked, now time.Time) time.Duration {
	if !d.terms.Forced() {
		return longestRequest
	}
	left := d.terms.end().Sub(now) / 3
	if p.unanswered != NotAsked {
		left *= 2
	}
	if at := forceAt(p.wanted, d.terms, d.since); how == Evicted && at.After(now) {
		left = at.Sub(now) + grudged(p.wanted, d.terms, d.since)
		if len(p.delays) > 0 { // it is deleted then
			return min(left, longestRequest)
		}
	}
	return min(max(left, shortestRequest), longestRequest)
}

// accepted takes in the API server's yes to a request of asked.
func (d *Drain) accepted(p *podState, how Asked, given time.Duration, asked time.Time) {
	p.asked, p.askedAt, p.unanswered = how, asked, NotAsked
	p.blocked = Blocked{}
	if !p.terminating() { // else the watch was faster than the answer, and knows better
		p.given = given
	}
	if how == Forced {
		d.o.Logger.Warn("pod deleted past what blocked its eviction, since the deadline leaves no more time to wait",
			"pod", p.name(), "graceSeconds", int64(p.given/time.Second), "delays", p.delays)
	}
}

// refused decides what an error means for the pod, and for those that wait for the same thing.
func (d *Drain) refused(ctx context.Context, p *podState, how Asked, now time.Time, err error) {
	status := kubeapi.AsStatus(err)
	if isFailure(status) {
		p.mayHaveWorked(how)
	}
	if d.over || p.gone || ctx.Err() != nil {
		return
	}
	d.o.Logger.Debug("pod not asked", "pod", p.name(), "how", how, "err", err)
	if isBusy(err) { // which concerns all pods alike: those with the longest grace stay first
		p.busy++
	} else {
		p.refusals++
	}
	all, said := d.requestsOf(how), err.Error()
	if status != nil && status.Message != "" {
		said = status.Message
	}
	switch {
	case status == nil:
		d.hold(p, all.trouble, said, now, firstPause, lastPause)
	case how == Evicted && isDenial(status):
		d.denied(ctx, p, now, status)
	case isSeveralBudgets(status):
		d.followBudgets(ctx, p.pod.Namespace, now)
		d.hold(p, d.budgets.gateOfSeveral(&p.pod), said, now, settledPause, settledPause)
	case isNamespaceTerminating(status):
		d.postpone(p, Failing, namespaceGoes, now, lastPause)
	case isWebhook(status):
		d.postponeMore(p, Webhook, said, now)
	case status.Code == http.StatusForbidden && how != Evicted && !d.o.DisableEviction:
		p.mayDelete = false // eviction is all that is left to try
		d.postpone(p, NoRight, said, now, firstPause)
	case status.Code == http.StatusForbidden:
		d.hold(p, d.budgets.gateOfRights(&p.pod, how), said, now, settledPause, settledPause)
	case isBusy(err):
		d.hold(p, all.server, said, now, spread(max(firstPause, min(status.RetryAfter, lastPause))), spread(lastPause))
	case status.Code >= http.StatusInternalServerError:
		d.hold(p, all.trouble, said, now, firstPause, lastPause)
	default:
		// A conflict means that the pod was replaced under our request. "Not found" may also speak of a budget that was
		// deleted while the API server asked it. The watch will tell which; until it does, the pod is there (I7).
		d.postponeMore(p, Failing, said, now)
	}
	if how != Evicted { // which most gates let pass
		p.notBefore = latest(p.notBefore, now.Add(d.hasten(firstPause, now)))
	}
}

// denied: a disruption budget said no. The pod waits at that budget's gate with all others that the budget covers.
func (d *Drain) denied(ctx context.Context, p *podState, now time.Time, status *kubeapi.StatusError) {
	d.followBudgets(ctx, p.pod.Namespace, now)
	longest := maxBudgetPauseVoluntary
	if d.terms.Forced() {
		longest = maxBudgetPauseForced
	}
	pause := max(firstPause, min(status.RetryAfter, longest))
	d.hold(p, d.budgets.gateFor(&p.pod, status), denialOf(status), now, pause, longest)
	d.budgets.regroup(d.order, p.pod.Namespace)
}

// hold makes a pod wait at a gate, which closes for at least pause, and longer each time up to longest.
func (d *Drain) hold(p *podState, g *gate, detail string, now time.Time, pause, longest time.Duration) {
	g.detail = detail
	g.close(now, d.hasten(pause, now), d.hasten(longest, now))
	if g.reason != Busy { // whose gate stands before everyone
		p.gate = g
	}
	explained := d.budgets.explain(g.reason, &p.pod, detail)
	p.obstruct(g.reason, g.name, explained, now)
	p.delay(g.reason, explained, now)
}

// postpone makes a pod wait for something that concerns no other.
func (d *Drain) postpone(p *podState, reason Obstacle, detail string, now time.Time, pause time.Duration) {
	p.obstruct(reason, "", detail, now)
	p.delay(reason, detail, now)
	p.notBefore = now.Add(d.hasten(pause, now))
}

// postponeMore makes a pod wait, longer each time, for something that concerns no other.
func (d *Drain) postponeMore(p *podState, reason Obstacle, detail string, now time.Time) {
	p.pause = min(max(2*p.pause, firstPause), lastPause)
	d.postpone(p, reason, detail, now, p.pause)
}

// hasten shortens a pause to a part of what is left before the deadline.
func (d *Drain) hasten(pause time.Duration, now time.Time) time.Duration {
	if !d.terms.Forced() {
		return pause
	}
	return min(pause, max(firstPause, d.terms.end().Sub(now)/8))
}

// hurry ends the grace of a pod that is stopping already but would outlive the machine.
//
// It does so at the last moment and not before, since the API server counts a shorter grace from when the pod was
// deleted, not from now (k8s.io/apiserver/pkg/registry/rest, BeforeDelete): a pod deleted two minutes ago and told to
// stop within the 30 seconds that are left would be killed at once. It was told to stop long ago; only the end of its
// grace is to be moved.
func (d *Drain) hurry(ctx context.Context, p *podState, now time.Time) time.Time {
	if !d.terms.Forced() || !p.terminating() || !p.mayDelete || p.cutOff {
		return time.Time{}
	}
	end := d.terms.end()
	if !p.pod.DeletionTimestamp.After(end.Add(time.Second)) {
		return time.Time{}
	}
	if at := end.Add(-time.Second); now.Before(at) {
		return at
	}
	if may, at := d.mayRequest(p, Shortened, now); !may {
		return at
	}
	seconds := int64(1)
	r := kubeapi.Removal{Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID, Grace: &seconds}
	d.send(ctx, p, Shortened, d.api.DeletePod, r, shortestRequest, func(time.Time) {
		p.cutOff = true
		if p.asked == NotAsked {
			p.asked, p.askedAt = Shortened, now
		}
	})
	return time.Time{}
}
