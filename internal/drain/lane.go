package drain

import "time"

// headStart is for how long an eviction goes first before the next one behind the same budget follows it unanswered.
const headStart = 25 * time.Millisecond

// lane lines up the evictions that the API server counts against one budget.
//
// Each of them writes the budget's status, and so does the disruption controller after it. One that meets a conflict
// sleeps for half a second inside the API server and then tries again (EvictionsRetry in
// k8s.io/kubernetes/pkg/registry/core/pod/storage), so that evictions sent all at once mostly wait for each other. In a
// lane the next one is sent when the last is answered; one that is not answered soon is taken to be asleep, and is not
// waited for.
type lane struct {
	last   *podState
	sentAt time.Time
}

// free is from when the next eviction may be sent; zero is now. An answer frees the lane at once.
func (l *lane) free() time.Time {
	if l.last == nil || !l.last.requesting {
		return time.Time{}
	}
	return l.sentAt.Add(headStart)
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
