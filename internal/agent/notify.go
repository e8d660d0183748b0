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
	// lookUpTimeout bounds what is asked of the API server to make a notification fuller. It is sent all the same.
	lookUpTimeout = 3 * time.Second
	// announcements is how many notifications may wait for that; more are dropped and counted with the Events that were.
	announcements = 64
)

// Notifier tells receivers. *notify.Notifier is one.
type Notifier interface {
	// Notify must not block.
	Notify(m notify.Message)
	// Idle reports that every message has been sent, or tried once.
	Idle() bool
}

// PodLister lists the pods of a node for notifications.
type PodLister interface {
	ListPodsOn(ctx context.Context, node string) ([]kubeapi.Pod, error)
}

// account is what a drain has left to tell about a notice.
type account struct {
	receipt *drain.Receipt
	blocked []drain.Blocked
	timeUp  bool
}

// due are the moments that have come for a notice and have not been told. What has been told is a part of its record on
// the node, so that a restarted agent does not tell it again.
func (a *Agent) due(h *noticeState) []notify.Moment {
	if h.Decision.Action == Ignore {
		return nil
	}
	come := []notify.Moment{notify.Detected}
	if p := a.blockedProgress(h); p != nil {
		h.account.blocked = p.Obstructed()
		come = append(come, notify.Blocked)
	}
	if h.Phase.isDrained() {
		come = append(come, notify.Drained)
	}
	if h.account.timeUp {
		come = append(come, notify.DeadlinePassed)
	}
	return slices.DeleteFunc(come, func(m notify.Moment) bool { return slices.Contains(h.Told, m) })
}

// announce tells what has come since the last turn, before anything else is done: it costs no time, and what is done
// next records that it was told.
func (a *Agent) announce(now time.Time) {
	if a.o.Notifier == nil {
		return
	}
	for _, h := range a.inOrder() {
		for _, m := range a.due(h) {
			h.Told = append(h.Told, m)
			h.claim.outdate()
			a.announcer.queueUp(announcement{message(a.o.Node, m, h, now), h.account.receipt}, a.o.Metrics.EventsFailed.Inc)
		}
	}
}

// announceOver tells the end of a notice whose beginning was told.
func (a *Agent) announceOver(h *noticeState) {
	if a.o.Notifier != nil && slices.Contains(h.Told, notify.Detected) {
		a.announcer.queueUp(announcement{message: message(a.o.Node, notify.Over, h, time.Now())}, a.o.Metrics.EventsFailed.Inc)
	}
}

// noteEnd keeps how a drain ended for the notices that it was for.
func (a *Agent) noteEnd(r drain.Receipt, err error) {
	for _, h := range a.inOrder() {
		if !h.Phase.isDraining() {
			continue
		}
		h.account = account{receipt: &r, timeUp: r.Outcome == drain.DeadlinePassed || r.Outcome == drain.GaveUp}
		var left *drain.Unfinished
		if errors.As(err, &left) {
			h.account.blocked = left.Blocked
		}
	}
}

// told reports that nothing waits to be told for the first time.
func (a *Agent) told() bool {
	return a.o.Notifier == nil || a.announcer.waiting.Load() == 0 && a.o.Notifier.Idle()
}

// message says what the agent knows at one moment of a notice.
func message(node string, moment notify.Moment, h *noticeState, now time.Time) notify.Message {
	n, d := h.Notice, h.Decision
	m := notify.Message{
		Moment: moment, Source: n.Source, NodeName: node, Event: asEvent(n), Action: string(d.Action), Reason: d.Reason,
		Forced: d.Forced, Blocked: blockedPods(moment, h.account.blocked),
	}
	m.SetTime(now, d.Deadline)
	m.SetPods([]notify.Pod{})
	m.Summary = summary(m, h)
	return m
}

// summary is a moment in one line.
func summary(m notify.Message, h *noticeState) string {
	what := fmt.Sprintf("node %s: %s (%s)", m.NodeName, m.Event.EventType, m.Event.EventId)
	switch m.Moment {
	case notify.Detected:
		return fmt.Sprintf("%s is due in %d s: %s", what, m.SecondsLeft, m.Action)
	case notify.Blocked:
		why := make([]string, len(h.account.blocked))
		for i, b := range h.account.blocked {
			why[i] = b.String()
		}
		return fmt.Sprintf("%s is due in %d s, and %d pods are kept from leaving: %s", what, m.SecondsLeft, len(why),
			strings.Join(why, "; "))
	case notify.Drained, notify.DeadlinePassed:
		how := "drained in time"
		if m.Moment == notify.DeadlinePassed {
			how = "time is over, and the node is not drained"
		}
		if h.account.receipt == nil {
			return what + ": " + how
		}
		return what + ": " + how + ": " + h.account.receipt.Summary()
	}
	return what + " is finished or was cancelled"
}

