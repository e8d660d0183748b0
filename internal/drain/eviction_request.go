package drain

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/observe"
)

// A pod may name responders in spec.evictionResponders. The drain then creates an EvictionRequest for the pod (KEP-4563,
// Kubernetes 1.37) and waits until a responder has removed the pod. It evicts the pod itself if it gets no answer, if
// the request fails, or if the time to wait is over. The request stays until the pod is gone, and is deleted on every exit.
// Pods without responders cost no request.

// EvictionRequestAPI lists the requests that the drain sends for EvictionRequests. *kubeapi.Client implements it.
type EvictionRequestAPI interface {
	// WatchEvictionRequests and WatchEvictions return only when ctx ends.
	WatchEvictionRequests(ctx context.Context, labelSelector string, h kubeapi.Handler[kubeapi.EvictionRequest]) error
	WatchEvictions(ctx context.Context, namespace, labelSelector string, h kubeapi.Handler[kubeapi.Eviction]) error
	ListEvictionRequests(ctx context.Context, labelSelector string) ([]kubeapi.EvictionRequest, error)
	CreateEvictionRequest(ctx context.Context, r kubeapi.EvictionRequest, dryRun bool) error
	SetEvictionRequestIntent(ctx context.Context, namespace, name, intent string) error
	DeleteEvictionRequest(ctx context.Context, namespace, name string) error
}

const (
	// Requester is spec.requester of the drain's EvictionRequests. The controller adds it to each Eviction as a label.
	Requester = "slipway.dev/drain"
	// requestNodeLabel is a label of the EvictionRequests, with the node that is drained.
	requestNodeLabel = "slipway.dev/drain-node"
	// requestClientLabel is a label of the EvictionRequests, with Options.Client.
	requestClientLabel = "slipway.dev/drain-client"

	// controllerWait is how long the drain waits for the API server and the controller of EvictionRequests. Kubernetes 1.37
	// has the API, but no controller.
	controllerWait = 10 * time.Second
	// responderWait is how long an active responder may take to its first answer. Responders should write at most every
	// 20 s.
	responderWait = 30 * time.Second
	// silenceWait is how long a responder that has answered may be silent. The controller activates the next responder
	// after 20 minutes, so a longer silence means that the controller is silent, too.
	silenceWait = 21 * time.Minute
	// evictionReserve is the time that the eviction API gets before the pod's latest time, or a quarter of the time to
	// wait if that is shorter.
	evictionReserve = 30 * time.Second
	// minResponderTime is the shortest time that is worth a request.
	minResponderTime = 2 * time.Second
	// cancelWait is how long a withdrawn request stays for the controller, so that it cancels the active responder.
	cancelWait = time.Second
	// withdrawTimeout limits the withdrawal of all requests at the end of a drain, or after a crash.
	withdrawTimeout = 5 * time.Second
	// maxResponderText limits a responder's message in the progress. The API allows 4000 characters.
	maxResponderText = 200
)

// EvictionFallback is the reason why the drain evicts a pod without waiting for its responders.
type EvictionFallback string

const (
	// RequestsNotServed: the API server does not serve EvictionRequests.
	RequestsNotServed EvictionFallback = "not-served"
	// RequestsForbidden: the permission to list or create EvictionRequests is missing.
	RequestsForbidden EvictionFallback = "forbidden"
	// RequestRejected: the API server or a webhook has rejected the EvictionRequest.
	RequestRejected EvictionFallback = "rejected"
	// RequestDeleted: another client has deleted the EvictionRequest twice.
	RequestDeleted EvictionFallback = "deleted"
	// NoController: no controller has processed the EvictionRequest within controllerWait.
	NoController EvictionFallback = "no-controller"
	// NoResponder: the active responder has not answered within responderWait.
	NoResponder EvictionFallback = "no-answer"
	// ResponderSilent: responder and controller have written nothing within silenceWait.
	ResponderSilent EvictionFallback = "silent"
	// RequestFailed: the controller has set the condition Failed.
	RequestFailed EvictionFallback = "failed"
	// RespondersFinished: every responder has ended, and the pod is still there.
	RespondersFinished EvictionFallback = "finished"
	// NoTimeForResponders: the pod's latest time to wait has come.
	NoTimeForResponders EvictionFallback = "no-time"
)

// EvictionRequestReport says which responders of a pod were asked, and what they answered.
type EvictionRequestReport struct {
	Name string `json:"name,omitempty"`
	// RequestedAt is when the API server has accepted the EvictionRequest. Zero means never.
	RequestedAt time.Time `json:"requestedAt,omitzero"`
	// Responders are sorted by priority, the highest first. They are asked in this order.
	Responders []ResponderReport `json:"responders"`
	// Fallback is why the drain used the eviction API itself. It is empty if the drain did not.
	Fallback       EvictionFallback `json:"fallback,omitempty"`
	FallbackDetail string           `json:"fallbackDetail,omitempty"`
	FallbackAt     time.Time        `json:"fallbackAt,omitzero"`
}

