package drain

import (
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// leastHeadStart is for how long an eviction goes first, at least, before the next one behind the same budget follows
	// it unanswered.
	leastHeadStart = 100 * time.Millisecond
	// conflictPause is how long an eviction takes at least that has met a conflict.
	conflictPause = 500 * time.Millisecond
	// longestCount is how long the disruption controller is waited for to count an eviction.
	longestCount = 150 * time.Millisecond
)

// lane lines up the evictions that the API server counts against one budget.
//
// Each of them writes the budget's status, and so does the disruption controller after it, once the pod is on its way
// out. One that meets a conflict sleeps for half a second inside the API server and then tries again (EvictionsRetry in
// k8s.io/kubernetes/pkg/registry/core/pod/storage), so that evictions sent all at once mostly wait for each other. In a
// lane the next one is sent when the last is answered and the controller has written what it makes of it, which the
// watch of the budgets tells. One that takes three times as long as they do of late is taken to be asleep, and is not
// waited for.
type lane struct {
	last     *podState
	sentAt   time.Time
	yesAt    time.Time     // when last was accepted; zero is not yet, or not at all
	entered  bool          // last was seen in the budget's status.disruptedPods, which the eviction wrote
	counted  bool          // and seen to be taken out again, which the controller wrote
	usual    time.Duration // what evictions take that have met no conflict, the latest counting most
	followed bool          // the budget has been heard of, so that it can be waited for
	ready    bool          // last was ready when it was asked: others are let go without being counted
}

// free returns when the next eviction may be sent, at most longest after the last one; zero is now. A refusal frees the
// lane at once.
func (l *lane) free(longest time.Duration) time.Time {
	at := l.sentAt.Add(longest)
	switch {
	case l.last == nil || l.counted:
		return time.Time{}
	case l.last.requesting:
		return sooner(at, l.sentAt.Add(min(max(leastHeadStart, 3*l.usual), conflictPause)))
	case l.followed && l.ready && !l.yesAt.IsZero():
		return sooner(at, l.yesAt.Add(longestCount))
	}
	return time.Time{}
}

// longestQueueWait returns how long an eviction of p waits for the one before it at most. With a deadline all pods of the
// PDB queue are asked in half of the time that is left before p would be deleted past its budget: a conflict inside the
// API server costs half a second, a pod that is not asked in time is lost.
func (d *Drain) longestQueueWait(p *podState, key string, now time.Time) time.Duration {
	if !d.terms.Forced() {
		return whenAsked
	}
	if d.queued == nil {
		d.queued = map[string]int{}
		for _, other := range d.order {
			if other.waiting() && !other.requesting {
				d.queued[d.laneKey(other)]++
			}
		}
	}
	left := max(0, forceAt(p.wanted, d.terms, d.since).Sub(now))
	return left / 2 / time.Duration(max(1, d.queued[key]))
}

func (l *lane) sent(p *podState, now time.Time) {
	l.last, l.sentAt, l.ready = p, now, ready(&p.pod)
	l.yesAt, l.entered, l.counted = time.Time{}, false, false
}

// accepted takes in how long an eviction took that the API server said yes to. On a busy one they all take long, and a
// head start that is too short would make conflicts of them.
func (l *lane) accepted(p *podState, sent, answered time.Time) {
	const weight = 4
	if l.last == p {
		l.yesAt = answered
	}
	switch took := answered.Sub(sent); {
	case took >= conflictPause:
	case l.usual == 0:
		l.usual = took
	default:
		l.usual += (took - l.usual) / weight
	}
}

// heard takes in the budget's newest state.
func (l *lane) heard(b *kubeapi.PodDisruptionBudget) {
	l.followed = true
	if l.last == nil {
		return
	}
	_, disrupted := b.Status.DisruptedPods[l.last.pod.Name]
	l.counted = l.counted || l.entered && !disrupted
	l.entered = l.entered || disrupted
}

// laneOf returns the lane of a pod and its key; nil is for one whose eviction no budget counts.
func (d *Drain) laneOf(p *podState) (*lane, string) {
	key := d.laneKey(p)
	if key == "" {
		return nil, ""
	}
	l := d.lanes[key]
	if l == nil {
		l = &lane{}
		d.lanes[key] = l
	}
	return l, key
}

// laneKey names a lane by the budgets that cover a pod. While these are not known the pods of one controller are taken
// to share one.
func (d *Drain) laneKey(p *podState) string {
	covering, known := d.budgets.covering(&p.pod)
	owner := fromkubeapi.ControllerOf(&p.pod)
	switch {
	case exempt(&p.pod), known && len(covering) == 0, !known && owner == nil:
		return ""
	case known:
		return p.pod.Namespace + "/" + names(covering)
	}
	return owner.UID
}

// rekeyLanes turns the lanes of a namespace's controllers into those of its budgets, when these become known.
func (d *Drain) rekeyLanes(namespace string) {
	for key, l := range d.lanes {
		if l.last == nil || l.last.pod.Namespace != namespace {
			continue
		}
		now := d.laneKey(l.last)
		if now == key {
			continue
		}
		delete(d.lanes, key)
		if other := d.lanes[now]; now != "" && (other == nil || other.sentAt.Before(l.sentAt)) {
			d.lanes[now] = l
		}
	}
}
