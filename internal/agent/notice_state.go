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

// noticeState is the agent's state for one notice. The exported fields are recorded on the Node, and a restarted
// agent continues from them.
type noticeState struct {
	Notice   notice.Notice `json:"notice"`
	Seen     SeenTimes     `json:"seen"`
	Decision Decision      `json:"decision"`
	Phase    Phase         `json:"phase"`
	// NotifiedMoments lists the moments for which notifications were queued.
	NotifiedMoments []notify.Moment `json:"told,omitempty"`
	// DrainStarted is when the first eviction for this notice was requested.
	DrainStarted time.Time `json:"began,omitzero"`
	// DrainWaitsFor is what delays the start of the drain, for people; empty if nothing does.
	DrainWaitsFor string `json:"drainWaitsFor,omitempty"`
	// TraceParent is the traceparent of the notice's first span.
	TraceParent string `json:"trace,omitempty"`

	claim claim
	// lastMessages holds the last message for each reason, so each message is sent once.
	lastMessages map[EventReason]string

	// recordedPhase is the phase in the record; see Phase.toRecordedPhase.
	recordedPhase Phase
	listed        bool      // this process has read the notice
	missingSince  time.Time // since when the notice is not listed
	waitsFor      string    // what its approval waits for, for log lines
	// cordonRequestedAt is when a cordon was first requested.
	cordonRequestedAt time.Time
	// approvableSince is since when only unsent Events and notifications delay its approval.
	approvableSince time.Time
	drainResult     drainResult // of its drain, for notifications
	// shownProgress is the progress of its blocked drain that the node's conditions show.
	shownProgress string
}

// setLastMessageIfChanged stores the last message for an Event reason, and reports whether the message has changed.
func (h *noticeState) setLastMessageIfChanged(reason EventReason, message string) (changed bool) {
	if before, exists := h.lastMessages[reason]; exists && before == message {
		return false
	}
	if h.lastMessages == nil {
		h.lastMessages = map[EventReason]string{}
	}
	h.lastMessages[reason] = message
	return true
}

// terminationTime is the longest time that an instance may run after its Preempt or Terminate has vanished from the
// platform's list.
const terminationTime = time.Minute

// timeUntilEnded returns how much longer a notice counts as active after the platform no longer lists it. It returns 0
// except for a started or approved Preempt or Terminate, which may vanish from the list while the instance shuts down.
// If the agent uncordoned the node in that time, new pods would start there for a few seconds. An instance that still
// runs after terminationTime survives. If only an earlier agent read the notice, terminationTime after the deadline is
// enough too.
func (h *noticeState) timeUntilEnded(now time.Time) time.Duration {
	begun := h.Notice.Status == notice.Started || h.recordedPhase == Acknowledged
	if !h.isFinal() || !begun {
		return 0
	}
	left := terminationTime - now.Sub(h.missingSince)
	if !h.listed {
		left = min(left, terminationTime-now.Sub(h.Decision.Deadline))
	}
	return max(0, left)
}

// phaseLabelValue returns the value of the node's phase label for this notice. The agents of the event's other
// instances read this label.
func (h *noticeState) phaseLabelValue() cordon.Phase {
	if h.Decision.Action == Acknowledge {
		return readyLabel
	}
	switch h.Phase {
	case Drained, Acknowledged:
		return cordon.Drained
	case Draining:
		return cordon.Draining
	}
	return cordon.Cordoned
}

// needsDrain reports whether this notice requires the eviction of pods that have not left yet.
func (h *noticeState) needsDrain() bool {
	return h.Decision.Action.includesDrain() && (h.Phase.isUndecided() || h.Phase == Cordoned || h.Phase.isDraining())
}

// isDrainDue reports whether the drain for this notice has no reason to wait, except that the node may not be cordoned
// yet.
func (a *Agent) isDrainDue(h *noticeState, now time.Time) bool {
	return h.needsDrain() && h.Phase != Yielded && !a.isWaitingForSlot(h, now)
}

// canStartDrain reports whether the drain may evict pods now. Before, the node has to be cordoned, because evicted pods
// could come back otherwise. The rest of the claim can be written later. A forced drain also starts without a cordon,
// once a quarter of its time has passed. A pod that may come back is better than a pod that is lost.
func (a *Agent) canStartDrain(h *noticeState, now time.Time) bool {
	return h.claim.isWritten() || a.unschedulable || h.Decision.Forced && !now.Before(h.uncordonedDrainStart())
}

// uncordonedDrainStart returns when a forced drain starts although the node is not cordoned: after a quarter of the
// time between the first read and the deadline.
func (h *noticeState) uncordonedDrainStart() time.Time {
	return h.Seen.First.Add(h.Decision.Deadline.Sub(h.Seen.First) / 4)
}

