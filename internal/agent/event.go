package agent

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

const (
	// maxQueuedEvents is the number of Kubernetes Events that may wait to be written. More Events are dropped and
	// counted, because a drain never waits for Events.
	maxQueuedEvents = 64
	eventTimeout    = 5 * time.Second
	eventComponent  = "slipway-agent"
	// maxEventMessageBytes is the API server's limit for an Event's message.
	maxEventMessageBytes = 1024
)

// event is a Kubernetes Event before it is formatted. The functions below build every text that the agent writes about
// a Node.
type event struct {
	warning bool
	reason  EventReason
	message string
	notice  notice.Notice
}

func (e event) withNotice(n notice.Notice) event {
	e.notice = n
	return e
}

func newNormalEvent(reason EventReason, format string, args ...any) event {
	return event{reason: reason, message: fmt.Sprintf(format, args...)}
}

func newWarningEvent(reason EventReason, format string, args ...any) event {
	return event{warning: true, reason: reason, message: fmt.Sprintf(format, args...)}
}

// newSilentEvent returns an event that is written only if Options.EventFormatter formats it.
func newSilentEvent(reason EventReason, n notice.Notice) event {
	return event{reason: reason, notice: n}
}

func newNoticeReceivedEvent(n notice.Notice, d Decision) event {
	return newWarningEvent(NoticeReceived, "%s announces %s (%s) for this instance: %s. %s", n.Source, n.Type, n.ID, d.Action,
		d.Reason).withNotice(n)
}

func newNoticeChangedEvent(n notice.Notice, d Decision) event {
	return newWarningEvent(NoticeChanged, "%s changed %s (%s), status %s: %s. %s", n.Source, n.Type, n.ID, n.Status, d.Action,
		d.Reason).withNotice(n)
}

func newNoticeUnreadableEvent(source, what string) event {
	return newWarningEvent(NoticeUnreadable, "cannot read a part of the notices of source %s, and ignores it: %s", source,
		what)
}

func newCordonedEvent(n notice.Notice) event {
	return newNormalEvent(NodeCordoned, "cordoned for %s (%s)", n.Type, n.ID).withNotice(n)
}

func newFoundCordonedEvent(n notice.Notice) event {
	return newNormalEvent(FoundCordoned, "the node was already cordoned before %s (%s) was announced: it stays cordoned "+
		"afterwards", n.Type, n.ID).withNotice(n)
}

func newCordonedAgainEvent(n notice.Notice) event {
	return newWarningEvent(CordonedAgain, "the node was uncordoned during %s (%s); cordoned it again", n.Type,
		n.ID).withNotice(n)
}

func newDrainingEvent(n notice.Notice, d Decision) event {
	return newNormalEvent(DrainBegun, "evicting the pods: %s", describeDeadline(n, d)).withNotice(n)
}

func describeDeadline(n notice.Notice, d Decision) string {
	switch {
	case n.Type == notice.Condition:
		return "condition " + n.ID + " is true"
	case d.Deadline.IsZero():
		return fmt.Sprintf("%s (%s) has no deadline", n.Type, n.ID)
	}
	return fmt.Sprintf("%s (%s) is due at %s", n.Type, n.ID, d.Deadline.UTC().Format(time.RFC3339))
}

func newDrainBlockedEvent(p drain.Progress) event {
	var why []string
	for _, b := range p.BlockedPods() {
		why = append(why, b.String())
	}
	return newWarningEvent(DrainBlocked, "%s: %s", p, strings.Join(why, "; "))
}

func newDrainedEvent(r drain.Report) event { return newNormalEvent(DrainDone, "%s", r.Summary()) }

func newNotDrainedEvent(r drain.Report, err error) event {
	return newWarningEvent(DrainFailed, "%s. %v", r.Summary(), err)
}

func newDrainStoppedEvent(r drain.Report) event {
	return newWarningEvent(DrainStopped, "the drain was stopped. %s", r.Summary())
}

func newAcknowledgedEvent(n notice.Notice, d Decision) event {
	if d.Action == Acknowledge {
		return newNormalEvent(NoticeApproved, "told %s that %s (%s) may begin: %s", n.Source, n.Type, n.ID, d.Reason).withNotice(n)
	}
	return newNormalEvent(NoticeApproved, "told %s that %s (%s) may begin: drained %s", n.Source, n.Type, n.ID,
		joinFirstNames(n.Resources)).withNotice(n)
}

func newNoticeOverEvent(n notice.Notice) event {
	return newNormalEvent(NoticeOver, "%s (%s) has ended or was cancelled", n.Type, n.ID).withNotice(n)
}

func newUncordonedEvent() event {
	return newNormalEvent(NodeUncordoned, "no notice needs the cordon any more: the node is schedulable again")
}

func newLeftCordonedEvent(why string) event {
	return newNormalEvent(LeftCordoned, "no notice needs the cordon any more, but the node stays cordoned: %s", why)
}

