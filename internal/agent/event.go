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
	// eventQueue is how many Kubernetes Events may wait; more are dropped and counted. A drain never waits for them.
	eventQueue   = 64
	eventTimeout = 5 * time.Second
	component    = "slipway-agent"
	// maxMessage is the API server's limit for an Event's message, in bytes.
	maxMessage = 1024
)

// event is a Kubernetes Event in the making. Every text that the agent writes on a Node's behalf is made below.
type event struct {
	warning bool
	reason  EventReason
	message string
	about   notice.Notice
}

func (e event) of(n notice.Notice) event {
	e.about = n
	return e
}

func normal(reason EventReason, format string, args ...any) event {
	return event{reason: reason, message: fmt.Sprintf(format, args...)}
}

func warning(reason EventReason, format string, args ...any) event {
	return event{warning: true, reason: reason, message: fmt.Sprintf(format, args...)}
}

// unspoken is an occasion on which only a voice may have something to say.
func unspoken(reason EventReason, n notice.Notice) event { return event{reason: reason, about: n} }

func noticed(n notice.Notice, d Decision) event {
	return warning(NoticeReceived, "%s announces %s (%s) for this machine: %s. %s", n.Source, n.Type, n.ID, d.Action,
		d.Reason).of(n)
}

func changed(n notice.Notice, d Decision) event {
	return warning(NoticeChanged, "%s %s (%s) has changed, status %s: %s. %s", n.Source, n.Type, n.ID, n.Status, d.Action,
		d.Reason).of(n)
}

func unreadable(source, what string) event {
	return warning(NoticeUnreadable, "what %s announces cannot be understood in part, and nothing is done about that: %s", source,
		what)
}

func cordoned(n notice.Notice) event {
	return normal(NodeCordoned, "no new pods on account of %s (%s)", n.Type, n.ID).of(n)
}

func foundCordoned(n notice.Notice) event {
	return normal(FoundCordoned, "somebody else had cordoned the node before %s (%s) was announced: it stays cordoned "+
		"afterwards", n.Type, n.ID).of(n)
}

func cordonedAgain(n notice.Notice) event {
	return warning(CordonedAgain, "somebody uncordoned the node while %s (%s) is announced; cordoned it again", n.Type,
		n.ID).of(n)
}

func draining(n notice.Notice, d Decision) event {
	return normal(DrainBegun, "moving the pods off, %s", until(n, d)).of(n)
}

func until(n notice.Notice, d Decision) string {
	if d.Deadline.IsZero() {
		return "on account of condition " + n.ID
	}
	return fmt.Sprintf("%s (%s) is due at %s", n.Type, n.ID, d.Deadline.UTC().Format(time.RFC3339))
}

func blocked(p drain.Progress) event {
	var why []string
	for _, b := range p.Obstructed() {
		why = append(why, b.String())
	}
	return warning(DrainBlocked, "%s: %s", p, strings.Join(why, "; "))
}

func drained(r drain.Receipt) event { return normal(DrainDone, "%s", r.Summary()) }

func notDrained(r drain.Receipt, err error) event {
	return warning(DrainFailed, "%s. %v", r.Summary(), err)
}

func drainStopped(r drain.Receipt) event {
	return warning(DrainStopped, "the drain was stopped. %s", r.Summary())
}

func acknowledged(n notice.Notice, d Decision) event {
	if d.Action == Acknowledge {
		return normal(NoticeApproved, "told %s that %s (%s) may begin: %s", n.Source, n.Type, n.ID, d.Reason).of(n)
	}
	return normal(NoticeApproved, "told %s that %s (%s) may begin: drained are %s", n.Source, n.Type, n.ID,
		named(n.Resources)).of(n)
}

func over(n notice.Notice) event {
	return normal(NoticeOver, "%s (%s) is finished or was cancelled", n.Type, n.ID).of(n)
}

func uncordoned() event {
	return normal(NodeUncordoned, "no notice holds the node any more: it takes pods again")
}

func stillCordoned(why string) event {
	return normal(LeftCordoned, "no notice holds the node any more, but it stays cordoned: %s", why)
}

