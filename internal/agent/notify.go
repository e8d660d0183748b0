package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notify"
)

const (
	// lookupTimeout limits the requests for the labels and pods in a notification. If the API server does not answer,
	// the notification is sent without them.
	lookupTimeout = 3 * time.Second
	// maxQueuedNotifications is the number of notifications that may wait for their labels and pods. More notifications
	// are dropped, and counted with the dropped Events.
	maxQueuedNotifications = 64
)

// Notifier sends messages to receivers. *notify.Notifier implements it.
type Notifier interface {
	// Enqueue must not block.
	Enqueue(m notify.Message)
	// IsIdle reports that every message has been sent or tried once.
	IsIdle() bool
}

// PodLister lists the pods of a node for notifications.
type PodLister interface {
	ListPodsOnNode(ctx context.Context, node string) ([]kubeapi.Pod, error)
}

// drainResult is the result of a drain, as far as notifications need it.
type drainResult struct {
	report   *drain.Report
	blocked  []drain.BlockedPod
	timedOut bool
}

// unsentNotificationMoments returns the moments of a notice, such as Drained, that have come without a queued
// notification. The record on the node lists the sent moments. So a restarted agent does not send them again.
func (a *Agent) unsentNotificationMoments(h *noticeState) []notify.Moment {
	if h.Decision.Action == Ignore {
		return nil
	}
	come := []notify.Moment{notify.Detected}
	if p := a.blockedProgress(h); p != nil {
		h.drainResult.blocked = p.BlockedPods()
		come = append(come, notify.Blocked)
	}
	if h.Phase.isDrained() {
		come = append(come, notify.Drained)
	}
	if h.drainResult.timedOut {
		come = append(come, notify.DeadlinePassed)
	}
	return slices.DeleteFunc(come, func(m notify.Moment) bool { return slices.Contains(h.NotifiedMoments, m) })
}

// queueNotifications queues a notification for each moment that has come since the last call. A reconcile calls it
// first: it takes no time, and the next write of the claim then records the sent moments.
func (a *Agent) queueNotifications(now time.Time) {
	if a.options.Notifier == nil {
		return
	}
	for _, h := range a.activeNoticesByUrgency() {
		for _, m := range a.unsentNotificationMoments(h) {
			h.NotifiedMoments = append(h.NotifiedMoments, m)
			h.claim.markOutdated()
			a.notifications.queueOrDrop(pendingNotification{newMessage(a.options.Node, m, h, now), h.drainResult.report}, a.options.Metrics.EventsFailed.Inc)
		}
	}
}

// queueEndNotification queues the notification that a notice has ended, if the notification about its detection was
// sent.
func (a *Agent) queueEndNotification(h *noticeState) {
	if a.options.Notifier != nil && slices.Contains(h.NotifiedMoments, notify.Detected) {
		a.notifications.queueOrDrop(pendingNotification{message: newMessage(a.options.Node, notify.Ended, h, time.Now())}, a.options.Metrics.EventsFailed.Inc)
	}
}

// storeDrainResult stores the result of a drain in every notice that is draining.
func (a *Agent) storeDrainResult(r drain.Report, err error) {
	for _, h := range a.activeNoticesByUrgency() {
		if !h.Phase.isDraining() {
			continue
		}
		h.drainResult = drainResult{report: &r, timedOut: r.Outcome == drain.DeadlinePassed || r.Outcome == drain.TimedOut}
		var left *drain.UnfinishedError
		if errors.As(err, &left) {
			h.drainResult.blocked = left.Blocked
		}
	}
}

// areNotificationsSent reports whether every queued notification was sent, or has failed once.
func (a *Agent) areNotificationsSent() bool {
	return a.options.Notifier == nil || a.notifications.pending.Load() == 0 && a.options.Notifier.IsIdle()
}

// newMessage builds the notification for one moment of a notice.
func newMessage(node string, moment notify.Moment, h *noticeState, now time.Time) notify.Message {
	n, d := h.Notice, h.Decision
	m := notify.Message{
		Moment: moment, Source: n.Source, NodeName: node, Event: toScheduledEvent(n), Action: string(d.Action), Reason: d.Reason,
		Forced: d.Forced, Blocked: toBlockedPods(moment, h.drainResult.blocked),
	}
	m.SetTime(now, d.Deadline)
	m.SetPods([]notify.Pod{})
	m.Summary = summarizeMoment(m, h)
	return m
}

// summarizeMoment returns one line of text about the moment of a message.
func summarizeMoment(m notify.Message, h *noticeState) string {
	what := fmt.Sprintf("node %s: %s (%s)", m.NodeName, m.Event.EventType, m.Event.EventId)
	due, passed := fmt.Sprintf("is due in %d s", m.SecondsLeft), "the deadline has passed"
	if m.Deadline.IsZero() {
		due, passed = "has no deadline", "the drain has timed out"
	}
	switch m.Moment {
	case notify.Detected:
		return fmt.Sprintf("%s %s: %s", what, due, m.Action)
	case notify.Blocked:
		why := make([]string, len(h.drainResult.blocked))
		for i, b := range h.drainResult.blocked {
			why[i] = b.String()
		}
		return fmt.Sprintf("%s %s, and %d pods cannot be evicted: %s", what, due, len(why), strings.Join(why, "; "))
	case notify.Drained, notify.DeadlinePassed:
		how := "drained in time"
		if m.Moment == notify.DeadlinePassed {
			how = passed + ", and the node is not drained"
		}
		if h.drainResult.report == nil {
			return what + ": " + how
		}
		return what + ": " + how + ": " + h.drainResult.report.Summary()
	}
	return what + " has ended or was cancelled"
}

