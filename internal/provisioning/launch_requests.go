package provisioning

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

const (
	// maxRequests bounds how many wishes are remembered.
	maxRequests = 10_000
	// requestTTL is how long a wish is kept that is not repeated: one that could not be granted by then is given up, and one
	// that was granted may be granted again.
	requestTTL = time.Hour
)

// Wishes are the machines that are asked for from outside, such as by plugins. They may be used concurrently.
type Wishes struct {
	mu       sync.Mutex
	requests map[string]*launchRequest
	wake     chan<- struct{}
}

// launchRequest is one with what has become of it.
type launchRequest struct {
	plan.Wish
	askedAt     time.Time // when it was last asked for
	met         bool
	lastReasons string // the reasons for which it last was not granted
}

// NewWishes are none.
func NewWishes() *Wishes { return &Wishes{requests: map[string]*launchRequest{}} }

// Ask has machines ordered at the next look. A wish of an ID that was met before is not granted again before Withdraw. It
// reports whether the wish is taken: there are too many otherwise.
func (w *Wishes) Ask(asked plan.Wish) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.requests[asked.ID]; known != nil {
		known.askedAt = time.Now()
		return true
	}
	if len(w.requests) >= maxRequests {
		return false
	}
	w.requests[asked.ID] = &launchRequest{Wish: asked, askedAt: time.Now()}
	if w.wake != nil {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// Withdraw forgets the wishes whose IDs begin so, since what they were for is gone.
func (w *Wishes) Withdraw(prefix string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.requests {
		if strings.HasPrefix(id, prefix) {
			delete(w.requests, id)
		}
	}
}

// listOpen are those that were not met yet.
func (w *Wishes) listOpen() (list []plan.Wish) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, known := range w.requests {
		switch {
		case time.Since(known.askedAt) > requestTTL:
			delete(w.requests, id)
		case !known.met:
			list = append(list, known.Wish)
		}
	}
	slices.SortFunc(list, func(a, b plan.Wish) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// applyVerdicts takes in what was decided, and gives the wishes that cannot be granted now for other reasons than before.
func (w *Wishes) applyVerdicts(verdicts []plan.WishVerdict) (refused []plan.WishVerdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range verdicts {
		known := w.requests[v.ID]
		if known == nil {
			continue
		}
		known.Count = v.Missing
		known.met = v.Missing == 0
		if text := joinReasons(v.Reasons); known.lastReasons != text {
			known.lastReasons = text
			refused = append(refused, v)
		}
	}
	return refused
}

// openRequests are those that are open, without those of whose orders it is not known yet what comes of them.
func (a *Controller) openRequests(groups []*managedGroup) []plan.Wish {
	a.applyRequestVerdicts(a.settleRequests(groups))
	return slices.DeleteFunc(a.options.Wishes.listOpen(), func(w plan.Wish) bool {
		g := findGroup(groups, w.Group)
		return g != nil && slices.ContainsFunc(g.state.unsettledRequests, func(v unsettledRequest) bool { return v.ID == w.ID })
	})
}

// unsettledRequest is the word on a wish with the orders that it was granted by.
type unsettledRequest struct {
	plan.WishVerdict
	countByLaunch map[string]int // how many machines, by the order's ID
}

// newUnsettledRequest is the word on a wish that the orders just placed grant.
func (m *groupState) newUnsettledRequest(v plan.WishVerdict) unsettledRequest {
	g := unsettledRequest{v, map[string]int{}}
	for kind, n := range v.By {
		g.countByLaunch[m.latestLaunches[kind]] += n
	}
	return g
}

// isUnsettled reports whether the cloud has still to answer an order of a grant, or to show which machines it has made of one
// that failed.
func (m *groupState) isUnsettled(g unsettledRequest) bool {
	return slices.ContainsFunc(m.pending, func(a launch.Pending) bool {
		return g.countByLaunch[a.ID] > 0 && (a.Answered.IsZero() || a.Answer != launch.Accepted && a.Answer != launch.NotMade)
	})
}

// settleRequest is what a grant comes to when that is known of its orders: what has not come is missing again. Of an order for several
// it is missing once, and what has come of it is for pods first.
func (m *groupState) settleRequest(g unsettledRequest) plan.WishVerdict {
	v := g.WishVerdict
	for id, n := range g.countByLaunch {
		short := min(n, m.missing[id])
		m.missing[id] -= short
		v.Granted -= short
		v.Missing += short
	}
	return v
}

// settleRequests are the grants of which it is known what they come to.
func (a *Controller) settleRequests(groups []*managedGroup) (due []plan.WishVerdict) {
	for _, g := range groups {
		m := g.state
		var held []unsettledRequest
		for _, h := range m.unsettledRequests {
			if m.isUnsettled(h) {
				held = append(held, h)
				continue
			}
			due = append(due, m.settleRequest(h))
		}
		if m.unsettledRequests = held; len(held) == 0 {
			clear(m.missing)
		}
	}
	return due
}

// recordRequestVerdicts takes in what became of the wishes, and tells of those that cannot be granted. What was granted counts when it
// is known what comes of the orders.
func (a *Controller) recordRequestVerdicts(groups []*managedGroup, verdicts []plan.WishVerdict) {
	var due []plan.WishVerdict
	for _, v := range verdicts {
		if g := findGroup(groups, v.Group); g != nil && v.Granted > 0 {
			g.state.unsettledRequests = append(g.state.unsettledRequests, g.state.newUnsettledRequest(v))
			continue
		}
		due = append(due, v)
	}
	a.applyRequestVerdicts(append(due, a.settleRequests(groups)...))
}

func (a *Controller) applyRequestVerdicts(verdicts []plan.WishVerdict) {
	for _, v := range a.options.Wishes.applyVerdicts(verdicts) {
		if v.Missing > 0 {
			a.options.Log.Warn("machines that were wished for may not be ordered now", "wish", v.ID, "missing", v.Missing, "reasons", v.Reasons)
		}
	}
}
