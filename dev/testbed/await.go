package testbed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/slipway-dev/slipway/dev/azure"
)

// watchUntil lists and watches objects of a resource in all namespaces until done returns true for an event.
func (t *Testbed) watchUntil(ctx context.Context, resource string, selector fields.Selector, kind runtime.Object,
	done func(watch.Event) bool,
) error {
	return t.listAndWatchUntil(ctx, resource, selector, kind, nil, done)
}

// listAndWatchUntil works like watchUntil, but also checks the initial list. Without this check, a wait for an empty
// list would never end, because the watch of an empty list sends no event.
func (t *Testbed) listAndWatchUntil(ctx context.Context, resource string, selector fields.Selector, kind runtime.Object,
	already func(cache.Store) (bool, error), done func(watch.Event) bool,
) error {
	lw := cache.NewListWatchFromClient(t.Client().CoreV1().RESTClient(), resource, metav1.NamespaceAll, selector)
	_, err := watchtools.UntilWithSync(ctx, cache.ToListWatcherWithWatchListSemantics(lw, t.Client()), kind, already,
		func(e watch.Event) (bool, error) { return done(e), nil })
	return err
}

// AwaitNode waits until matches returns true for the named node, and returns the node. The text state describes the
// awaited state in errors.
func (t *Testbed) AwaitNode(ctx context.Context, name, state string, matches func(*corev1.Node) bool) (*corev1.Node, error) {
	var last *corev1.Node
	err := t.watchUntil(ctx, "nodes", fields.OneTermEqualSelector(metav1.ObjectNameField, name), &corev1.Node{},
		func(e watch.Event) bool {
			n, ok := e.Object.(*corev1.Node)
			if !ok || e.Type == watch.Deleted {
				return false
			}
			last = n
			return matches(n)
		})
	if err != nil {
		return last, fmt.Errorf("wait until node %s is %s: %w; it is: %s", name, state, err, describeNode(last))
	}
	return last, nil
}

// describeNode returns text with the fields of a node that Slipway may change.
func describeNode(n *corev1.Node) string {
	if n == nil {
		return "missing"
	}
	var conditions []string
	for _, c := range n.Status.Conditions {
		conditions = append(conditions, fmt.Sprintf("%s=%s", c.Type, c.Status))
	}
	return fmt.Sprintf("unschedulable %v, taints %v, labels %v, annotations %v, conditions %v", n.Spec.Unschedulable,
		n.Spec.Taints, n.Labels, n.Annotations, conditions)
}

// AwaitPods waits until match returns true for the list of pods that are bound to a node. It returns these pods. The
// text state describes the awaited state in errors.
func (t *Testbed) AwaitPods(ctx context.Context, node, state string, match func([]corev1.Pod) bool) ([]corev1.Pod, error) {
	pods := map[types.UID]corev1.Pod{}
	list := func() []corev1.Pod {
		var all []corev1.Pod
		for _, p := range pods {
			all = append(all, p)
		}
		slices.SortFunc(all, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
		return all
	}
	bound := fields.OneTermEqualSelector("spec.nodeName", node)
	// Checks the whole list before it checks each change. Only this finds an empty list, and does not mistake the first
	// event for the whole list.
	checkInitial := func(store cache.Store) (bool, error) {
		for _, o := range store.List() {
			if p, ok := o.(*corev1.Pod); ok {
				pods[p.UID] = *p
			}
		}
		return match(list()), nil
	}
	err := t.listAndWatchUntil(ctx, "pods", bound, &corev1.Pod{}, checkInitial, func(e watch.Event) bool {
		p, ok := e.Object.(*corev1.Pod)
		if !ok {
			return false
		}
		if pods[p.UID] = *p; e.Type == watch.Deleted {
			delete(pods, p.UID)
		}
		return match(list())
	})
	if err != nil {
		return list(), fmt.Errorf("wait until the pods on %s are %s: %w; they are %s", node, state, err, formatPods(list()))
	}
	return list(), nil
}

func formatPods(pods []corev1.Pod) string {
	var all []string
	for _, p := range pods {
		all = append(all, fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, p.Status.Phase))
	}
	return strings.Join(all, ", ")
}