// ResponderReport is the last state of one responder. Its times are the responder's own.
type ResponderReport struct {
	Name     string `json:"name"`
	Priority int32  `json:"priority"`
	// State is Inactive, Active, Interrupted, Canceled or Completed. It is empty if no controller has answered.
	State                  string    `json:"state,omitempty"`
	Message                string    `json:"message,omitempty"`
	HeartbeatTime          time.Time `json:"heartbeatTime,omitzero"`
	ExpectedCompletionTime time.Time `json:"expectedCompletionTime,omitzero"`
	CompletionTime         time.Time `json:"completionTime,omitzero"`
}

// evictionRequests holds the EvictionRequests of one drain. Only the engine's goroutine touches it.
type evictionRequests struct {
	client string                      // Options.Client
	byPod  map[string]*evictionRequest // by the pod's UID
	// existing has the requests of the node that the watch shows, by the pod's UID.
	existing map[string]*kubeapi.EvictionRequest
	// listed is true once the API server has answered the first list.
	listed bool
	// unavailable says why no request can be made in this cluster; empty if they can.
	unavailable       EvictionFallback
	unavailableDetail string
	watchedNamespaces map[string]bool
	// earlyEvictions has Evictions of pods that this drain has not asked yet, by the pod's UID. An earlier drain has.
	earlyEvictions map[string]*kubeapi.Eviction
	semaphore      chan struct{} // limits the requests in flight
	// ctx outlives the drain's context, because the requests are withdrawn after it has ended.
	ctx  context.Context
	stop context.CancelFunc
	// createCtx ends when the requests are withdrawn.
	createCtx     context.Context
	stopCreations context.CancelFunc
	background    sync.WaitGroup
}

// evictionRequest is the state of one pod's EvictionRequest.
type evictionRequest struct {
	pod         *podState
	client      string    // Options.Client
	since       time.Time // when the drain first wanted to ask
	attemptAt   time.Time // the same, after another client has deleted the request
	sending     bool      // a request for it is in flight
	mayExist    bool      // a creation was sent, and may have taken effect
	requestedAt time.Time // of the accepted creation; zero is not accepted
	firstAt     time.Time // of the first one
	recreated   bool      // another client had deleted it
	retryAt     time.Time
	pause       time.Duration
	lastError   string
	rejected    EvictionFallback
	object      *kubeapi.EvictionRequest // as the watch has shown it; nil is not seen
	eviction    *kubeapi.Eviction        // the newest one for the pod; nil is none
	changedAt   time.Time                // of eviction
	active      string                   // the active responder; empty is none
	activeSince time.Time                // when the drain saw that it became active, or that none is active any more
	answers     []ResponderReport        // of the Eviction before another client has deleted the request

	fallback       EvictionFallback
	fallbackDetail string
	fallbackAt     time.Time

	withdrawnAt time.Time
}

// awaitResponders asks the responders of a waiting pod, and reports whether the drain still waits for them. It returns
// when to call it again.
func (d *Drain) awaitResponders(ctx context.Context, p *podState, now time.Time) (wait bool, checkAt time.Time) {
	if !d.hasResponders(p) {
		return false, time.Time{}
	}
	r := p.request
	if r == nil {
		r = &evictionRequest{pod: p, client: d.options.Client, since: now, attemptAt: now}
		p.request = r
		d.startEvictionRequests(ctx)
		d.requests.byPod[p.pod.UID] = r
		if e := d.requests.earlyEvictions[p.pod.UID]; e != nil {
			r.updateEviction(e, now)
		}
	}
	if r.fallback != "" {
		return false, time.Time{}
	}
	reason, detail, checkAt := d.fallbackForPod(r, now)
	if reason != "" {
		r.fallback, r.fallbackDetail, r.fallbackAt = reason, detail, now
		p.blocked = BlockedPod{}
		d.options.Logger.Info("pod is evicted without its responders", "pod", p.name(), "reason", reason, "detail", detail)
		return false, time.Time{}
	}
	checkAt = earlierNonZero(checkAt, d.sendEvictionRequest(r, now))
	p.setBlocked(ObstacleResponder, "", r.explain(), now)
	return true, checkAt
}

// hasResponders reports whether the drain asks responders before it evicts the pod. It asks none for a pod of a group,
// because they might evict it alone.
func (d *Drain) hasResponders(p *podState) bool {
	return len(p.pod.Spec.EvictionResponders) > 0 && d.options.EvictionRequests != nil && !d.options.DisableEviction && p.group.IsZero() &&
		p.pod.Status.Phase != "Succeeded" && p.pod.Status.Phase != "Failed"
}

