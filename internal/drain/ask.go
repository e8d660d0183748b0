package drain

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// firstPause and lastPause bound the wait after an error that concerns one pod.
	firstPause = 200 * time.Millisecond
	lastPause  = 2 * time.Second
	// settledPause is for obstacles that only a person removes: several budgets on a pod, a missing right.
	settledPause = 10 * time.Second
	// requestTimeout bounds an eviction. The API server may hold one while it updates a busy budget.
	requestTimeout = 10 * time.Second
)

// ask asks a waiting pod to leave, if it may be asked now, and returns when to look again otherwise.
func (d *Drain) ask(ctx context.Context, p *podState, now time.Time) time.Time {
	if d.o.DisableEviction {
		return d.unlessWaiting(ctx, p, now, DeletedOnRequest)
	}
	if d.terms.Forced() && p.mayDelete {
		force := forceAt(p.wanted, d.terms, d.since)
		if !now.Before(force) && p.blocked.Reason != "" && p.blocked.Reason != EarlierWave {
			return d.force(ctx, p, now)
		}
		return earlier(d.unlessWaiting(ctx, p, now, Evicted), force)
	}
	return d.unlessWaiting(ctx, p, now, Evicted)
}

// force deletes a pod past what blocks its eviction. The pauses that the obstacle asked for are over with the first
// attempt; later attempts keep their own.
func (d *Drain) force(ctx context.Context, p *podState, now time.Time) time.Time {
	if !p.forcing {
		p.forcing, p.notBefore, p.pause = true, time.Time{}, 0
	}
	return d.unlessWaiting(ctx, p, now, Forced)
}

// unlessWaiting sends the request unless the pod waits for a pause of its own or at a budget's gate.
func (d *Drain) unlessWaiting(ctx context.Context, p *podState, now time.Time, how Asked) time.Time {
	if now.Before(p.notBefore) {
		return p.notBefore
	}
	if g := p.gate; g != nil && how == Evicted {
		if g.busy {
			return time.Time{} // its answer wakes us
		}
		if now.Before(g.until) {
			return g.until
		}
	}
	return d.request(ctx, p, how, now)
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// request sends one eviction or deletion. It returns the zero time: the answer wakes the engine.
func (d *Drain) request(ctx context.Context, p *podState, how Asked, now time.Time) time.Time {
	if d.inFlight >= d.o.MaxInFlight {
		return time.Time{}
	}
	given := grantedGrace(p.wanted, d.terms, now)
	r := kubeapi.Removal{Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID}
	if given != p.wanted || d.o.GraceSeconds != nil {
		seconds := int64(given / time.Second)
		r.Grace = &seconds
	}
	send, g := d.api.DeletePod, p.gate
	if how == Evicted {
		send = d.api.Evict
		if g != nil {
			g.busy = true
		}
	} else {
		g = nil
	}
	p.requesting = true
	d.inFlight++
	d.requests.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		err := send(bounded, r)
		d.tell(ctx, func(answered time.Time) {
			d.inFlight--
			p.requesting = false
			if g != nil {
				g.busy = false
			}
			d.answered(ctx, p, how, given, now, answered, err)
		})
	})
	return time.Time{}
}

// answered takes in the API server's answer to a request of now.
func (d *Drain) answered(ctx context.Context, p *podState, how Asked, given time.Duration, asked, now time.Time, err error) {
	if err == nil {
		if p.gate != nil && how == Evicted {
			p.gate.allow()
		}
		p.asked, p.askedAt, p.given = how, asked, given
		if seconds := p.pod.DeletionGracePeriodSeconds; seconds != nil {
			p.given = time.Duration(*seconds) * time.Second // the watch was faster than the answer
		}
		p.blocked = Blocked{}
		if how == Forced {
			d.o.Logger.Warn("pod deleted past what blocked its eviction, since the deadline leaves no more time to wait",
				"pod", p.pod.Namespace+"/"+p.pod.Name, "graceSeconds", int64(p.given/time.Second), "delays", p.delays)
		}
		return
	}
	d.refused(ctx, p, how, now, err)
}

// refused decides what an error means for the pod, and for those that wait for the same thing.
func (d *Drain) refused(ctx context.Context, p *podState, how Asked, now time.Time, err error) {
	status := kubeapi.AsStatus(err)
	switch {
	case kubeapi.IsNotFound(err):
		p.leave(now)
	case isDenial(status):
		d.denied(ctx, p, now, status)
	case isSeveralBudgets(status):
		d.readBudgets(ctx, p.pod.Namespace, now)
		covering, _ := d.budgets.covering(&p.pod)
		p.postpone(SeveralBudgets, explain(&p.pod, covering, status.Message), now, settledPause)
	case isNamespaceTerminating(status):
		p.postpone(Failing, "its namespace is being deleted, which deletes the pod", now, lastPause)
	case kubeapi.IsForbidden(err) && how != Evicted:
		p.mayDelete = false // eviction is all that is left to try
		p.postpone(NoRight, status.Message, now, firstPause)
	case kubeapi.IsForbidden(err):
		p.postpone(NoRight, status.Message, now, settledPause)
	case status != nil && status.Code == http.StatusTooManyRequests:
		p.postpone(Busy, status.Message, now, max(firstPause, min(status.RetryAfter, lastPause)))
	default:
		// Also a conflict: the pod was replaced under our request, which the watch will tell, or it was not.
		p.pause = min(max(2*p.pause, firstPause), lastPause)
		p.postpone(Failing, err.Error(), now, p.pause)
	}
	d.o.Logger.Debug("pod not asked", "pod", p.pod.Namespace+"/"+p.pod.Name, "how", how, "err", err)
}

