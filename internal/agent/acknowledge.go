package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

// awaitDrain goes on when the node is drained, and known to be empty at this moment. Draining itself is steered for all notices
// together.
func (a *Agent) awaitDrain(_ context.Context, h *noticeState, now time.Time) (time.Duration, error) {
	switch {
	case h.wantsEmpty() && !a.keptEmpty(now):
		h.approvable = time.Time{} // what the drain will have to say is to be said before
		return whenAsked, nil
	case h.Decision.Action == Acknowledge && h.Decision.Forced && a.underWay():
		return whenAsked, nil // its pods may stay, and those of the drain are to end in their own time
	case h.Phase.isDrained(), h.Decision.Action == Acknowledge:
		return 0, nil
	case h.wantsDrain() && a.waitsForSlot(h, now):
		a.sayWaitingForTurn(h)
		return h.untilLatestWait(now), nil
	case h.claim.state == claimConditionsPending && a.asksNow(h, now):
		return max(a.quietUntil(h).Sub(now), listenEvery), nil
	case h.claim.state == claimConditionsPending:
		return max(a.conditions.next.Sub(now), listenEvery), nil
	}
	return whenAsked, nil
}

const (
	// lastWords is for how long an acknowledgement waits for what is still to be written.
	lastWords = time.Second
	// listenEvery is the pause between two looks at whether they are.
	listenEvery = 20 * time.Millisecond
)

// sayAll returns when to look again while Events, notifications or a slot's return are still to be sent. The machine may
// go the moment it is allowed to, and with it the only word of a pod that was deleted past its budget (I2). It waits no
// longer than a moment: an API server that is away is no reason to keep the platform waiting.
func (a *Agent) sayAll(h *noticeState, now time.Time) time.Duration {
	if h.approvable.IsZero() {
		h.approvable = now
	}
	if a.events.said() && a.told() && a.slotGivenBack() || now.Sub(h.approvable) >= lastWords {
		return 0
	}
	return listenEvery
}

// approvable reports that the platform waits for leave to begin a notice, and knows it by the notice's ID.
func approvable(n notice.Notice) bool {
	return n.Status != notice.Started && n.Type != notice.Condition && !n.Unnamed
}

// approve lets the platform begin, once every machine of the event is drained. It never does after a drain that did
// not finish.
func (a *Agent) approve(ctx context.Context, h *noticeState, now time.Time) (time.Duration, error) {
	if a.o.Approver == nil || h.recorded == Acknowledged || !approvable(h.Notice) {
		return whenAsked, nil
	}
	left, err := a.peersLeft(ctx, h)
	if err != nil {
		return 0, err
	}
	if len(left) > 0 {
		a.sayWaiting(h, left)
		return askPeersAfter(len(left)), nil
	}
	if wait := a.sayAll(h, now); wait > 0 {
		return wait, nil
	}
	if err := a.o.Approver.Approve(ctx, h.Notice.ID); err != nil {
		if ctx.Err() == nil { // else it was cut short, and is tried again
			h.waitsFor = "the platform, which refused it"
		}
		return 0, err
	}
	a.take(h, inputApproved, now)
	a.trace(h, observe.Span{Name: "acknowledge", Began: h.approvable, Ended: time.Now()})
	a.log.Info("acknowledged", "id", h.Notice.ID, "type", h.Notice.Type, "resources", named(h.Notice.Resources))
	a.events.emit(acknowledged(h.Notice, h.Decision))
	a.o.Metrics.Acknowledged.With(string(h.Notice.Type)).Inc()
	return a.writeClaim(ctx, h, time.Now())
}

// askPeersEvery is the pause between two looks at whether the other machines of an event are drained. Of an event with many
// machines each agent lists many nodes, so that it asks less often: askPeersEach is the pause for each of them.
const (
	askPeersEvery = 2 * time.Second
	askPeersEach  = 10 * time.Millisecond
)

// askPeersAfter is the pause after which the agents of so many other machines are asked again.
func askPeersAfter(others int) time.Duration {
	return max(askPeersEvery, time.Duration(others)*askPeersEach)
}

// mostNamed is how many machines of an event are named in one line of text.
const mostNamed = 10

// named are the first names of a list, and how many more there are.
func named(names []string) string {
	if more := len(names) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// NodeLister finds the other machines of an event by the label that their agents keep.
type NodeLister interface {
	ListNodes(ctx context.Context, labelSelector string) ([]kubeapi.Node, error)
}

// undrained returns the machines of an event that are not known to be drained, own excepted. Approving an event lets
// the platform begin with all of them at once, so that it must wait for the last: a machine whose Node is not there, or
// whose agent says nothing, is not drained (I7).
func undrained(resources []string, own string, drained []kubeapi.Node, machine func(string) (string, error)) []string {
	ready := map[string]bool{strings.ToLower(own): true}
	for _, n := range drained {
		if name, err := machine(n.Spec.ProviderID); err == nil {
			ready[strings.ToLower(name)] = true
		}
	}
	var left []string
	for _, r := range resources {
		if !ready[strings.ToLower(r)] {
			left = append(left, r)
		}
	}
	return left
}

// peersLeft asks the API server which machines of the event are still not drained. It costs one list of the event's
// own nodes, and nothing at all when the event names only this machine.
func (a *Agent) peersLeft(ctx context.Context, h *noticeState) ([]string, error) {
	others := h.Notice.Others(a.o.Resource)
	switch {
	case others == 0:
		return nil, nil
	case h.Notice.Machines > 0: // as recorded: which they are is not known before the notice is read again
		return []string{fmt.Sprintf("%d other machines", others)}, nil
	}
	nodes, err := a.o.API.ListNodes(ctx, drainedSelector(h.Notice.Source, h.Notice.ID))
	if err != nil {
		return nil, fmt.Errorf("which machines of %s are drained: %w", h.Notice.ID, err)
	}
	return undrained(h.Notice.Resources, a.o.Resource, nodes, a.o.Machine), nil
}

// sayWaiting logs whom the acknowledgement waits for, once for each change.
func (a *Agent) sayWaiting(h *noticeState, left []string) {
	if who := named(left); who != h.waitsFor {
		h.waitsFor = who
		a.log.Info("drained; the event names other machines that are not yet", "id", h.Notice.ID, "waitsFor", who)
	}
}
