package drain

import (
	"context"
	"slices"
	"time"
)

// redrainOnArrival reports the drained node to the caller, waits until a pod arrives, and drains the node again. It
// returns Cancelled if ctx ends before.
func (d *Drain) redrainOnArrival(ctx context.Context) Outcome {
	d.options.OnDrained(d.newReport(Drained))
	d.reportedDrained = true
	d.withdrawEvictionRequests(ctx)
	d.removeGonePods()
	if !d.awaitPodArrival(ctx) {
		return Cancelled
	}
	d.startedAt = time.Now()
	d.finalList, d.detachWait = finalList{}, &detachWait{}
	d.reportArrivalOnce()
	return d.runUntilOutcome(ctx)
}

// reportArrivalOnce calls OnPodArrived if a pod that has to be removed is on the drained node. After a call it does
// nothing until the node was drained again.
func (d *Drain) reportArrivalOnce() {
	first := slices.IndexFunc(d.remaining, (*podState).needsRemoval)
	if !d.reportedDrained || first < 0 {
		return
	}
	d.reportedDrained = false
	d.options.Logger.Warn("a pod that has to be removed arrived on a drained node", "node", d.options.Node, "pod", d.remaining[first].name())
	if d.options.OnPodArrived != nil {
		d.options.OnPodArrived()
	}
}

// awaitPodArrival waits until a pod that has to be removed is on the node, and then returns true. It returns false if
// ctx ends before.
func (d *Drain) awaitPodArrival(ctx context.Context) (arrived bool) {
	timer := time.NewTimer(idleWait)
	defer timer.Stop()
	for ctx.Err() == nil {
		d.processInbox()
		now := time.Now()
		d.applyNewTerms(now)
		next := earlierNonZero(d.applyDueTimers(now), now.Add(idleWait))
		if !d.isEmpty() {
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

// removeGonePods forgets the gone pods, because the last report has contained them.
func (d *Drain) removeGonePods() {
	for uid, p := range d.pods {
		if p.gone {
			delete(d.pods, uid)
		}
	}
	gone := func(p *podState) bool { return p.gone }
	d.remaining = slices.DeleteFunc(d.remaining, gone)
	d.podsByName = slices.DeleteFunc(d.podsByName, gone)
}
