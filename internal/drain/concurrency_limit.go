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
	// initialConcurrency is the limit of requests in flight until the first answer. minConcurrency is the lowest limit,
	// for an overloaded API server.
	initialConcurrency = 4
	minConcurrency     = 1
	// defaultMaxInFlight is nearly the 110 pods that a node has by default. If little time is left, all evictions are sent at
	// once: later ones would compete with the work that the first ones cause, such as new pods. Together with the watches, the
	// requests fit into the 100 streams that an API server allows on a connection.
	defaultMaxInFlight = 90
	// maxOtherInFlight limits the requests in flight that remove no pod. They need more memory, and their answers decide no race.
	// It also limits the evictions in flight of a namespace while its PDBs are read: its pods may be one PDB queue.
	maxOtherInFlight = 32
	// fastResponse is the longest duration of an answer that shows that the API server can take more requests.
	// slowResponse is the shortest duration that shows overload. A duration between these two shows neither: the API
	// server may have slept during the eviction because of a conflict.
	fastResponse = 250 * time.Millisecond
	slowResponse = time.Second
	// nearDeadline is how near the deadline must be for the drain to send evictions at the full rate, even if the API
	// server is slow.
	nearDeadline = 2 * time.Minute
)

// maxOtherInFlight returns how many requests of one kind that remove no pod may be in flight.
func (o Options) maxOtherInFlight() int { return min(o.MaxInFlight, maxOtherInFlight) }

// requestTracker counts the evictions of a drain that are in flight. A second one counts the deletions, so that a
// forced deletion does not wait for evictions that hang or fail.
type requestTracker struct {
	inFlight            int
	lastSentAt          time.Time // of the latest request
	inFlightByNamespace map[string]int
	lastSentByNamespace map[string]time.Time
	// waitingNamespaces has the namespaces with pods that wait for such a request. It is nil until a step needs it.
	waitingNamespaces map[string]bool
	busyBackoff       *sharedBackoff // active while the API server answers every client with 429
	failureBackoff    *sharedBackoff // shared by the pods that met a server error
}

func newRequestTracker(evictionsOnly bool) *requestTracker {
	return &requestTracker{
		inFlightByNamespace: map[string]int{}, lastSentByNamespace: map[string]time.Time{},
		busyBackoff:    &sharedBackoff{reason: ObstacleAPIServerBusy, evictionsOnly: evictionsOnly},
		failureBackoff: &sharedBackoff{reason: ObstacleError, evictionsOnly: evictionsOnly},
	}
}

func (d *Drain) trackerFor(method RemovalMethod) *requestTracker {
	if method == Evicted {
		return d.evictions
	}
	return d.deletions
}

// currentLimit returns how many requests with this method may be in flight now. Near the deadline it returns the
// maximum, even if the API server is slow. Fewer evictions would leave the capacity to the scheduler and the
// controllers, while pods wait on instances that will stop. The API server's fair queuing protects other clients. For
// deletions under a deadline it always returns the maximum. For evictions it does not while requests fail.
func (d *Drain) currentLimit(method RemovalMethod, now time.Time) int {
	if d.terms.HasDeadline() && (method != Evicted || d.terms.lastRemovalTime().Sub(now) < nearDeadline && !d.limit.failing) {
		return d.limit.max
	}
	return d.limit.current
}

// isLimitReached reports whether the requests in flight leave none for this pod, and when the latest of them was sent. While
// the PDBs of a namespace are read, only its own evictions count against maxOtherInFlight: the requests of another namespace may
// hang.
func (d *Drain) isLimitReached(p *podState, method RemovalMethod, now time.Time) (reached bool, lastSentAt time.Time) {
	tracker, namespace := d.trackerFor(method), p.pod.Namespace
	if tracker.inFlight >= d.concurrencyLimitForPod(p, method, now) {
		return true, tracker.lastSentAt
	}
	if method == Evicted && !p.groupReleased && tracker.inFlightByNamespace[namespace] >= maxOtherInFlight && d.pdbs.isReading(namespace) {
		return true, tracker.lastSentByNamespace[namespace]
	}
	return false, time.Time{}
}

// concurrencyLimitForPod returns how many requests may be in flight before a request for this pod is sent. If the pod's
// namespace has a request in flight, the limit is lower by one for each waiting namespace without a request. At most
// half of the limit is reserved. So a hanging admission webhook of one namespace cannot block all requests.
func (d *Drain) concurrencyLimitForPod(p *podState, method RemovalMethod, now time.Time) int {
	if p.groupReleased { // all pods of the group go at once
		return d.limit.max
	}
	limit, tracker := d.currentLimit(method, now), d.trackerFor(method)
	if tracker.inFlightByNamespace[p.pod.Namespace] == 0 {
		return limit
	}
	if tracker.waitingNamespaces == nil {
		tracker.waitingNamespaces = map[string]bool{}
		for _, other := range d.remaining {
			waits := other.held || other.blocked.Reason == ObstacleResponder || other.surge.delaysEviction()
			if other.isWaiting() && !other.requesting && !waits && (method == Evicted || other.forceDeletion || d.options.DisableEviction) {
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

// concurrencyLimit limits how many requests are in flight. The limit grows with every fast answer. It is halved if the
// API server is slow, refuses requests or fails.
//
// If a hundred nodes are drained at once, too many requests make the API server slower: they wait in its queue until
// their clients stop waiting. A slow eviction also conflicts more often with PDB writes of other drains, and each
// conflict costs half a second. A short queue also keeps the order of a node's requests.
type concurrencyLimit struct {
	current, max int
	shrunkAt     time.Time
	failing      bool // the latest request was not carried out or not answered
}

func newConcurrencyLimit(max int) *concurrencyLimit {
	return &concurrencyLimit{current: min(initialConcurrency, max), max: max}
}

// adjustAfterResponse changes the limit after an answer or a timeout. If several requests in flight show overload, the
// limit is reduced once. Errors of a webhook that is unavailable or slow do not change the limit, because they do not
// show the load of the API server.
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

// isAPIServerBusy reports whether the error is the status 429 that an overloaded API server returns to any client.
func isAPIServerBusy(err error) bool {
	status := kubeapi.ToStatusError(err)
	return status != nil && status.Code == http.StatusTooManyRequests && !isPDBDenial(status) && !isWebhookError(status)
}

// addJitter returns a random duration between pause and twice pause. Clients that were refused at the same time then
// retry at different times.
func addJitter(pause time.Duration) time.Duration { return pause + rand.N(pause) }