func (p *podState) postpone(reason Obstacle, detail string, now time.Time, pause time.Duration) {
	p.obstruct(reason, "", detail, now)
	p.delay(reason, detail, now)
	p.notBefore = now.Add(pause)
}

// denied: a disruption budget said no. The pod waits at that budget's gate with all others that were denied there.
func (d *Drain) denied(ctx context.Context, p *podState, now time.Time, status *kubeapi.StatusError) {
	d.readBudgets(ctx, p.pod.Namespace, now)
	denial := denialOf(status)
	p.gate = d.budgets.gateFor(&p.pod, denial)
	p.gate.deny(now, d.terms.Forced(), status.RetryAfter)
	covering, _ := d.budgets.covering(&p.pod)
	detail := explain(&p.pod, covering, denial)
	p.obstruct(Budget, p.gate.name, detail, now)
	p.delay(Budget, detail, now)
}

// readBudgets reads a namespace's budgets in the background, so that denials can be explained and grouped.
func (d *Drain) readBudgets(ctx context.Context, namespace string, now time.Time) {
	if !d.budgets.stale(namespace, now) {
		return
	}
	d.requests.Go(func() {
		list, err := d.api.ListBudgets(ctx, namespace)
		d.tell(ctx, func(now time.Time) {
			d.budgets.learn(namespace, list, err, now)
			d.regroup(namespace, now)
		})
	})
}

// regroup moves waiting pods to the gates of the budgets that are now known, and explains better what they wait for.
func (d *Drain) regroup(namespace string, now time.Time) {
	for _, p := range d.pods {
		if p.pod.Namespace != namespace || !p.waiting() {
			continue
		}
		covering, ok := d.budgets.covering(&p.pod)
		if !ok || len(covering) == 0 {
			continue
		}
		switch p.blocked.Reason {
		case Budget:
			old := p.gate
			p.gate = d.budgets.gateFor(&p.pod, p.blocked.Detail)
			if p.gate != old && p.gate.until.IsZero() && old != nil {
				p.gate.until, p.gate.pause = old.until, old.pause
			}
			p.obstruct(Budget, p.gate.name, explain(&p.pod, covering, p.blocked.Detail), now)
		case SeveralBudgets:
			p.obstruct(SeveralBudgets, "", explain(&p.pod, covering, p.blocked.Detail), now)
		}
	}
}

// isDenial tells a disruption budget's 429 from an overloaded API server's.
func isDenial(s *kubeapi.StatusError) bool {
	if s == nil || s.Code != http.StatusTooManyRequests {
		return false
	}
	for _, c := range s.Causes {
		if c.Reason == "DisruptionBudget" {
			return true
		}
	}
	return strings.Contains(s.Message, "disruption budget")
}

func denialOf(s *kubeapi.StatusError) string {
	for _, c := range s.Causes {
		if c.Reason == "DisruptionBudget" && c.Message != "" {
			return c.Message
		}
	}
	return s.Message
}

// isSeveralBudgets recognises the API server's answer for a pod under more than one budget, a plain 500.
func isSeveralBudgets(s *kubeapi.StatusError) bool {
	return s != nil && s.Code == http.StatusInternalServerError &&
		strings.Contains(s.Message, "more than one PodDisruptionBudget")
}

func isNamespaceTerminating(s *kubeapi.StatusError) bool {
	if s == nil || s.Code != http.StatusForbidden {
		return false
	}
	for _, c := range s.Causes {
		if c.Reason == "NamespaceTerminating" {
			return true
		}
	}
	return false
}

// hurry shortens the grace of a pod that is stopping already but would outlive the machine.
func (d *Drain) hurry(ctx context.Context, p *podState, now time.Time) time.Time {
	if !d.terms.Forced() || !p.terminating() || !p.mayDelete {
		return time.Time{}
	}
	end := d.terms.Deadline.Add(-d.terms.Margin)
	if !p.pod.DeletionTimestamp.After(end.Add(time.Second)) || p.shortenBy.Equal(end) {
		return time.Time{}
	}
	if now.Before(p.notBefore) {
		return p.notBefore
	}
	if d.inFlight >= d.o.MaxInFlight {
		return time.Time{}
	}
	seconds := int64(grantedGrace(p.pod.DeletionTimestamp.Sub(now), d.terms, now) / time.Second)
	r := kubeapi.Removal{Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID, Grace: &seconds}
	p.requesting = true
	d.inFlight++
	d.requests.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		err := d.api.DeletePod(bounded, r)
		d.tell(ctx, func(answered time.Time) {
			d.inFlight--
			p.requesting = false
			if err != nil {
				d.refused(ctx, p, Shortened, answered, err)
				return
			}
			p.shortenBy = end
			if p.asked == NotAsked {
				p.asked, p.askedAt = Shortened, now
			}
			p.given = time.Duration(seconds) * time.Second
		})
	})
	return time.Time{}
}