// fallbackForPod returns why the drain does not wait for the responders of a pod. Without a reason it waits, and has to
// decide again at checkAt.
func (d *Drain) fallbackForPod(r *evictionRequest, now time.Time) (reason EvictionFallback, detail string, checkAt time.Time) {
	q := d.requests
	latest := d.latestResponderTime(r)
	// until returns the reason if its time has come.
	until := func(at time.Time, reason EvictionFallback, detail string) (EvictionFallback, string, time.Time) {
		if now.Before(at) {
			return "", "", earlierNonZero(at, latest)
		}
		return reason, detail, time.Time{}
	}
	switch {
	case q.unavailable != "":
		return q.unavailable, q.unavailableDetail, time.Time{}
	case r.rejected != "":
		return r.rejected, r.lastError, time.Time{}
	case hasFailed(r.object):
		return RequestFailed, describeFailure(r.object), time.Time{}
	case !latest.IsZero() && !now.Before(latest.Add(-r.minTime())):
		return NoTimeForResponders, "the time to wait for its responders is over", time.Time{}
	case r.requestedAt.IsZero():
		return until(r.attemptAt.Add(controllerWait), NoController, cmp.Or(r.lastError, "the API server has not answered in time"))
	case !r.hasController():
		return until(r.requestedAt.Add(controllerWait), NoController, "no controller has processed EvictionRequest "+r.name()+" in time")
	case r.active == "" || r.active == kubeapi.ImperativeEvictor:
		if r.areRespondersFinished() {
			return RespondersFinished, r.explain(), time.Time{}
		}
		return until(laterOf(r.requestedAt, r.activeSince).Add(responderWait), NoResponder, "no responder was activated in time")
	case !r.hasAnswered(r.active):
		return until(r.activeSince.Add(responderWait), NoResponder, r.active+" has not answered in time")
	}
	return until(r.changedAt.Add(silenceWait), ResponderSilent, r.active+" has been silent for "+silenceWait.String())
}

// minTime returns the shortest time that the drain still waits. Only the first request has one.
func (r *evictionRequest) minTime() time.Duration {
	if r.mayExist {
		return 0
	}
	return minResponderTime
}

// latestResponderTime returns until when the drain waits for the responders of a pod. Zero means without limit. The
// eviction API gets evictionReserve after it, or a quarter of the time if that is shorter.
func (d *Drain) latestResponderTime(r *evictionRequest) time.Time {
	latest, since := time.Time{}, r.since
	switch {
	case d.terms.HasDeadline():
		latest = forcedDeletionTime(r.pod.wantedGrace, d.terms, d.deadlineSince)
		since = laterOf(since, d.deadlineSince)
	case d.terms.TimeoutAt.IsZero():
		return time.Time{}
	default:
		total := max(0, d.terms.TimeoutAt.Sub(since))
		latest = d.terms.TimeoutAt.Add(-min(r.pod.wantedGrace+graceRounding, total/2))
	}
	return latest.Add(-min(evictionReserve, max(0, latest.Sub(since))/4))
}

// startEvictionRequests starts to watch the EvictionRequests of the node. The first list shows whether the API server
// serves them, and finds the requests of an earlier process.
func (d *Drain) startEvictionRequests(ctx context.Context) {
	if d.requests != nil {
		return
	}
	q := &evictionRequests{
		client: d.options.Client,
		byPod:  map[string]*evictionRequest{}, existing: map[string]*kubeapi.EvictionRequest{}, watchedNamespaces: map[string]bool{},
		earlyEvictions: map[string]*kubeapi.Eviction{},
		semaphore:      make(chan struct{}, d.options.maxOtherInFlight()),
	}
	q.ctx, q.stop = context.WithCancel(context.WithoutCancel(ctx))
	q.createCtx, q.stopCreations = context.WithCancel(q.ctx)
	d.requests = q
	watch, end := context.WithCancel(q.ctx)
	put := d.inbox.putAndWake
	handler := kubeapi.Handler[kubeapi.EvictionRequest]{
		Replaced: func(all []kubeapi.EvictionRequest) { put(func(now time.Time) { q.replaceRequests(all, now) }) },
		Changed:  func(o kubeapi.EvictionRequest) { put(func(time.Time) { q.updateRequest(o) }) },
		Deleted: func(o kubeapi.EvictionRequest) {
			put(func(now time.Time) { q.removeRequest(o.Spec.Target.Pod.UID, o.UID, now) })
		},
		Failed: func(err error) {
			reason := toUnavailable(err)
			if reason != "" { // retrying would not help
				end()
			}
			put(func(time.Time) { q.recordListError(reason, err) })
		},
	}
	q.background.Go(func() {
		defer end()
		_ = d.options.EvictionRequests.WatchEvictionRequests(watch, selectRequests(d.options.Client, d.options.Node), handler)
	})
}