// activeNoticesByUrgency returns the notices that the agent may act on and that have not ended, the most urgent first.
func (a *Agent) activeNoticesByUrgency() []*noticeState {
	now := time.Now()
	all := make([]*noticeState, 0, len(a.notices))
	for _, h := range a.notices {
		if h.Phase != Releasing && a.mayActOnNotice(h, now) {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(x, y *noticeState) int {
		return cmp.Or(cmp.Compare(x.urgencyRank(), y.urgencyRank()), x.Decision.Deadline.Compare(y.Decision.Deadline),
			strings.Compare(x.Notice.ID, y.Notice.ID))
	})
	return all
}

// urgencyRank returns the rank of a notice in the order of work; the lowest comes first. It is 0 for a drain that
// cannot wait, 2 for a notice without a deadline, and 1 for all others.
func (h *noticeState) urgencyRank() int {
	switch {
	case !h.canWait() && h.Decision.Action.includesDrain():
		return 0
	case h.Decision.Deadline.IsZero():
		return 2
	}
	return 1
}

// resumeFromRecordsOnce reads what an earlier agent has recorded on the node, once after the start. The agent does
// nothing before, because a notice that the earlier agent was handling would look new.
func (a *Agent) resumeFromRecordsOnce(ctx context.Context) error {
	if a.recordsRead {
		return nil
	}
	node, err := a.takeInitialOrReadNode(ctx)
	if err != nil {
		return fmt.Errorf("read node %s: %w", a.options.Node, err)
	}
	if a.claimWriter, err = cordon.NewClaimWriter(a.options.API, node.Name, node.UID); err != nil {
		return err
	}
	a.events.setNode(node)
	records, problems := cordon.ListRecords(node)
	for _, err := range problems {
		a.log.Error("cannot parse an annotation of the node; it stays", "err", err)
	}
	for _, r := range records {
		a.resumeNoticeFromRecord(r)
	}
	for source, s := range a.snapshots {
		a.extendPassedDeadlines(source, s)
	}
	for _, source := range a.options.Sources {
		if s, ok := source.(Resumer); ok {
			s.ResumeNotices(a.noticesFrom(source.Name()))
		}
	}
	a.otherTools, a.otherToolsKnown = cordon.RemovingTools(node), len(a.nodeSources()) > 0
	a.recordsRead = true
	if !a.ready.Swap(true) {
		a.events.queueEvent(newSilentEvent(Guarding, notice.Notice{}))
	}
	return nil
}

// takeInitialOrReadNode returns Options.InitialNode on the first call. Every later call reads the Node from the API server.
func (a *Agent) takeInitialOrReadNode(ctx context.Context) (*kubeapi.Node, error) {
	if found := a.options.InitialNode; found != nil {
		a.options.InitialNode = nil
		return found, nil
	}
	return a.options.API.GetNode(ctx, a.options.Node)
}

// resumeNoticeFromRecord restores the state of a notice from the record of an earlier agent. It ignores the records of
// other owners, such as a manager.
func (a *Agent) resumeNoticeFromRecord(r cordon.Record) {
	var h noticeState
	if err := json.Unmarshal(r.State, &h); err != nil || h.Notice.ID == "" || notice.ClaimOwner(h.Notice.Source, h.Notice.ID) != r.Owner {
		a.log.Info("the node has a cordon claim of another owner", "owner", r.Owner, "reason", r.Reason)
		return
	}
	if (h.Notice.Source == notice.AWSQueue) != a.options.ForAWSQueue {
		return // the agent of the other mode handles it
	}
	if a.notices[r.Owner] != nil {
		return // the Node was read again; the state in memory is newer
	}
	// A record without a cordon may be the rest of a claim that was only partly removed. So it is written or removed
	// again.
	h.recordedPhase = h.Phase
	a.mayHaveLeftRequests = a.mayHaveLeftRequests || h.Phase.isDraining()
	a.handleInput(&h, inputResumed, time.Now())
	h.claim.state = claimUncertain
	if r.Cordon != "" {
		h.claim = claim{claimWritten, true}
	}
	a.notices[r.Owner] = &h
	a.log.Info("continuing a notice of an earlier agent", "id", h.Notice.ID, "type", h.Notice.Type, "phase", h.Phase)
}

// noticesFrom returns the notices of one source that the agent is handling.
func (a *Agent) noticesFrom(source string) []notice.Notice {
	var all []notice.Notice
	for _, h := range a.notices {
		if h.Notice.Source == source {
			all = append(all, h.Notice)
		}
	}
	return all
}
