package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notify"
)

// noticeState is what the agent knows of one notice. The exported part is recorded on the Node, and a restarted agent
// continues from it.
type noticeState struct {
	Notice   notice.Notice `json:"notice"`
	Seen     Seen          `json:"seen"`
	Decision Decision      `json:"decision"`
	Phase    Phase         `json:"phase"`
	// Told are the moments that receivers of notifications were told of.
	Told []notify.Moment `json:"told,omitempty"`
	// Began is when the node's pods were first asked to leave on account of it.
	Began time.Time `json:"began,omitzero"`
	// Trace is the traceparent of the notice's first span.
	Trace string `json:"trace,omitempty"`

	claim claim
	// said holds the last message by occasion, so that each is sent once.
	said map[EventReason]string

	// recorded is the phase that the record is to show; see Phase.recorded.
	recorded Phase
	listed   bool      // this process has read the notice
	missing  time.Time // since when the notice is no longer listed
	waitsFor string    // whom or what its acknowledgement waits for, in words
	// asked is when the node was first asked to be cordoned.
	asked time.Time
	// approvable is since when nothing but our own Events keeps it from being acknowledged.
	approvable time.Time
	account    account // of its drain, for notifications
	// shown is what the node's conditions say of what blocks its drain.
	shown string
}

// isNews reports that the last message of an occasion was another one, and notes this one.
func (h *noticeState) isNews(on EventReason, what string) bool {
	if before, said := h.said[on]; said && before == what {
		return false
	}
	if h.said == nil {
		h.said = map[EventReason]string{}
	}
	h.said[on] = what
	return true
}

// dying is how long a machine that is being taken away may outlive the notice that said so.
const dying = time.Minute

// lingers is for how much longer a notice that is no longer listed is held on to. One that takes the machine away for
// good and had begun, or was allowed to, vanishes while the machine is going down: uncordoning the node now would bring
// pods to it for its last seconds. A machine that is still there after a minute has been spared. So has one that only an
// earlier agent knew to be due, and that is still there a minute after its deadline.
func (h *noticeState) lingers(now time.Time) time.Duration {
	final := h.Notice.Type == notice.Preempt || h.Notice.Type == notice.Terminate
	begun := h.Notice.Status == notice.Started || h.recorded == Acknowledged
	if !final || !begun {
		return 0
	}
	left := dying - now.Sub(h.missing)
	if !h.listed {
		left = min(left, dying-now.Sub(h.Decision.Deadline))
	}
	return max(0, left)
}

// mark is the label value under which the other machines of an event find this one.
func (h *noticeState) mark() cordon.Phase {
	if h.Decision.Action == Acknowledge {
		return readyMark
	}
	switch h.Phase {
	case Drained, Acknowledged:
		return cordon.Drained
	case Draining:
		return cordon.Draining
	}
	return cordon.Cordoned
}

// wantsDrain reports that the node's pods have to go on account of this notice and have not.
func (h *noticeState) wantsDrain() bool {
	return h.Decision.Action.drains() && (h.Phase.isUndecided() || h.Phase == Cordoned || h.Phase.isDraining())
}

// isDue reports that the pods have to go now, as soon as the drain can start.
func (a *Agent) isDue(h *noticeState, now time.Time) bool {
	return h.wantsDrain() && h.Phase != Yielded && !a.waitsForSlot(h, now)
}

// canStart reports that draining can begin: once the node is cordoned, since pods would come back otherwise; what else
// is to be put on it can wait. When that cannot be had and a quarter of the time is gone, pods that may come back are better
// than pods that are lost.
func (a *Agent) canStart(h *noticeState, now time.Time) bool {
	return h.claim.isWritten() || a.unschedulable || h.Decision.Forced && !now.Before(h.drainsUncordoned())
}

// drainsUncordoned is when a forced drain starts although the node could not be cordoned: after a quarter of its time.
func (h *noticeState) drainsUncordoned() time.Time {
	return h.Seen.First.Add(h.Decision.Deadline.Sub(h.Seen.First) / 4)
}

// inOrder returns the notices that something may be done about, the most urgent first.
func (a *Agent) inOrder() []*noticeState {
	now := time.Now()
	all := make([]*noticeState, 0, len(a.handled))
	for _, h := range a.handled {
		if h.Phase != Releasing && a.isConfirmed(h, now) {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(x, y *noticeState) int {
		return cmp.Or(cmp.Compare(x.rank(), y.rank()), x.Decision.Deadline.Compare(y.Decision.Deadline),
			strings.Compare(x.Notice.ID, y.Notice.ID))
	})
	return all
}

// rank puts first a notice whose drain can be put off for nothing, and last one that is never due.
func (h *noticeState) rank() int {
	switch {
	case !h.canWait() && h.Decision.Action.drains():
		return 0
	case h.Decision.Deadline.IsZero():
		return 2
	}
	return 1
}

// restore reads, once, what an earlier agent left on the node. Until it is read nothing else is done: the notice that
// is being handled might look like a new one.
func (a *Agent) restore(ctx context.Context) error {
	if a.restored {
		return nil
	}
	node, err := a.readNode(ctx)
	if err != nil {
		return fmt.Errorf("node %s: what is on it cannot be read: %w", a.o.Node, err)
	}
	if a.keeper, err = cordon.New(a.o.API, node.Name, node.UID); err != nil {
		return err
	}
	a.events.about(node.UID)
	records, problems := cordon.List(node)
	for _, err := range problems {
		a.log.Error("annotation on the node cannot be understood, and stays", "err", err)
	}
	for _, r := range records {
		a.resume(r)
	}
	for source, s := range a.snapshots {
		a.confirm(source, s)
	}
	for _, source := range a.o.Sources {
		if s, ok := source.(Resumer); ok {
			s.Resume(a.handledFrom(source.Name()))
		}
	}
	a.others, a.looked = cordon.Others(node), len(a.nodeSources()) > 0
	a.restored = true
	if !a.ready.Swap(true) {
		a.events.emit(unspoken(Guarding, notice.Notice{}))
	}
	return nil
}

// readNode gives the Node that was found at the start, and afterwards reads it.
func (a *Agent) readNode(ctx context.Context) (*kubeapi.Node, error) {
	if found := a.o.Found; found != nil {
		a.o.Found = nil
		return found, nil
	}
	return a.o.API.GetNode(ctx, a.o.Node)
}

// resume takes up what an earlier agent recorded. Records of other owners, such as a manager, are not ours to judge.
func (a *Agent) resume(r cordon.Record) {
	var h noticeState
	if err := json.Unmarshal(r.State, &h); err != nil || h.Notice.ID == "" || owner(h.Notice.Source, h.Notice.ID) != r.Owner {
		a.log.Info("the node is held by another", "owner", r.Owner, "reason", r.Reason)
		return
	}
	if a.handled[r.Owner] != nil {
		return // the Node was read again; what is in memory is newer
	}
	// A record without a cordon may be the rest of one that could not be taken away whole, and is made sure of.
	h.recorded = h.Phase
	a.take(&h, inputResumed, time.Now())
	h.claim.state = claimUncertain
	if r.Cordon != "" {
		h.claim = claim{claimWritten, true}
	}
	a.handled[r.Owner] = &h
	a.log.Info("going on where an earlier agent stopped", "id", h.Notice.ID, "type", h.Notice.Type, "phase", h.Phase)
}

// handledFrom lists the notices of one source that are being handled.
func (a *Agent) handledFrom(source string) []notice.Notice {
	var all []notice.Notice
	for _, h := range a.handled {
		if h.Notice.Source == source {
			all = append(all, h.Notice)
		}
	}
	return all
}