// toUnavailable returns why an error means that no EvictionRequest can be made, or empty. A 404 without a Status means
// that the API group is not served.
func toUnavailable(err error) EvictionFallback {
	status := kubeapi.ToStatusError(err)
	switch {
	case status == nil:
	case status.Code == http.StatusNotFound:
		return RequestsNotServed
	case status.Code == http.StatusForbidden:
		return RequestsForbidden
	}
	return ""
}

func (q *evictionRequests) recordListError(reason EvictionFallback, err error) {
	if q.listed {
		return
	}
	q.unavailable = reason
	q.unavailableDetail = err.Error()
	if reason == RequestsNotServed {
		q.unavailableDetail = "the API server does not serve lifecycle.k8s.io/v1alpha1"
	}
	for _, r := range q.byPod {
		r.lastError = err.Error()
	}
}

// replaceRequests takes over a list. A request that the watch has shown before, and that is missing, was deleted.
func (q *evictionRequests) replaceRequests(all []kubeapi.EvictionRequest, now time.Time) {
	q.listed = true
	known := maps.Clone(q.existing)
	for _, o := range all {
		q.updateRequest(o)
		delete(known, o.Spec.Target.Pod.UID)
	}
	for pod, o := range known {
		q.removeRequest(pod, o.UID, now)
	}
}

func (q *evictionRequests) updateRequest(o kubeapi.EvictionRequest) {
	pod := o.Spec.Target.Pod.UID
	if o.Name != requestName(q.client, pod) {
		return
	}
	q.existing[pod] = &o
	if r := q.byPod[pod]; r != nil && !r.requestedAt.IsZero() {
		r.object = &o
	}
}

// removeRequest takes over that another client has deleted a request. The garbage collector deletes it after the pod. If
// the pod is still waiting, the drain creates the request again once.
func (q *evictionRequests) removeRequest(pod, uid string, now time.Time) {
	if q.existing[pod] == nil || q.existing[pod].UID != uid {
		return
	}
	delete(q.existing, pod)
	r := q.byPod[pod]
	switch {
	case r == nil || r.object == nil || r.object.UID != uid:
		return
	case !r.pod.isWaiting():
		r.object, r.mayExist = nil, false
		return
	case r.recreated:
		r.rejected, r.lastError = RequestDeleted, "another client deletes EvictionRequest "+r.name()
	}
	r.object, r.requestedAt, r.recreated, r.attemptAt, r.retryAt = nil, time.Time{}, true, now, now.Add(minRetryPause)
	r.answers, r.eviction, r.active = r.responders(), nil, ""
}

// sendEvictionRequest creates the EvictionRequest of a pod, or takes over the one of an earlier drain. It returns when to
// try again; zero means after the next event.
func (d *Drain) sendEvictionRequest(r *evictionRequest, now time.Time) (retryAt time.Time) {
	q := d.requests
	switch {
	case !q.listed || r.sending || !r.requestedAt.IsZero():
		return time.Time{}
	case now.Before(r.retryAt):
		return r.retryAt
	}
	d.watchEvictions(r.pod.pod.Namespace)
	send := d.options.EvictionRequests.CreateEvictionRequest
	o := newEvictionRequest(&r.pod.pod, d.options.Client, d.options.Node)
	existed := r.mayExist
	r.mayExist = true
	switch old := q.existing[r.pod.pod.UID]; {
	case old == nil:
	case old.Spec.Intent == kubeapi.IntentEviction && !hasFailed(old) && old.DeletionTimestamp == nil:
		r.requestedAt, r.firstAt, r.object = now, earlierNonZero(r.firstAt, now), old
		return now // decide again with what it shows
	default: // its end is final for the responders: make a new one
		send = func(ctx context.Context, o kubeapi.EvictionRequest, _ bool) error {
			if err := d.options.EvictionRequests.DeleteEvictionRequest(ctx, o.Namespace, o.Name); err != nil && !kubeapi.IsNotFound(err) {
				return err
			}
			return errReplaced
		}
	}
	d.runEvictionRequest(q.createCtx, r, func(ctx context.Context) error { return send(ctx, o, false) }, func(answered time.Time, err error) {
		d.recordEvictionRequestAnswer(q, r, err, existed, answered)
	})
	return time.Time{}
}

// errReplaced is the answer after an old request was deleted, so that a new one can be created.
var errReplaced = errors.New("an older EvictionRequest is being replaced")

// runEvictionRequest sends a request in the background, and passes its answer to the engine.
func (d *Drain) runEvictionRequest(ctx context.Context, r *evictionRequest, send func(context.Context) error, answer func(time.Time, error)) {
	q := d.requests
	r.sending = true
	q.background.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, controllerWait)
		defer cancel()
		q.semaphore <- struct{}{}
		err := send(bounded)
		<-q.semaphore
		d.inbox.putAndWake(func(now time.Time) {
			r.sending = false
			answer(now, err)
		})
	})
}

