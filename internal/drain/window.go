package drain

import (
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

// room is how many requests may be under way now. With a deadline that is near it is all that are allowed, however slow
// the API server is, unless it fails. Evictions that hold back do not make it quicker then: what they leave of it goes to
// the scheduler and the controllers, which replace the pods that were evicted before, while the others are still waiting
// for their turn and their machines die. The API server's own fair queuing keeps those who ask from crowding out others.
func (d *Drain) room(now time.Time) int {
	if d.terms.Forced() && d.terms.end().Sub(now) < pressing && !d.window.failing {
		return d.window.most
	}
	return d.window.size
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
// against the window.
func (w *window) heard(sent, answered time.Time, err error) {
	took := answered.Sub(sent)
	status := kubeapi.AsStatus(err)
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
