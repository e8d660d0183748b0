package advised

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// eventKind is what has happened to a pod.
type eventKind string

const (
	podModified eventKind = "modify"
	podDeleted  eventKind = "delete"
)

// podEvent is what is shown to a plugin.
type podEvent struct {
	kind  eventKind
	pod   *corev1.Pod
	tries int // that have failed
}

type eventKey struct {
	kind eventKind
	uid  types.UID
}

func (e podEvent) key() eventKey { return eventKey{e.kind, e.pod.UID} }

// maxEvents bounds what waits for one plugin.
const maxEvents = 20_000

// eventQueue holds the events that one plugin has not been shown yet, the oldest first: of each pod the last change only. When
// it is full the oldest is dropped. It may be used concurrently.
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

// put adds an event. It reports whether another was dropped for it.
func (q *eventQueue) put(e podEvent) (dropped bool) {
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

// putBack puts an event back whose call has failed, unless a later one of its kind has come.
func (q *eventQueue) putBack(e podEvent) {
	q.mu.Lock()
	_, later := q.events[e.key()]
	q.mu.Unlock()
	if !later {
		q.put(e)
	}
}

// waitForNext waits for the next event; false when the queue is closed.
func (q *eventQueue) waitForNext() (podEvent, bool) {
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