// recordEvictionRequestAnswer takes over the answer to a creation. existed is true if the request may have existed before.
func (d *Drain) recordEvictionRequestAnswer(q *evictionRequests, r *evictionRequest, err error, existed bool, now time.Time) {
	if err == nil {
		r.requestedAt, r.firstAt, r.lastError = now, earlierNonZero(r.firstAt, now), ""
		r.object = q.existing[r.pod.pod.UID] // the watch may be faster than the answer
		return
	}
	d.options.Logger.Debug("cannot create an EvictionRequest", "pod", r.pod.name(), "err", err)
	r.lastError = err.Error()
	r.pause = min(max(2*r.pause, minRetryPause), maxRetryPause)
	r.retryAt = now.Add(r.pause)
	status := kubeapi.ToStatusError(err)
	if isServerFailure(status) || kubeapi.IsAlreadyExists(err) { // an existing request comes with the watch
		return
	}
	r.mayExist = existed
	switch {
	case isAPIServerBusy(err):
	case status.Code == http.StatusNotFound && !kubeapi.IsNotFound(err):
		q.unavailable, q.unavailableDetail = RequestsNotServed, err.Error()
	default:
		r.rejected = RequestRejected
	}
}

// watchEvictions starts to watch the Evictions of a namespace. They show what the responders answer. Without the
// permission, the drain sees no answer.
func (d *Drain) watchEvictions(namespace string) {
	q := d.requests
	if q.watchedNamespaces[namespace] {
		return
	}
	q.watchedNamespaces[namespace] = true
	watch, end := context.WithCancel(q.ctx)
	update := func(all ...kubeapi.Eviction) {
		d.inbox.putAndWake(func(now time.Time) {
			for i := range all {
				pod := all[i].Spec.Target.Pod.UID
				if findCondition(all[i].Status.Conditions, "Failed").Status == "True" {
					continue // it may be of an earlier request; the current one has the condition too
				}
				if r := q.byPod[pod]; r != nil {
					r.updateEviction(&all[i], now)
				} else if d.pods[pod] != nil {
					q.earlyEvictions[pod] = &all[i]
				}
			}
		})
	}
	handler := kubeapi.Handler[kubeapi.Eviction]{
		Replaced: func(all []kubeapi.Eviction) { update(all...) },
		Changed:  func(e kubeapi.Eviction) { update(e) },
		Failed: func(err error) {
			d.options.Logger.Debug("cannot watch Evictions", "namespace", namespace, "err", err)
			if toUnavailable(err) != "" {
				end()
			}
		},
	}
	q.background.Go(func() {
		defer end()
		_ = d.options.EvictionRequests.WatchEvictions(watch, namespace, Requester, handler)
	})
}

// updateEviction takes over a state of an Eviction of the pod that has not failed.
func (r *evictionRequest) updateEviction(e *kubeapi.Eviction, now time.Time) {
	r.eviction, r.changedAt = e, now
	active := ""
	for _, t := range e.Status.TargetResponders {
		if t.State == kubeapi.ResponderActive {
			active = t.Name
		}
	}
	if active != r.active {
		r.active, r.activeSince = active, now
	}
}

// hasController reports whether a controller has processed the request.
func (r *evictionRequest) hasController() bool {
	return r.eviction != nil || r.object != nil && (r.object.Status.ObservedGeneration > 0 || len(r.object.Status.Conditions) > 0)
}

// hasAnswered reports whether a responder has written anything to its status.
func (r *evictionRequest) hasAnswered(name string) bool {
	if r.eviction == nil {
		return false
	}
	for _, s := range r.eviction.Status.Responders {
		if s.Name == name {
			return s.Message != "" || !s.HeartbeatTime.IsZero() || !s.ExpectedCompletionTime.IsZero() || !s.CompletionTime.IsZero()
		}
	}
	return false
}

// areRespondersFinished reports whether no responder of the pod will act any more. The drain does what is left, the
// imperative eviction, itself: it knows when a PDB allows it, and the evictor of Kubernetes tries it at intervals.
func (r *evictionRequest) areRespondersFinished() bool {
	if r.eviction == nil || len(r.eviction.Status.TargetResponders) == 0 {
		return false
	}
	return !slices.ContainsFunc(r.eviction.Status.TargetResponders, func(t kubeapi.TargetResponder) bool {
		return t.Name != kubeapi.ImperativeEvictor && (t.State == kubeapi.ResponderActive || t.State == kubeapi.ResponderInactive)
	})
}