func toScheduledEvent(n notice.Notice) notify.Event {
	e := notify.Event{
		EventId: n.ID, EventType: string(n.EffectiveType()), ResourceType: "VirtualMachine", Resources: n.Resources,
		EventStatus: string(n.Status), Description: n.Description, EventSource: "Platform",
		DurationInSeconds: max(-1, int(n.Duration/time.Second)),
	}
	if n.Duration < 0 {
		e.DurationInSeconds = -1
	}
	if n.UserInitiated {
		e.EventSource = "User"
	}
	if !n.NotBefore.IsZero() {
		e.NotBefore = n.NotBefore.UTC().Format(http.TimeFormat)
	}
	return e
}

// toBlockedPods converts the blocked pods. It returns none for moments with messages that do not list blocked pods.
func toBlockedPods(m notify.Moment, all []drain.BlockedPod) []notify.BlockedPod {
	pods := []notify.BlockedPod{}
	if m != notify.Blocked && m != notify.DeadlinePassed {
		return pods
	}
	for _, b := range all {
		pods = append(pods, notify.BlockedPod{
			Namespace: b.Namespace, Pod: b.Pod, Reason: string(b.Reason), Budget: b.PDB, Detail: b.Detail, Since: b.Since,
		})
	}
	return pods
}

// pendingNotification is a message that still lacks the node's labels and pods. The API server has to be asked for
// these.
type pendingNotification struct {
	message notify.Message
	report  *drain.Report
}

// notificationSender completes messages in the background and passes them to the Notifier.
type notificationSender struct {
	options    *Options
	queue      chan pendingNotification
	pending    atomic.Int64
	nodeLabels map[string]string // as last read
}

func newNotificationSender(o *Options) *notificationSender {
	return &notificationSender{options: o, queue: make(chan pendingNotification, maxQueuedNotifications)}
}

func (w *notificationSender) queueOrDrop(n pendingNotification, dropped func()) {
	w.pending.Add(1)
	select {
	case w.queue <- n:
	default:
		w.pending.Add(-1)
		dropped()
	}
}

// run sends messages until ctx ends. After that it sends the queued messages without labels and pods.
func (w *notificationSender) run(ctx context.Context) {
	if w.options.Notifier == nil {
		return
	}
	for {
		select {
		case n := <-w.queue:
			w.sendWithNodeDetails(ctx, n)
		case <-ctx.Done():
			if len(w.queue) == 0 {
				return
			}
		}
	}
}

// sendWithNodeDetails sends a message with the node's labels and pods. It leaves out what cannot be read now.
func (w *notificationSender) sendWithNodeDetails(ctx context.Context, n pendingNotification) {
	defer w.pending.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if node, err := w.options.API.GetNode(ctx, w.options.Node); err == nil {
		w.nodeLabels = node.Labels
	} else {
		w.options.Log.Warn("cannot read the node: sending the notification with the last known labels", "err", err)
	}
	n.message.SetLabels(w.nodeLabels)
	if n.report != nil {
		n.message.SetPods(podsFromDrainReport(*n.report))
	} else if pods, err := w.options.API.ListPodsOnNode(ctx, w.options.Node); err == nil {
		n.message.SetPods(toPodsWithoutDaemonSets(pods))
	} else {
		w.options.Log.Warn("cannot list the node's pods: sending the notification without them", "err", err)
	}
	w.options.Notifier.Enqueue(n.message)
}

// toPodsWithoutDaemonSets converts the pods of a node, except DaemonSet pods.
func toPodsWithoutDaemonSets(pods []kubeapi.Pod) []notify.Pod {
	out := []notify.Pod{}
	for _, p := range pods {
		if len(p.OwnerReferences) > 0 && p.OwnerReferences[0].Kind == "DaemonSet" {
			continue
		}
		state := "running"
		if p.DeletionTimestamp != nil {
			state = "stopping"
		}
		out = append(out, notify.Pod{Namespace: p.Namespace, Name: p.Name, Owner: controllerKindAndName(p), State: state})
	}
	slices.SortFunc(out, func(x, y notify.Pod) int {
		return strings.Compare(x.Namespace+"/"+x.Name, y.Namespace+"/"+y.Name)
	})
	return out
}

func controllerKindAndName(p kubeapi.Pod) string {
	for _, o := range p.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			return o.Kind + "/" + o.Name
		}
	}
	return ""
}

// podsFromDrainReport converts the pods that had to leave from a drain report.
func podsFromDrainReport(r drain.Report) []notify.Pod {
	out := []notify.Pod{}
	for _, p := range r.Pods {
		if p.Action == podrules.Skip {
			continue
		}
		state := "gone"
		if p.IsNotRemoved() {
			state = "left"
		}
		out = append(out, notify.Pod{Namespace: p.Namespace, Name: p.Name, Owner: p.Owner, State: state})
	}
	return out
}
