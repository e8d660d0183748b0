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
	reason  string
	message string
}

func noticed(n notice.Notice, d Decision) event {
	return event{true, "NoticeReceived", fmt.Sprintf("%s announces %s (%s) for this machine: %s. %s", n.Source, n.Type,
		n.ID, d.Action, d.Reason)}
}

func changed(n notice.Notice, d Decision) event {
	return event{true, "NoticeChanged", fmt.Sprintf("%s %s (%s) has changed, status %s: %s. %s", n.Source, n.Type, n.ID,
		n.Status, d.Action, d.Reason)}
}

func cordoned(n notice.Notice) event {
	return event{false, "Cordoned", fmt.Sprintf("no new pods on account of %s (%s)", n.Type, n.ID)}
}

func foundCordoned(n notice.Notice) event {
	return event{false, "FoundCordoned", fmt.Sprintf("somebody else had cordoned the node before %s (%s) was announced: "+
		"it stays cordoned afterwards", n.Type, n.ID)}
}

func cordonedAgain(n notice.Notice) event {
	return event{true, "CordonedAgain", fmt.Sprintf("somebody uncordoned the node while %s (%s) is announced; cordoned it again",
		n.Type, n.ID)}
}

func draining(n notice.Notice, d Decision) event {
	return event{false, "Draining", fmt.Sprintf("moving the pods off, %s", until(n, d))}
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
	return event{true, "DrainBlocked", fmt.Sprintf("%s: %s", p, strings.Join(why, "; "))}
}

func drained(r drain.Receipt) event { return event{false, "Drained", r.Summary()} }

func notDrained(r drain.Receipt, err error) event {
	return event{true, "NotDrained", fmt.Sprintf("%s. %v", r.Summary(), err)}
}

func acknowledged(n notice.Notice, d Decision) event {
	if d.Action == Acknowledge {
		return event{false, "Acknowledged", fmt.Sprintf("told %s that %s (%s) may begin: %s", n.Source, n.Type, n.ID, d.Reason)}
	}
	return event{false, "Acknowledged", fmt.Sprintf("told %s that %s (%s) may begin: drained are %s", n.Source, n.Type, n.ID,
		strings.Join(n.Resources, ", "))}
}

func over(n notice.Notice) event {
	return event{false, "NoticeOver", fmt.Sprintf("%s (%s) is finished or was cancelled", n.Type, n.ID)}
}

func uncordoned() event {
	return event{false, "Uncordoned", "no notice holds the node any more: it takes pods again"}
}

func stillCordoned(why string) event {
	return event{false, "LeftCordoned", "no notice holds the node any more, but it stays cordoned: " + why}
}

func othersAtWork(others []string, n notice.Notice, what string) event {
	return event{true, "OthersAtWork", fmt.Sprintf("also taking this node out of service: %s. %s (%s): %s",
		strings.Join(others, ", "), n.Type, n.ID, what)}
}

func waitingForTurn(n notice.Notice, holders []string, until time.Time) event {
	limit := "as long as it takes"
	if !until.IsZero() {
		limit = "until " + until.UTC().Format(time.RFC3339) + " at the latest"
	}
	return event{false, "WaitingForTurn", fmt.Sprintf("%s (%s): as many nodes are being drained as may be at once (%s); "+
		"waiting, %s", n.Type, n.ID, strings.Join(holders, ", "), limit)}
}

// events writes Kubernetes Events in the background.
type events struct {
	api     EventAPI
	node    string
	uid     func() string
	queue   chan event
	failed  func()
	process string // makes names unique across restarts
	unsaid  atomic.Int64
}

// EventAPI is what writing Events asks of the API server.
type EventAPI interface {
	CreateEvent(ctx context.Context, e kubeapi.Event) error
}

func newEvents(api EventAPI, node string, uid func() string, failed func()) *events {
	return &events{
		api: api, node: node, uid: uid, queue: make(chan event, eventQueue), failed: failed,
		process: strconv.FormatInt(time.Now().UnixNano(), 36),
	}
}

// emit queues e, or drops and counts it when the API server has been away for long.
func (w *events) emit(e event) {
	w.unsaid.Add(1)
	select {
	case w.queue <- e:
	default:
		w.unsaid.Add(-1)
		w.failed()
	}
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
func (w *events) object(e event, serial int) kubeapi.Event {
	now := time.Now()
	o := kubeapi.Event{
		Metadata: kubeapi.ObjectMeta{
			Name:      fmt.Sprintf("%s.%s.%d", w.node, w.process, serial),
			Namespace: "default",
		},
		InvolvedObject: kubeapi.ObjectReference{APIVersion: "v1", Kind: "Node", Name: w.node, UID: w.uid()},
		Type:           "Normal", Reason: e.reason, Message: clip(e.message),
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	if e.warning {
		o.Type = "Warning"
	}
	o.Source.Component, o.Source.Host = component, w.node
	return o
}

func clip(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-len("…")], "") + "…"
}
