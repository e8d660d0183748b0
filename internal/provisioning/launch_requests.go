package provisioning

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

const (
	// maxRequests limits how many launch requests are remembered.
	maxRequests = 10_000
	// requestTTL is how long a launch request is stored after it was last made. After that time an open request is
	// dropped. A fulfilled request is forgotten, so that it can be made again.
	requestTTL = time.Hour
)

// LaunchRequests are the launch requests from outside, such as from plugins. They are safe for concurrent use.
type LaunchRequests struct {
	mu       sync.Mutex
	requests map[string]*launchRequest
	wake     chan<- struct{}
}

// launchRequest is a launch request with its state.
type launchRequest struct {
	plan.LaunchRequest
	askedAt     time.Time // when it was last made
	met         bool
	lastReasons string // the reasons why it was last refused
}

// NewLaunchRequests returns an empty set of launch requests.
func NewLaunchRequests() *LaunchRequests {
	return &LaunchRequests{requests: map[string]*launchRequest{}}
}

// Add adds a request for the next reconcile. If the same request was fulfilled, it is not fulfilled again before
// it expires or RemoveByPrefix removes it. Add returns false if there are too many requests.
func (w *LaunchRequests) Add(request plan.LaunchRequest) (accepted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.requests[request.ID]; known != nil {
		known.askedAt = time.Now()
		return true
	}
	if len(w.requests) >= maxRequests {
		return false
	}
	w.requests[request.ID] = &launchRequest{LaunchRequest: request, askedAt: time.Now()}
	if w.wake != nil {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// RemoveByPrefix removes the requests with this ID prefix, because their cause is gone.
func (w *LaunchRequests) RemoveByPrefix(prefix string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.requests {
		if strings.HasPrefix(id, prefix) {
			delete(w.requests, id)
		}
	}
}

// dropExpiredAndListOpen returns the requests that are not fulfilled, and removes expired ones.
func (w *LaunchRequests) dropExpiredAndListOpen() (list []plan.LaunchRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, known := range w.requests {
		switch {
		case time.Since(known.askedAt) > requestTTL:
			delete(w.requests, id)
		case !known.met:
			list = append(list, known.LaunchRequest)
		}
	}
	slices.SortFunc(list, func(a, b plan.LaunchRequest) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// recordVerdicts records the verdict on each request. It returns the requests that are refused for other reasons than
// before.
func (w *LaunchRequests) recordVerdicts(verdicts []plan.LaunchRequestVerdict) (changed []plan.LaunchRequestVerdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range verdicts {
		known := w.requests[v.ID]
		if known == nil {
			continue
		}
		known.Count = v.Missing
		if v.PodServed {
			known.Pod = placement.PodKey{} // its instance is counted once
		}
		known.met = v.Missing == 0
		if text := joinReasons(v.Reasons); known.lastReasons != text {
			known.lastReasons = text
			changed = append(changed, v)
		}
	}
	return changed
}

// settleAndListOpenRequests returns the open requests, except those that wait for the result of a launch.
func (a *Controller) settleAndListOpenRequests(groups []*managedGroup) []plan.LaunchRequest {
	a.recordAndLogVerdicts(a.takeSettledRequests(groups))
	return slices.DeleteFunc(a.options.LaunchRequests.dropExpiredAndListOpen(), func(w plan.LaunchRequest) bool {
		g := findGroup(groups, w.Group)
		return g != nil && slices.ContainsFunc(g.state.unsettledRequests, func(v unsettledRequest) bool { return v.ID == w.ID })
	})
}

// unsettledRequest is the verdict on a request, together with the launches that were made for the request.
type unsettledRequest struct {
	plan.LaunchRequestVerdict
	countByLaunch map[string]int // the number of instances, by launch ID
}

// newUnsettledRequest returns the request's verdict with the launches that were just made for it.
func (m *groupState) newUnsettledRequest(v plan.LaunchRequestVerdict) unsettledRequest {
	g := unsettledRequest{v, map[string]int{}}
	for template, n := range v.LaunchedByTemplate {
		g.countByLaunch[m.latestLaunches[template]] += n
	}
	return g
}

// isUnsettled reports whether a launch of the request has no answer, or has failed and its instances are not known yet.
func (m *groupState) isUnsettled(g unsettledRequest) bool {
	return slices.ContainsFunc(m.pending, func(a launch.PendingLaunch) bool {
		return g.countByLaunch[a.ID] > 0 && (a.AnsweredAt.IsZero() || a.Answer != launch.Accepted && a.Answer != launch.NotMade)
	})
}

// settleRequest returns the verdict on a request once the results of its launches are known. Instances that were not
// created count as missing again. If several requests share a launch, each missing instance counts for one request
// only. The created instances count for pods first.
func (m *groupState) settleRequest(g unsettledRequest) plan.LaunchRequestVerdict {
	v := g.LaunchRequestVerdict
	for id, n := range g.countByLaunch {
		short := min(n, m.missing[id])
		m.missing[id] -= short
		v.Launched -= short
		v.Missing += short
	}
	return v
}

// takeSettledRequests returns the requests with a result for each of their launches.
func (a *Controller) takeSettledRequests(groups []*managedGroup) (settled []plan.LaunchRequestVerdict) {
	for _, g := range groups {
		m := g.state
		var held []unsettledRequest
		for _, h := range m.unsettledRequests {
			if m.isUnsettled(h) {
				held = append(held, h)
				continue
			}
			settled = append(settled, m.settleRequest(h))
		}
		if m.unsettledRequests = held; len(held) == 0 {
			clear(m.missing)
		}
	}
	return settled
}

// recordRequestVerdicts records the verdicts. The verdict on a request with launches is recorded only when their results
// are known.
func (a *Controller) recordRequestVerdicts(groups []*managedGroup, verdicts []plan.LaunchRequestVerdict) {
	var due []plan.LaunchRequestVerdict
	for _, v := range verdicts {
		if g := findGroup(groups, v.Group); g != nil && v.Launched > 0 {
			g.state.unsettledRequests = append(g.state.unsettledRequests, g.state.newUnsettledRequest(v))
			continue
		}
		due = append(due, v)
	}
	a.recordAndLogVerdicts(append(due, a.takeSettledRequests(groups)...))
}

func (a *Controller) recordAndLogVerdicts(verdicts []plan.LaunchRequestVerdict) {
	for _, v := range a.options.LaunchRequests.recordVerdicts(verdicts) {
		if v.Missing > 0 {
			a.options.Log.Warn("a launch request cannot be fulfilled now", "request", v.ID, "missing", v.Missing, "reasons", v.Reasons)
		}
	}
}
