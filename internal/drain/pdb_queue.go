package drain

import (
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// minHeadStart is the shortest time between two evictions of the same PDB if the first one is not answered yet.
	minHeadStart = 100 * time.Millisecond
	// conflictDuration is the shortest duration of an eviction that met a conflict in the API server.
	conflictDuration = 500 * time.Millisecond
	// maxCountWait is how long the next eviction waits until the disruption controller has counted the last one.
	maxCountWait = 150 * time.Millisecond
)

// pdbQueue sends the evictions that count against one PDB one after the other.
//
// Each eviction writes the PDB's status. The disruption controller writes it again once the pod is terminating. On a
// conflict the API server sleeps for half a second and tries again (EvictionsRetry in
// k8s.io/kubernetes/pkg/registry/core/pod/storage). So concurrent evictions mostly wait for each other.
//
// The queue sends the next eviction when the last one is answered and the controller has counted it. The watch of the
// PDBs shows both. An eviction that takes three times as long as usual is probably asleep, and the queue does not wait
// for it.
type pdbQueue struct {
	lastPod       *podState
	sentAt        time.Time
	acceptedAt    time.Time     // when lastPod's eviction was accepted; zero is not yet, or never
	seenInStatus  bool          // status.disruptedPods contained lastPod, written by the eviction
	counted       bool          // the controller removed lastPod from status.disruptedPods again
	usualDuration time.Duration // moving average of evictions without a conflict
	pdbKnown      bool          // the PDB's status was received, so that the queue can wait for it
	lastWasReady  bool          // lastPod was ready at its eviction; unready pods are not counted
}

// nextSendAt returns when the next eviction may be sent. It is at most the duration longest after the last eviction.
// Zero means now, for example if the last eviction was refused.
func (q *pdbQueue) nextSendAt(maxWait time.Duration) time.Time {
	at := q.sentAt.Add(maxWait)
	switch {
	case q.lastPod == nil || q.counted:
		return time.Time{}
	case q.lastPod.requesting:
		return earlierNonZero(at, q.sentAt.Add(min(max(minHeadStart, 3*q.usualDuration), conflictDuration)))
	case q.pdbKnown && q.lastWasReady && !q.acceptedAt.IsZero():
		return earlierNonZero(at, q.acceptedAt.Add(maxCountWait))
	}
	return time.Time{}
}

// maxQueueWait returns the longest time that an eviction of p waits for the previous eviction of its PDB queue. With a
// deadline, all pods of the queue must be requested in half of the time before p's forced deletion. The other half
// remains for conflicts in the API server, which cost half a second each. A pod with a late eviction is lost.
func (d *Drain) maxQueueWait(p *podState, key string, now time.Time) time.Duration {
	if !d.terms.HasDeadline() {
		return idleWait
	}
	if d.queueLengths == nil {
		d.queueLengths = map[string]int{}
		for _, other := range d.remaining {
			if other.isWaiting() && !other.requesting {
				d.queueLengths[d.queueKey(other)]++
			}
		}
	}
	left := max(0, forcedDeletionTime(p.wantedGrace, d.terms, d.deadlineSince).Sub(now))
	return left / 2 / time.Duration(max(1, d.queueLengths[key]))
}

func (q *pdbQueue) recordSent(p *podState, now time.Time) {
	q.lastPod, q.sentAt, q.lastWasReady = p, now, isReadyOrUnknown(&p.pod)
	q.acceptedAt, q.seenInStatus, q.counted = time.Time{}, false, false
}

// recordEvictionAccepted records how long an accepted eviction took. On a busy API server every eviction is slow. If
// the next eviction came too early there, it would meet a conflict.
func (q *pdbQueue) recordEvictionAccepted(p *podState, sent, answered time.Time) {
	const weight = 4
	if q.lastPod == p {
		q.acceptedAt = answered
	}
	switch took := answered.Sub(sent); {
	case took >= conflictDuration:
	case q.usualDuration == 0:
		q.usualDuration = took
	default:
		q.usualDuration += (took - q.usualDuration) / weight
	}
}

func (q *pdbQueue) recordPDBStatus(b *kubeapi.PodDisruptionBudget) {
	q.pdbKnown = true
	if q.lastPod == nil {
		return
	}
	_, disrupted := b.Status.DisruptedPods[q.lastPod.pod.Name]
	q.counted = q.counted || q.seenInStatus && !disrupted
	q.seenInStatus = q.seenInStatus || disrupted
}

// queueForPod returns the PDB queue of a pod and the queue's key. It returns nil if no PDB limits the eviction of the
// pod.
func (d *Drain) queueForPod(p *podState) (queue *pdbQueue, key string) {
	key = d.queueKey(p)
	if key == "" {
		return nil, ""
	}
	q := d.pdbQueues[key]
	if q == nil {
		q = &pdbQueue{}
		d.pdbQueues[key] = q
	}
	return q, key
}

// queueKey returns the key of a pod's PDB queue: the names of the PDBs that select the pod. While the PDBs are unknown,
// all pods of one controller share a queue.
func (d *Drain) queueKey(p *podState) string {
	covering, known := d.pdbs.pdbsCovering(&p.pod)
	owner := fromkubeapi.FindController(&p.pod)
	switch {
	case isExemptFromPDBs(&p.pod), known && len(covering) == 0, !known && owner == nil:
		return ""
	case known:
		return p.pod.Namespace + "/" + joinPDBNames(covering)
	}
	return owner.UID
}

// rekeyQueues gives the queues of a namespace the names of their PDBs as keys, once the drain has read the PDBs.
func (d *Drain) rekeyQueues(namespace string) {
	for key, q := range d.pdbQueues {
		if q.lastPod == nil || q.lastPod.pod.Namespace != namespace {
			continue
		}
		now := d.queueKey(q.lastPod)
		if now == key {
			continue
		}
		delete(d.pdbQueues, key)
		if other := d.pdbQueues[now]; now != "" && (other == nil || other.sentAt.Before(q.sentAt)) {
			d.pdbQueues[now] = q
		}
	}
}