// asEvent is a notice in Azure's words.
func asEvent(n notice.Notice) notify.Event {
	e := notify.Event{
		EventId: n.ID, EventType: string(n.Kind()), ResourceType: "VirtualMachine", Resources: n.Resources,
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

// blockedPods is what keeps pods from leaving, at the moments at which that is to be told.
func blockedPods(m notify.Moment, all []drain.Blocked) []notify.BlockedPod {
	pods := []notify.BlockedPod{}
	if m != notify.Blocked && m != notify.DeadlinePassed {
		return pods
	}
	for _, b := range all {
		pods = append(pods, notify.BlockedPod{
			Namespace: b.Namespace, Pod: b.Pod, Reason: string(b.Reason), Budget: b.Budget, Detail: b.Detail, Since: b.Since,
		})
	}
	return pods
}

// announcement is a message that still lacks what only the API server knows.
type announcement struct {
	message notify.Message
	receipt *drain.Receipt
}

// announcer completes messages in the background and hands them on.
type announcer struct {
	o       *Options
	queue   chan announcement
	waiting atomic.Int64
	labels  map[string]string // as last read
}

func newAnnouncer(o *Options) *announcer {
	return &announcer{o: o, queue: make(chan announcement, announcements)}
}

func (w *announcer) queueUp(n announcement, dropped func()) {
	w.waiting.Add(1)
	select {
	case w.queue <- n:
	default:
		w.waiting.Add(-1)
		dropped()
	}
}

// run hands messages on until ctx ends, and then those that are left as they are.
func (w *announcer) run(ctx context.Context) {
	if w.o.Notifier == nil {
		return
	}
	for {
		select {
		case n := <-w.queue:
			w.handOn(ctx, n)
		case <-ctx.Done():
			if len(w.queue) == 0 {
				return
			}
		}
	}
}

// handOn completes a message as far as that is possible now.
func (w *announcer) handOn(ctx context.Context, n announcement) {
	defer w.waiting.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	if node, err := w.o.API.GetNode(ctx, w.o.Node); err == nil {
		w.labels = node.Labels
	} else {
		w.o.Log.Warn("notification without the node's present labels", "err", err)
	}
	n.message.SetLabels(w.labels)
	if n.receipt != nil {
		n.message.SetPods(podsOf(*n.receipt))
	} else if pods, err := w.o.API.ListPodsOn(ctx, w.o.Node); err == nil {
		n.message.SetPods(podsOn(pods))
	} else {
		w.o.Log.Warn("notification without the node's pods", "err", err)
	}
	w.o.Notifier.Notify(n.message)
}

// podsOn are the pods of a node but those of DaemonSets.
func podsOn(pods []kubeapi.Pod) []notify.Pod {
	out := []notify.Pod{}
	for _, p := range pods {
		if len(p.OwnerReferences) > 0 && p.OwnerReferences[0].Kind == "DaemonSet" {
			continue
		}
		state := "running"
		if p.DeletionTimestamp != nil {
			state = "stopping"
		}
		out = append(out, notify.Pod{Namespace: p.Namespace, Name: p.Name, Owner: controllerOf(p), State: state})
	}
	slices.SortFunc(out, func(x, y notify.Pod) int {
		return strings.Compare(x.Namespace+"/"+x.Name, y.Namespace+"/"+y.Name)
	})
	return out
}

func controllerOf(p kubeapi.Pod) string {
	for _, o := range p.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			return o.Kind + "/" + o.Name
		}
	}
	return ""
}

// podsOf are the pods that had to leave.
func podsOf(r drain.Receipt) []notify.Pod {
	out := []notify.Pod{}
	for _, p := range r.Pods {
		if p.Action == podrules.Leave {
			continue
		}
		state := "gone"
		if p.Left() {
			state = "left"
		}
		out = append(out, notify.Pod{Namespace: p.Namespace, Name: p.Name, Owner: p.Owner, State: state})
	}
	return out
}