func othersAtWork(others []string, n notice.Notice, what string) event {
	return warning(OthersAtWork, "also taking this node out of service: %s. %s (%s): %s", strings.Join(others, ", "), n.Type,
		n.ID, what).of(n)
}

func waitingForTurn(n notice.Notice, holders []string, until time.Time) event {
	limit := "as long as it takes"
	if !until.IsZero() {
		limit = "until " + until.UTC().Format(time.RFC3339) + " at the latest"
	}
	return normal(WaitingForTurn, "%s (%s): as many nodes are being drained as may be at once (%s); waiting, %s", n.Type, n.ID,
		strings.Join(holders, ", "), limit).of(n)
}

// events writes Kubernetes Events in the background.
type events struct {
	api      EventAPI
	node     string
	uid      atomic.Pointer[string] // of the Node, as it was last read
	queue    chan written
	throttle *writeThrottle // nothing is written while it lasts
	failed   func()
	voice    Voice
	process  string // makes names unique across restarts
	unsaid   atomic.Int64
}

// EventAPI is what writing Events asks of the API server.
type EventAPI interface {
	CreateEvent(ctx context.Context, e kubeapi.Event) error
}

func newEvents(api EventAPI, node string, failed func(), voice Voice) *events {
	return &events{
		api: api, node: node, queue: make(chan written, eventQueue), throttle: newWriteThrottle(), failed: failed, voice: voice,
		process: strconv.FormatInt(time.Now().UnixNano(), 36),
	}
}

// about says which Node of its name what is emitted from now on is about.
func (w *events) about(uid string) { w.uid.Store(&uid) }

// emit queues e, or drops and counts it when the API server has been away for long.
func (w *events) emit(e event) {
	words, spoken := w.words(e)
	if !spoken {
		return
	}
	queued := written{Words: words, at: time.Now()}
	if uid := w.uid.Load(); uid != nil {
		queued.node = *uid
	}
	w.unsaid.Add(1)
	select {
	case w.queue <- queued:
	default:
		w.unsaid.Add(-1)
		w.failed()
	}
}

// written is an Event that waits to be.
type written struct {
	Words

	at   time.Time // when what it tells of was so
	node string    // the UID of the Node that it is about
}

// words are the voice's for an event, or else its own.
func (w *events) words(e event) (Words, bool) {
	if w.voice != nil {
		if words, ok := w.voice(Occasion{Reason: e.reason, Notice: e.about}); ok {
			return words, true
		}
	}
	words := Words{Type: "Normal", Reason: string(e.reason), Message: e.message, Component: component}
	if e.warning {
		words.Type = "Warning"
	}
	return words, e.message != ""
}

// said reports whether every Event so far is written, or could not be.
func (w *events) said() bool { return w.unsaid.Load() == 0 }

// run writes until ctx ends. Events are for people: one that cannot be written is counted and left.
func (w *events) run(ctx context.Context) {
	for serial := 0; ; serial++ {
		select {
		case <-ctx.Done():
			return
		case e := <-w.queue:
			w.throttle.wait(ctx)
			bounded, cancel := context.WithTimeout(ctx, eventTimeout)
			if err := w.api.CreateEvent(bounded, w.object(e, serial)); err != nil {
				w.failed()
			}
			cancel()
			w.unsaid.Add(-1)
		}
	}
}

// object is the Event as the API server takes it. Events of cluster-scoped objects live in the namespace default.
func (w *events) object(e written, serial int) kubeapi.Event {
	o := kubeapi.Event{
		Metadata: kubeapi.ObjectMeta{
			Name:      fmt.Sprintf("%s.%s.%d", w.node, w.process, serial),
			Namespace: "default",
		},
		InvolvedObject: kubeapi.ObjectReference{APIVersion: "v1", Kind: "Node", Name: w.node, UID: e.node},
		Type:           e.Type, Reason: e.Reason, Message: observe.Clip(e.Message, maxMessage),
		FirstTimestamp: e.at, LastTimestamp: e.at, Count: 1,
	}
	o.Source.Component, o.Source.Host = e.Component, w.node
	return o
}
