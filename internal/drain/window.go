package drain

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// firstWindow and leastWindow bound how many requests are under way at once, before an answer is known and on an API
	// server that is overloaded.
	firstWindow = 4
	leastWindow = 1
	// promptly is how soon an answer comes from an API server that can take more, slowly when it has too much to do. Between
	// the two lies an eviction that slept because of a conflict, which says nothing.
	promptly = 250 * time.Millisecond
	slowly   = time.Second
	// pressing is how near a deadline is that leaves no time to be modest.
	pressing = 2 * time.Minute
)

// requests are the evictions of a drain, or its deletions. What evictions meet says little of deletions. A deletion comes
// when a pod has only its time to stop left, and does not wait because evictions hang or are refused.
type requests struct {
	inFlight int
	sentAt   time.Time      // when the latest was sent
	underWay map[string]int // those in flight by namespace
	// waitingIn has the namespaces with pods that wait for such a request; it is nil until a step needs it.
	waitingIn map[string]bool
	server    *gate // closed while the API server asks everyone for patience
	trouble   *gate // shared by the pods whose requests the API server could not serve
}

func newRequests(evictions bool) *requests {
	return &requests{
		underWay: map[string]int{}, server: &gate{reason: Busy, evictions: evictions},
		trouble: &gate{reason: Failing, evictions: evictions},
	}
}

// requestsOf returns the requests of one kind.
func (d *Drain) requestsOf(how Asked) *requests {
	if how == Evicted {
		return d.evictions
	}
	return d.deletions
}

// room returns how many requests of one kind may be under way now. With a deadline that is near it is all that are allowed, however
// slow the API server is. Evictions that hold back do not make it quicker then: what they leave of it goes to
// the scheduler and the controllers, which replace the pods that were evicted before, while the others are still waiting
// for their turn and their machines die. The API server's own fair queuing keeps those who ask from crowding out others.
// If it fails, that holds for deletions only.
func (d *Drain) room(how Asked, now time.Time) int {
	if d.terms.Forced() && (how != Evicted || d.terms.end().Sub(now) < pressing && !d.window.failing) {
		return d.window.most
	}
	return d.window.size
}

// roomFor returns how many requests of one kind may be under way for one of a pod to follow them. A slot is kept free for each other
// namespace that waits with none under way, up to half of them: one namespace whose admission webhook hangs must not use
// all of them.
func (d *Drain) roomFor(p *podState, how Asked, now time.Time) int {
	room, all := d.room(how, now), d.requestsOf(how)
	if all.underWay[p.pod.Namespace] == 0 {
		return room
	}
	if all.waitingIn == nil {
		all.waitingIn = map[string]bool{}
		for _, other := range d.order {
			if other.waiting() && !other.requesting && (how == Evicted || other.forcing || d.o.DisableEviction) {
				all.waitingIn[other.pod.Namespace] = true
			}
		}
	}
	kept := 0
	for namespace := range all.waitingIn {
		if all.underWay[namespace] == 0 {
			kept++
		}
	}
	return room - min(kept, room/2)
}

// window is how many requests may be under way at once. It grows with every prompt answer and shrinks by half when the
// API server is slow, refuses or fails.
//
// When a hundred nodes are drained at the same moment, requests beyond what the API server can carry out make it slower
// and not faster: they wait in its queue until somebody gives them up, and an eviction that takes long between reading
// its disruption budget and writing it meets those of other nodes there, and begins again half a second later. A short
// queue also keeps the order: what a node asks next is not behind all that it has asked before.
type window struct {
	size, most int
	shrunk     time.Time // when it was last
	failing    bool      // the latest request was not carried out, or not answered
}

func newWindow(most int) *window { return &window{size: min(firstWindow, most), most: most} }

// heard takes in an answer, or that there was none. Of the requests that were under way together only one counts
// against the window. An admission webhook that cannot be called, or is slow to deny, says nothing about the API server.
func (w *window) heard(sent, answered time.Time, err error) {
	took := answered.Sub(sent)
	status := kubeapi.AsStatus(err)
	if status != nil && (isWebhookFailure(status) || isWebhook(status) && took > slowly) {
		return
	}
	if took < shortestRequest && errors.Is(err, context.DeadlineExceeded) {
		return // it was given up early, since the pod is deleted instead
	}
	w.failing = err != nil && (isFailure(status) || isBusy(err))
	switch {
	case w.failing || took > slowly:
		if sent.After(w.shrunk) {
			w.size, w.shrunk = max(w.size/2, min(leastWindow, w.most)), answered
		}
	case took < promptly:
		w.size = min(w.size+1, w.most)
	}
}

// isBusy recognises an overloaded API server's 429.
func isBusy(err error) bool {
	status := kubeapi.AsStatus(err)
	return status != nil && status.Code == http.StatusTooManyRequests && !isDenial(status) && !isWebhook(status)
}

// spread makes a pause up to twice as long, by chance: those who were refused together must not come back together.
func spread(pause time.Duration) time.Duration { return pause + rand.N(pause) }