func newOtherToolsEvent(others []string, n notice.Notice, what string) event {
	return newWarningEvent(OthersAtWork, "other tools are taking this node out of service: %s. %s (%s): %s", strings.Join(others, ", "), n.Type,
		n.ID, what).withNotice(n)
}

func newWaitingForSlotEvent(n notice.Notice, holders []string, until time.Time) event {
	limit := "without a time limit"
	if !until.IsZero() {
		limit = "until " + until.UTC().Format(time.RFC3339) + " at the latest"
	}
	return newNormalEvent(WaitingForTurn, "%s (%s) waits for a drain slot, %s. Slots are held by: %s", n.Type, n.ID,
		limit, strings.Join(holders, ", ")).withNotice(n)
}

// eventWriter writes Kubernetes Events in the background.
type eventWriter struct {
	api       EventAPI
	node      string
	object    atomic.Pointer[kubeapi.Node] // the Node, as last read
	queue     chan queuedEvent
	throttle  *writeThrottle // delays all writes until its end
	onFailed  func()
	formatter EventFormatter
	processID string // makes names unique across restarts
	pending   atomic.Int64
}

// EventAPI creates Events at the API server.
type EventAPI interface {
	CreateEvent(ctx context.Context, e kubeapi.Event) error
}

func newEventWriter(api EventAPI, node string, failed func(), voice EventFormatter) *eventWriter {
	return &eventWriter{
		api: api, node: node, queue: make(chan queuedEvent, maxQueuedEvents), throttle: newWriteThrottle(), onFailed: failed, formatter: voice,
		processID: strconv.FormatInt(time.Now().UnixNano(), 36),
	}
}

// setNode sets the Node that the following Events are about. A Node that was registered again has another UID.
func (w *eventWriter) setNode(node *kubeapi.Node) { w.object.Store(node) }

// queueEvent queues e to be written. If the queue is full, it drops e and counts it.
func (w *eventWriter) queueEvent(e event) {
	for _, words := range w.formatEvent(e) {
		queued := queuedEvent{FormattedEvent: words, at: time.Now()}
		if node := w.object.Load(); node != nil {
			queued.nodeUID = node.UID
		}
		w.pending.Add(1)
		select {
		case w.queue <- queued:
		default:
			w.pending.Add(-1)
			w.onFailed()
		}
	}
}

// queuedEvent is an Event that waits to be written.
type queuedEvent struct {
	FormattedEvent

	at      time.Time // when the event happened
	nodeUID string    // UID of the Node that it is about
}

// formatEvent formats e with Options.EventFormatter, or in the agent's own format. It returns nothing if e must not be
// written.
func (w *eventWriter) formatEvent(e event) []FormattedEvent {
	if w.formatter != nil {
		if all, ok := w.formatter(EventTrigger{Reason: e.reason, Message: e.message, Notice: e.notice, Node: w.object.Load()}); ok {
			return all
		}
	}
	if e.message == "" {
		return nil
	}
	words := FormattedEvent{Type: "Normal", Reason: string(e.reason), Message: e.message, Component: eventComponent}
	if e.warning {
		words.Type = "Warning"
	}
	return []FormattedEvent{words}
}

// isIdle reports whether every queued Event was written or has failed.
func (w *eventWriter) isIdle() bool { return w.pending.Load() == 0 }

// run writes Events until ctx ends. It counts a failed write and does not retry it, because Events only inform people.
func (w *eventWriter) run(ctx context.Context) {
	for serial := 0; ; serial++ {
		select {
		case <-ctx.Done():
			return
		case e := <-w.queue:
			w.throttle.wait(ctx)
			bounded, cancel := context.WithTimeout(ctx, eventTimeout)
			if err := w.api.CreateEvent(bounded, w.toKubernetesEvent(e, serial)); err != nil {
				w.onFailed()
			}
			cancel()
			w.pending.Add(-1)
		}
	}
}

// toKubernetesEvent returns the Event for the API server. Its namespace is default, because a Node has no namespace.
func (w *eventWriter) toKubernetesEvent(e queuedEvent, serial int) kubeapi.Event {
	o := kubeapi.Event{
		Metadata: kubeapi.ObjectMeta{
			Name:        fmt.Sprintf("%s.%s.%d", w.node, w.processID, serial),
			Namespace:   "default",
			Annotations: e.Annotations,
		},
		InvolvedObject: kubeapi.ObjectReference{APIVersion: "v1", Kind: "Node", Name: w.node, UID: e.nodeUID},
		Type:           e.Type, Reason: e.Reason, Message: observe.ClipBytes(e.Message, maxEventMessageBytes),
		FirstTimestamp: e.at, LastTimestamp: e.at, Count: 1,
	}
	o.Source.Component, o.Source.Host = e.Component, w.node
	return o
}
