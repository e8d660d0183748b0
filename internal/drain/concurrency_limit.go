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
	// initialConcurrency applies until the first answer, minConcurrency while the API server is overloaded. Both count
	// requests.
	initialConcurrency = 4
	minConcurrency     = 1
	// An answer within fastResponse shows that the API server can take more. One after slowResponse shows that it is
	// overloaded. An answer between the two says nothing: the eviction may have slept because of a conflict.
	fastResponse = 250 * time.Millisecond
	slowResponse = time.Second
	// nearDeadline is how near a deadline must be for evictions to ignore a slow API server.
	nearDeadline = 2 * time.Minute
)

// requestTracker counts the evictions of a drain, or its deletions. The two are tracked apart, because a forced
// deletion must not wait for evictions that hang or fail.
type requestTracker struct {
	inFlight            int
	lastSentAt          time.Time // of the latest request
	inFlightByNamespace map[string]int
	// waitingNamespaces has the namespaces with pods that wait for such a request. It is nil until a step needs it.
	waitingNamespaces map[string]bool
	busyBackoff       *sharedBackoff // active while the API server answers every client with 429
	failureBackoff    *sharedBackoff // shared by the pods that met a server error
}

func newRequestTracker(evictionsOnly bool) *requestTracker {
	return &requestTracker{
		inFlightByNamespace: map[string]int{}, busyBackoff: &sharedBackoff{reason: ObstacleAPIServerBusy, evictionsOnly: evictionsOnly},
		failureBackoff: &sharedBackoff{reason: ObstacleError, evictionsOnly: evictionsOnly},
	}
}

func (d *Drain) trackerFor(method RemovalMethod) *requestTracker {
	if method == Evicted {
		return d.evictions
	}
	return d.deletions
}

// currentLimit returns how many requests of one kind may be in flight now. Near a deadline this is the maximum, even if
// the API server is slow: fewer evictions would only leave its capacity to the scheduler and the controllers, while
// pods still wait and the instances stop. The API server's fair queuing protects other clients. While requests fail,
// only deletions get the maximum.
func (d *Drain) currentLimit(method RemovalMethod, now time.Time) int {
	if d.terms.HasDeadline() && (method != Evicted || d.terms.lastRemovalTime().Sub(now) < nearDeadline && !d.limit.failing) {
		return d.limit.max
	}
	return d.limit.current
}

// concurrencyLimitForPod returns how many requests may be in flight for one of this pod to follow. It keeps one place free for
// each namespace that waits and has no request in flight, up to half of the limit. So a hanging admission webhook of
// one namespace cannot use all places.
func (d *Drain) concurrencyLimitForPod(p *podState, method RemovalMethod, now time.Time) int {
	limit, tracker := d.currentLimit(method, now), d.trackerFor(method)
	if tracker.inFlightByNamespace[p.pod.Namespace] == 0 {
		return limit
	}
	if tracker.waitingNamespaces == nil {
		tracker.waitingNamespaces = map[string]bool{}
		for _, other := range d.remaining {
			if other.isWaiting() && !other.requesting && (method == Evicted || other.forceDeletion || d.options.DisableEviction) {
				tracker.waitingNamespaces[other.pod.Namespace] = true
			}
		}
	}
	reserved := 0
	for namespace := range tracker.waitingNamespaces {
		if tracker.inFlightByNamespace[namespace] == 0 {
			reserved++
		}
	}
	return limit - min(reserved, limit/2)
}

// concurrencyLimit limits the requests in flight. It grows with every fast answer and is halved when the API server is
// slow, refuses or fails.
//
// If a hundred nodes are drained at once, too many requests make the API server slower: they wait in its queue until
// their clients give up. A slow eviction also meets the PDB writes of other nodes more often, and each conflict costs
// it half a second. A short queue also keeps the order of a node's requests.
type concurrencyLimit struct {
	current, max int
	shrunkAt     time.Time
	failing      bool // the latest request was not carried out or not answered
}

func newConcurrencyLimit(max int) *concurrencyLimit {
	return &concurrencyLimit{current: min(initialConcurrency, max), max: max}
}

// adjustAfterResponse updates the limit after an answer or a timeout. Of the requests that were in flight together, only one
// reduces the limit. A webhook that is unavailable, or slow to deny, says nothing about the API server.
func (l *concurrencyLimit) adjustAfterResponse(sent, answered time.Time, err error) {
	took := answered.Sub(sent)
	status := kubeapi.ToStatusError(err)
	if status != nil && (isWebhookUnavailable(status) || isWebhookError(status) && took > slowResponse) {
		return
	}
	if took < minRequestTimeout && errors.Is(err, context.DeadlineExceeded) {
		return // cancelled early, because the pod is deleted instead
	}
	l.failing = err != nil && (isServerFailure(status) || isAPIServerBusy(err))
	switch {
	case l.failing || took > slowResponse:
		if sent.After(l.shrunkAt) {
			l.current, l.shrunkAt = max(l.current/2, min(minConcurrency, l.max)), answered
		}
	case took < fastResponse:
		l.current = min(l.current+1, l.max)
	}
}

// isAPIServerBusy reports whether the answer is the 429 of an overloaded API server.
func isAPIServerBusy(err error) bool {
	status := kubeapi.ToStatusError(err)
	return status != nil && status.Code == http.StatusTooManyRequests && !isPDBDenial(status) && !isWebhookError(status)
}

// addJitter returns a random pause between once and twice the given one. Clients that were refused together must not
// retry together.
func addJitter(pause time.Duration) time.Duration { return pause + rand.N(pause) }
