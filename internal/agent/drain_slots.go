package agent

import (
	"context"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// longestLead is how long before its deadline a notice stops waiting at the earliest, for its turn or for another tool.
// It is what Azure promises for the shortest of the notices that wait; with the usual graces, a node is drained in half.
const longestLead = 10 * time.Minute

// Slots limits how many nodes of the cluster are drained at once. *slots.Keeper is one.
type Slots interface {
	// Want says whether a slot is wanted from now on, and until when it is waited for; zero is for ever. It does not block.
	Want(wanted bool, until time.Time)
	// Held reports whether one is ours at this moment.
	Held() bool
	// GivenBack reports that none bears our name any more.
	GivenBack() bool
	// Holders names who has the slots, while none is ours.
	Holders() []string
	// Run contends until ctx ends, and calls changed when one of the above may answer otherwise.
	Run(ctx context.Context, changed func())
}

// canWait reports a notice whose drain can be put off: a Preempt or Terminate comes with too little time for that.
func (h *noticeState) canWait() bool {
	return h.Notice.Type != notice.Preempt && h.Notice.Type != notice.Terminate
}

// latestWait is until when a voluntary notice waits, for its turn or for another tool: for half of the time that it had,
// and longer where ten minutes are left even so. Zero is for as long as it takes: nothing is due for a condition.
func (h *noticeState) latestWait() time.Time {
	due := h.Decision.Deadline
	if due.IsZero() {
		return time.Time{}
	}
	return due.Add(-min(max(0, due.Sub(h.Seen.First))/2, longestLead))
}

// isUrgent reports that a notice waits for nothing any more.
func (h *noticeState) isUrgent(now time.Time) bool {
	until := h.latestWait()
	return !h.canWait() || !until.IsZero() && !now.Before(until)
}

// untilLatestWait is when to look at a waiting notice again.
func (h *noticeState) untilLatestWait(now time.Time) time.Duration {
	if until := h.latestWait(); !until.IsZero() {
		return min(until.Sub(now), whenAsked)
	}
	return whenAsked
}

// waitsForSlot reports that the node's pods may not go yet: as many nodes as are allowed at once are being drained.
func (a *Agent) waitsForSlot(h *noticeState, now time.Time) bool {
	return a.o.Slots != nil && !a.o.DryRun && h.Phase != Redraining && !h.isUrgent(now) && !a.o.Slots.Held()
}

// wantsSlot reports that a slot is needed, and until when it is waited for. A drain keeps the one that it has until it
// ends, also when it would no longer wait for one.
func (a *Agent) wantsSlot(now time.Time) (wanted bool, until time.Time) {
	if a.o.DryRun {
		return false, time.Time{}
	}
	for _, h := range a.handled {
		if !h.canWait() || !h.wantsDrain() || h.Phase == Yielded || h.Phase == Redraining || h.isUrgent(now) && !a.o.Slots.Held() {
			continue
		}
		if !a.isConfirmed(h, now) && (h.recorded != Draining || h.isUrgent(now)) {
			continue // a slot that an earlier agent had is kept until the notices are read, and no new one is asked for
		}
		if p := h.latestWait(); !p.IsZero() && (until.IsZero() || p.Before(until)) {
			until = p
		}
		wanted = true
	}
	return wanted, until
}

// claimSlot asks for a slot while one is needed, and gives it back as soon as it is not.
func (a *Agent) claimSlot(now time.Time) {
	if a.o.Slots != nil {
		a.o.Slots.Want(a.wantsSlot(now))
	}
}

// slotGivenBack reports that nobody has to wait for a slot of ours.
func (a *Agent) slotGivenBack() bool { return a.o.Slots == nil || a.o.Slots.GivenBack() }

// sayWaitingForTurn says once for each notice that it waits, and for whom.
func (a *Agent) sayWaitingForTurn(h *noticeState) {
	holders := a.o.Slots.Holders()
	if len(holders) == 0 || !h.isNews(WaitingForTurn, "") {
		return
	}
	a.log.Info("waiting for other nodes to be drained first", "id", h.Notice.ID, "type", h.Notice.Type, "nodes", holders,
		"until", h.latestWait())
	a.events.emit(waitingForTurn(h.Notice, holders, h.latestWait()))
}
