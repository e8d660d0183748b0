package drain

import "time"

const (
	// leastHeadStart is for how long an eviction goes first, at least, before the next one behind the same budget follows
	// it unanswered.
	leastHeadStart = 25 * time.Millisecond
	// conflictPause is how long an eviction takes at least that has met a conflict.
	conflictPause = 500 * time.Millisecond
)

// lane lines up the evictions that the API server counts against one budget.
//
// Each of them writes the budget's status, and so does the disruption controller after it. One that meets a conflict
// sleeps for half a second inside the API server and then tries again (EvictionsRetry in
// k8s.io/kubernetes/pkg/registry/core/pod/storage), so that evictions sent all at once mostly wait for each other. In a
// lane the next one is sent when the last is answered; one that takes twice as long as they do of late is taken to be
// asleep, and is not waited for.
type lane struct {
	last   *podState
	sentAt time.Time
	usual  time.Duration // what evictions take that have met no conflict, the latest counting most
}

// free is from when the next eviction may be sent; zero is now. An answer frees the lane at once.
func (l *lane) free() time.Time {
	if l.last == nil || !l.last.requesting {
		return time.Time{}
	}
	return l.sentAt.Add(min(max(leastHeadStart, 2*l.usual), conflictPause))
}

// accepted takes in how long an eviction took that the API server said yes to. On a busy one they all take long, and a
// head start that is too short would make conflicts of them.
func (l *lane) accepted(took time.Duration) {
	const weight = 4
	switch {
	case took >= conflictPause:
	case l.usual == 0:
		l.usual = took
	default:
		l.usual += (took - l.usual) / weight
	}
}

// laneOf returns the lane of a pod, by the budgets that cover it. While these are not known the pods of one controller
// are taken to share one. Nil is for a pod whose eviction no budget counts.
func (d *Drain) laneOf(p *podState) *lane {
	covering, known := d.budgets.covering(&p.pod)
	owner := controller(&p.pod)
	var key string
	switch {
	case exempt(&p.pod), known && len(covering) == 0:
		return nil
	case known:
		key = p.pod.Namespace + "/" + names(covering)
	case owner != nil:
		key = owner.UID
	default:
		return nil
	}
	l := d.lanes[key]
	if l == nil {
		l = &lane{}
		d.lanes[key] = l
	}
	return l
}