// syncEvictionRequests deletes the requests that are not needed any more: of pods that are gone, of pods that became
// protected, and failed ones. It returns when to call it again.
func (d *Drain) syncEvictionRequests(now time.Time) (next time.Time) {
	if d.requests == nil {
		return time.Time{}
	}
	d.adoptLeftRequests()
	for uid, r := range d.requests.byPod {
		p := r.pod
		isRemoved := p.removal != NotRemoved || p.isTerminating()
		isNeeded := !p.gone && (p.isWaiting() || isRemoved) && r.fallback != RequestFailed
		if isNeeded {
			continue
		}
		next = earlierNonZero(next, d.releaseEvictionRequest(r, now))
		switch {
		case r.isOpen() || !p.gone && (isRemoved || r.fallback != ""):
		case !p.gone: // it became protected: ask again if it loses its protection
			p.request = nil
			delete(d.requests.byPod, uid)
			delete(d.requests.existing, uid) // the watch may be late
		default:
			delete(d.requests.byPod, uid)
		}
	}
	return next
}

// adoptLeftRequests takes over the requests of an earlier drain for pods that this drain does not evict, so that they are
// withdrawn. At its end it takes over all of them.
func (d *Drain) adoptLeftRequests() {
	q := d.requests
	if !d.options.TakesOver {
		return
	}
	for uid, o := range q.existing {
		p := d.pods[uid]
		if p == nil || p.gone || q.byPod[uid] != nil || !d.ended && (p.isWaiting() || p.isTerminating() || p.removal != NotRemoved) {
			continue
		}
		q.byPod[uid] = &evictionRequest{pod: p, client: q.client, mayExist: true, object: o}
	}
}

// isOpen reports whether the request may exist.
func (r *evictionRequest) isOpen() bool { return r.sending || r.mayExist }

// releaseEvictionRequest takes the next step to remove a request: it withdraws the request, waits until the controller has
// cancelled its responders, and deletes it. It returns when to call it again; zero means after the next event.
func (d *Drain) releaseEvictionRequest(r *evictionRequest, now time.Time) (retryAt time.Time) {
	api, namespace, name := d.options.EvictionRequests, r.pod.pod.Namespace, r.name() // requests run in the background
	switch {
	case r.sending || !r.isOpen():
		return time.Time{}
	case now.Before(r.retryAt):
		return r.retryAt
	}
	isFinal := r.pod.gone || r.pod.isTerminating() || !r.hasController() || hasFailed(r.object)
	send := func(ctx context.Context) error {
		return api.DeleteEvictionRequest(ctx, namespace, name)
	}
	recordSuccess := func(time.Time) { r.mayExist = false }
	switch {
	case isFinal:
	case r.withdrawnAt.IsZero():
		send = func(ctx context.Context) error {
			return api.SetEvictionRequestIntent(ctx, namespace, name, kubeapi.IntentWithdrawn)
		}
		recordSuccess = func(answered time.Time) { r.withdrawnAt = answered }
	case now.Before(r.withdrawnAt.Add(cancelWait)):
		return r.withdrawnAt.Add(cancelWait)
	}
	d.runEvictionRequest(d.requests.ctx, r, send, func(answered time.Time, err error) {
		switch {
		case err == nil:
			recordSuccess(answered)
		case kubeapi.IsNotFound(err):
			r.mayExist = false
		default:
			r.lastError = err.Error()
			r.pause = min(max(2*r.pause, minRetryPause), maxRetryPause)
			if d.ended { // withdrawTimeout limits the retries
				r.pause = minRetryPause
			}
			r.retryAt = answered.Add(r.pause)
		}
	})
	return time.Time{}
}

// withdrawEvictionRequests removes all requests at the end of the drain, and stops the watches. It processes the answers
// itself, because the engine has stopped. If another drain follows, it leaves the requests to that drain.
func (d *Drain) withdrawEvictionRequests(ctx context.Context) {
	q := d.requests
	if q == nil {
		return
	}
	defer func() {
		q.stop()
		q.background.Wait()
		d.requests = nil
		for _, r := range q.byPod {
			if !d.ended { // the reports of this drain were delivered
				r.pod.request = nil
			}
		}
	}()
	q.stopCreations()
	if d.options.TakesOver && !q.listed && q.unavailable == "" && !leavesRequests(ctx) { // it has not seen them, and made none
		if err := DeleteEvictionRequests(q.ctx, d.options.EvictionRequests, d.options.Client, d.options.Node); err != nil {
			d.options.Logger.Warn("cannot delete the EvictionRequests of an earlier drain: they end with their pods", "node", d.options.Node, "err", err)
		}
		return
	}
	d.adoptLeftRequests()
	for _, r := range q.byPod {
		r.retryAt, r.pause = time.Time{}, 0
	}
	end := time.Now().Add(withdrawTimeout)
	timer := time.NewTimer(withdrawTimeout)
	defer timer.Stop()
	stopped := d.stopped
	for !leavesRequests(ctx) {
		d.processInbox()
		now, next := time.Now(), end
		var open []string
		for _, r := range q.byPod {
			if r.isOpen() {
				open = append(open, r.pod.pod.Namespace+"/"+r.name())
				next = earlierNonZero(next, d.releaseEvictionRequest(r, now))
			}
		}
		if len(open) == 0 {
			return
		}
		if !now.Before(end) {
			slices.Sort(open)
			d.options.Logger.Warn("cannot delete EvictionRequests: they end with their pods", "node", d.options.Node, "requests", open)
			return
		}
		timer.Reset(max(0, next.Sub(now)))
		select {
		case <-d.inbox.filled:
		case <-stopped:
			stopped = nil
		case <-timer.C:
		}
	}
}

