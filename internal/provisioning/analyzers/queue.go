package analyzers

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// eventKind is the kind of a pod event.
type eventKind string

const (
	podModified eventKind = "modify"
	podDeleted  eventKind = "delete"
)

// podEvent is an event for a plugin.
type podEvent struct {
	kind  eventKind
	pod   *corev1.Pod
	tries int // the number of failed calls
}

type eventKey struct {
	kind eventKind
	uid  types.UID
}

func (e podEvent) key() eventKey { return eventKey{e.kind, e.pod.UID} }

// maxEvents limits the queue of one plugin.
const maxEvents = 20_000

// eventQueue holds the events that a plugin has not seen, the oldest first. It keeps only the last change of each pod.
// If it is full, it drops the oldest event. It is safe for concurrent use.
type eventQueue struct {
	mu       sync.Mutex
	notEmpty sync.Cond
	events   map[eventKey]podEvent
	order    []eventKey
	closed   bool
}

func newEventQueue() *eventQueue {
	q := &eventQueue{events: map[eventKey]podEvent{}}
	q.notEmpty.L = &q.mu
	return q
}

// putDroppingOldest adds an event. It reports whether it dropped another one.
func (q *eventQueue) putDroppingOldest(e podEvent) (dropped bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.events[e.key()]; !waits {
		q.order = append(q.order, e.key())
	}
	q.events[e.key()] = e
	if len(q.order) > maxEvents {
		delete(q.events, q.order[0])
		q.order = q.order[1:]
		dropped = true
	}
	q.notEmpty.Signal()
	return dropped
}

// putBackUnlessReplaced returns a failed event to the queue, unless a later event of its kind has arrived.
func (q *eventQueue) putBackUnlessReplaced(e podEvent) {
	q.mu.Lock()
	_, later := q.events[e.key()]
	q.mu.Unlock()
	if !later {
		q.putDroppingOldest(e)
	}
}

// waitForNext waits for the next event. It returns false if the queue is closed.
func (q *eventQueue) waitForNext() (event podEvent, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.order) == 0 && !q.closed {
		q.notEmpty.Wait()
	}
	if q.closed {
		return podEvent{}, false
	}
	key := q.order[0]
	q.order = q.order[1:]
	e := q.events[key]
	delete(q.events, key)
	return e, true
}

func (q *eventQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.notEmpty.Broadcast()
}
