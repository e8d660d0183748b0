package drain

import (
	"context"
	"slices"
	"time"
)

// standBy says that the node is drained, waits for a pod that comes to it after all, and drains it again.
func (d *Drain) standBy(ctx context.Context) Outcome {
	d.o.OnDrained(d.receipt(Drained))
	d.relied = true
	d.forgetGone()
	if !d.awaitArrival(ctx) {
		return Cancelled
	}
	d.began = time.Now()
	d.recount, d.detachment = recount{}, &detachment{}
	d.sayArrival()
	return d.conduct(ctx)
}

// sayArrival takes back, once, that the node is drained, when a pod is on it that has to leave.
func (d *Drain) sayArrival() {
	first := slices.IndexFunc(d.order, (*podState).present)
	if !d.relied || first < 0 {
		return
	}
	d.relied = false
	d.o.Logger.Warn("a pod that has to leave is on a node that was drained", "node", d.o.Node, "pod", d.order[first].name())
	if d.o.OnArrival != nil {
		d.o.OnArrival()
	}
}

// awaitArrival returns true once a pod that has to leave is on the node, and false when ctx ends.
func (d *Drain) awaitArrival(ctx context.Context) bool {
	timer := time.NewTimer(whenAsked)
	defer timer.Stop()
	for ctx.Err() == nil {
		d.read()
		now := time.Now()
		d.takeTerms(now)
		next := sooner(d.review(now), now.Add(whenAsked))
		if !d.empty() {
			return true
		}
		timer.Reset(max(0, next.Sub(now)))
		select {
		case <-ctx.Done():
		case <-d.inbox.filled:
		case <-timer.C:
		}
	}
	return false
}

// forgetGone drops the pods whose receipt has been handed out.
func (d *Drain) forgetGone() {
	for uid, p := range d.pods {
		if p.gone {
			delete(d.pods, uid)
		}
	}
	gone := func(p *podState) bool { return p.gone }
	d.order = slices.DeleteFunc(d.order, gone)
	d.named = slices.DeleteFunc(d.named, gone)
}