// AwaitEvent waits until an Event with this reason about the node exists, and returns the Event. An Event from before
// the call counts too.
func (t *Testbed) AwaitEvent(ctx context.Context, node, reason string) (*corev1.Event, error) {
	var found *corev1.Event
	about := fields.AndSelectors(fields.OneTermEqualSelector("involvedObject.name", node),
		fields.OneTermEqualSelector("reason", reason))
	err := t.watchUntil(ctx, "events", about, &corev1.Event{}, func(e watch.Event) bool {
		event, ok := e.Object.(*corev1.Event)
		if ok && e.Type != watch.Deleted {
			found = event
		}
		return found != nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for an Event %s about node %s: %w", reason, node, err)
	}
	return found, nil
}

// AwaitEventNote waits for an Event about an object, with a text in its note, and returns the note.
func (t *Testbed) AwaitEventNote(ctx context.Context, kind, name, reason, text string) (note string, err error) {
	selector := "regarding.kind=" + kind + ",regarding.name=" + name
	var seen []string
	err = PollUntil(ctx, fmt.Sprintf("Event %s about %s %s has %q", reason, kind, name, text), func() bool {
		list, err := t.Client().EventsV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return false
		}
		seen = nil
		for _, e := range list.Items {
			seen = append(seen, e.Reason+": "+e.Note)
			if e.Reason == reason && strings.Contains(e.Note, text) {
				note = e.Note
				return true
			}
		}
		return false
	})
	if err != nil {
		err = fmt.Errorf("%w; the Events are %q", err, seen)
	}
	return note, err
}

// AwaitNotice waits until matches returns true for an emulated event, and returns the event. The text wanted
// describes the awaited state in errors.
func (t *Testbed) AwaitNotice(ctx context.Context, id, wanted string, matches func(azure.EventRecord) bool) (azure.EventRecord, error) {
	state, err := t.Azure.AwaitState(ctx, func(s azure.State) bool {
		r, ok := s.Event(id)
		return ok && matches(r)
	})
	r, _ := state.Event(id)
	if err != nil {
		return r, fmt.Errorf("wait until event %s is %s: %w; it is %+v", id, wanted, err, r)
	}
	return r, nil
}

// NodeHistory records every state of a node that a watch has seen.
type NodeHistory struct {
	stop func()
	done sync.WaitGroup

	mu     sync.Mutex
	states []*corev1.Node
}

// RecordNodeStates records the states of a node until NodeHistory.StopRecording is called or ctx ends.
func (t *Testbed) RecordNodeStates(ctx context.Context, name string) (*NodeHistory, error) {
	ctx, stop := context.WithCancel(ctx)
	h := &NodeHistory{stop: stop}
	begun := make(chan struct{})
	h.done.Go(func() {
		_ = t.watchUntil(ctx, "nodes", fields.OneTermEqualSelector(metav1.ObjectNameField, name), &corev1.Node{},
			func(e watch.Event) bool { h.recordState(e, begun); return false })
	})
	select {
	case <-begun:
		return h, nil
	case <-ctx.Done():
		h.StopRecording()
		return nil, fmt.Errorf("record node %s: %w", name, ctx.Err())
	}
}

func (h *NodeHistory) recordState(e watch.Event, begun chan struct{}) {
	n, ok := e.Object.(*corev1.Node)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.states) == 0 {
		close(begun)
	}
	h.states = append(h.states, n)
}

// StopRecording ends the recording and waits until no more states are added.
func (h *NodeHistory) StopRecording() {
	h.stop()
	h.done.Wait()
}

// States returns the recorded states of the node, oldest first.
func (h *NodeHistory) States() []*corev1.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.states)
}

// PollUntil calls check repeatedly until check returns true. Use it for states that cannot be watched, such as the
// metrics, log or exit of a process.
func PollUntil(ctx context.Context, condition string, check func() bool) error {
	const pause = 50 * time.Millisecond
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for !check() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", condition, ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}

// Sleep waits for the duration d. If ctx ends first, it returns the cause.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