// newEvictionRequest returns the EvictionRequest for a pod. The garbage collector deletes it with the pod.
func newEvictionRequest(p *kubeapi.Pod, client, node string) kubeapi.EvictionRequest {
	r := kubeapi.EvictionRequest{ObjectMeta: kubeapi.ObjectMeta{
		Name: requestName(client, p.UID), Namespace: p.Namespace,
		Labels:          map[string]string{requestNodeLabel: toLabelValue(node), requestClientLabel: client},
		OwnerReferences: []kubeapi.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}},
	}}
	r.Spec.Target.Pod.Name, r.Spec.Target.Pod.UID = p.Name, p.UID
	r.Spec.Requester, r.Spec.Intent = Requester, kubeapi.IntentEviction
	return r
}

// DeleteEvictionRequests deletes the EvictionRequests of a node that a crashed drain of the client has left. A drain takes them over
// instead, so call it only if none follows. It ends after withdrawTimeout.
func DeleteEvictionRequests(ctx context.Context, api EvictionRequestAPI, client, node string) error {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	all, err := api.ListEvictionRequests(ctx, selectRequests(client, node))
	if toUnavailable(err) != "" {
		return nil
	}
	errs := []error{err}
	for _, r := range all {
		if err := api.DeleteEvictionRequest(ctx, r.Namespace, r.Name); err != nil && !kubeapi.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// requestName returns the name of a pod's EvictionRequest. Every drain of a client uses the same name. So a restarted drain
// finds it, and the drains of several clients do not withdraw the requests of each other.
func requestName(client, podUID string) string { return "slipway-" + client + "-" + podUID }

func (r *evictionRequest) name() string { return requestName(r.client, r.pod.pod.UID) }

// selectRequests returns the label selector of a client's EvictionRequests for a node.
func selectRequests(client, node string) string {
	return requestNodeLabel + "=" + toLabelValue(node) + "," + requestClientLabel + "=" + client
}

// maxLabelValue is the longest value of a label.
const maxLabelValue = 63

// toLabelValue returns a node's name as the value of a label. A longer name gets a hash at its end.
func toLabelValue(node string) string {
	if len(node) <= maxLabelValue {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	return node[:maxLabelValue-9] + "-" + hex.EncodeToString(sum[:4])
}

// hasFailed reports whether the controller has given up the request. Nil has not failed.
func hasFailed(o *kubeapi.EvictionRequest) bool {
	return o != nil && findCondition(o.Status.Conditions, "Failed").Status == "True"
}

// findCondition returns a condition by its type, or a zero one.
func findCondition(all []kubeapi.Condition, kind string) kubeapi.Condition {
	for _, c := range all {
		if c.Type == kind {
			return c
		}
	}
	return kubeapi.Condition{}
}

func describeFailure(o *kubeapi.EvictionRequest) string {
	c := findCondition(o.Status.Conditions, "Failed")
	return strings.TrimSuffix(c.Reason+": "+toShortLine(c.Message), ": ")
}

// toShortLine returns a text of another program in one line, without characters that control a terminal.
func toShortLine(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) })
	return observe.ClipBytes(strings.Join(words, " "), maxResponderText)
}

// explain returns one text for people: who is asked, and what the answer is.
func (r *evictionRequest) explain() string {
	all := r.responders()
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Name
		if s.Name == r.active && r.hasAnswered(s.Name) {
			return s.describeAnswer()
		}
	}
	asked := strings.Join(names, ", ")
	switch {
	case r.requestedAt.IsZero():
		return strings.TrimSuffix("asking "+asked+": "+observe.ClipBytes(r.lastError, maxResponderText), ": ")
	case !r.hasController():
		return "asked " + asked + ", and no controller has answered yet"
	case r.areRespondersFinished():
		return "all responders have finished: " + asked
	}
	return "asked " + cmp.Or(r.active, asked) + ", which has not answered yet"
}

// String returns one line about the responders, and why the drain does not wait for them.
func (r *EvictionRequestReport) String() string {
	all := make([]string, len(r.Responders))
	for i, s := range r.Responders {
		all[i] = fmt.Sprintf("%s (priority %d)", s.Name, s.Priority)
		if s.State != "" {
			all[i] = fmt.Sprintf("%s is %s", s.describeAnswer(), s.State)
		}
	}
	text := "asks " + strings.Join(all, ", then ")
	if r.Fallback != "" {
		text += fmt.Sprintf("; evicted without them (%s: %s)", r.Fallback, r.FallbackDetail)
	}
	return text
}

// describeAnswer returns what a responder answered.
func (s ResponderReport) describeAnswer() string {
	text := s.Name + ": " + cmp.Or(toShortLine(s.Message), "works on it")
	if !s.ExpectedCompletionTime.IsZero() {
		text += ", expects to complete at " + s.ExpectedCompletionTime.UTC().Format(time.RFC3339)
	}
	return text
}

// responders returns the state of each responder, as far as it is known. It leaves out the evictor of Kubernetes.
func (r *evictionRequest) responders() []ResponderReport {
	if r.eviction == nil && r.answers != nil {
		return r.answers
	}
	return toResponderReports(&r.pod.pod, r.eviction)
}

func toResponderReports(p *kubeapi.Pod, e *kubeapi.Eviction) []ResponderReport {
	all := make([]ResponderReport, 0, len(p.Spec.EvictionResponders))
	for _, s := range p.Spec.EvictionResponders {
		all = append(all, ResponderReport{Name: s.Name, Priority: s.Priority})
	}
	slices.SortStableFunc(all, func(a, b ResponderReport) int { return cmp.Compare(b.Priority, a.Priority) })
	if e == nil {
		return all
	}
	for i := range all {
		s := &all[i]
		for _, t := range e.Status.TargetResponders {
			if t.Name == s.Name {
				s.State = t.State
			}
		}
		for _, t := range e.Status.Responders {
			if t.Name == s.Name {
				s.Message, s.HeartbeatTime = t.Message, t.HeartbeatTime
				s.ExpectedCompletionTime, s.CompletionTime = t.ExpectedCompletionTime, t.CompletionTime
			}
		}
	}
	return all
}

// toReport returns what the responders were asked and answered.
func (r *evictionRequest) toReport() *EvictionRequestReport {
	if r == nil {
		return nil
	}
	report := &EvictionRequestReport{
		RequestedAt: r.firstAt, Responders: r.responders(), Fallback: r.fallback, FallbackDetail: r.fallbackDetail, FallbackAt: r.fallbackAt,
	}
	if !r.firstAt.IsZero() {
		report.Name = r.name()
	}
	return report
}

// clip returns the report with short texts.
func (r *EvictionRequestReport) clip() *EvictionRequestReport {
	if r == nil {
		return nil
	}
	clipped := *r
	clipped.FallbackDetail = observe.ClipBytes(r.FallbackDetail, maxLoggedTextBytes)
	clipped.Responders = slices.Clone(r.Responders)
	for i := range clipped.Responders {
		clipped.Responders[i].Message = observe.ClipBytes(clipped.Responders[i].Message, maxLoggedTextBytes)
	}
	return &clipped
}

// predictResponders returns which responders a drain would ask for a pod; nil is none.
func (d *Drain) predictResponders(p *podState) *EvictionRequestReport {
	if !d.hasResponders(p) {
		return nil
	}
	return &EvictionRequestReport{Responders: toResponderReports(&p.pod, nil)}
}

// dryRunEvictionRequests sends the EvictionRequests of a prediction as a dry run, and reads what the responders have
// answered to an earlier request. It ends after maxRequestTimeout.
func (d *Drain) dryRunEvictionRequests(ctx context.Context, pods []PodPrediction) {
	ctx, end := context.WithTimeout(ctx, maxRequestTimeout)
	defer end()
	byUID := map[string]*PodPrediction{}
	namespaces := map[string]bool{}
	for i := range pods {
		p := &pods[i]
		if p.EvictionRequest == nil || p.Removal != Evicted {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, controllerWait)
		err := d.options.EvictionRequests.CreateEvictionRequest(bounded, newEvictionRequest(&d.pods[p.UID].pod, d.options.Client, d.options.Node), true)
		cancel()
		switch reason := toUnavailable(err); {
		case err == nil, kubeapi.IsAlreadyExists(err):
			byUID[p.UID], namespaces[p.Namespace] = p, true
		case isServerFailure(kubeapi.ToStatusError(err)):
			p.EvictionRequest.Fallback, p.EvictionRequest.FallbackDetail = NoController, err.Error()
		default:
			p.EvictionRequest.Fallback, p.EvictionRequest.FallbackDetail = cmp.Or(reason, RequestRejected), err.Error()
		}
	}
	for namespace := range namespaces {
		all, _ := listOnce(ctx, func(ctx context.Context, h kubeapi.Handler[kubeapi.Eviction]) error {
			return d.options.EvictionRequests.WatchEvictions(ctx, namespace, Requester, h)
		})
		for i := range all {
			if p := byUID[all[i].Spec.Target.Pod.UID]; p != nil {
				p.EvictionRequest.Responders = toResponderReports(&d.pods[p.UID].pod, &all[i])
			}
		}
	}
}
