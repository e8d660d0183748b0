package agent

import (
	"context"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// maxDrainLead is the longest time before its deadline when a notice stops waiting, for a drain slot or for
// another tool. It is what Azure promises for the shortest notice that can wait. With usual grace periods a drain
// takes half of it.
const maxDrainLead = 10 * time.Minute

// DrainSlots limits how many nodes of the cluster are drained at once. *slots.Keeper implements it.
type DrainSlots interface {
	// SetWanted sets whether a slot is needed, and until when it is waited for; zero waits without limit. It does not block.
	SetWanted(wanted bool, until time.Time)
	// IsHeld reports whether this node has a slot now.
	IsHeld() bool
	// IsReleased reports that no slot names this node any more.
	IsReleased() bool
	// Holders returns the nodes that have the slots, while this node has none.
	Holders() []string
	// Run competes for a slot until ctx ends. It calls changed when a method above may return something else.
	Run(ctx context.Context, changed func())
}

// canWait reports that the drain of a notice can be delayed. A Preempt or Terminate gives too little time for that.
func (h *noticeState) canWait() bool {
	return h.Notice.Type != notice.Preempt && h.Notice.Type != notice.Terminate
}

// waitDeadline is until when a notice waits for a drain slot or for another tool. It waits for half of its time, and
// longer if ten minutes still remain then. Zero is no limit: a condition has no deadline.
func (h *noticeState) waitDeadline() time.Time {
	due := h.Decision.Deadline
	if due.IsZero() {
		return time.Time{}
	}
	return due.Add(-min(max(0, due.Sub(h.Seen.First))/2, maxDrainLead))
}

// isUrgent reports that a notice does not wait any longer.
func (h *noticeState) isUrgent(now time.Time) bool {
	until := h.waitDeadline()
	return !h.canWait() || !until.IsZero() && !now.Before(until)
}

// untilWaitDeadline returns when to check a waiting notice again.
func (h *noticeState) untilWaitDeadline(now time.Time) time.Duration {
	if until := h.waitDeadline(); !until.IsZero() {
		return min(until.Sub(now), idleInterval)
	}
	return idleInterval
}

// isWaitingForSlot reports that the drain has to wait, because the limit of concurrent drains is reached.
func (a *Agent) isWaitingForSlot(h *noticeState, now time.Time) bool {
	return a.options.DrainSlots != nil && !a.options.DryRun && h.Phase != Redraining && !h.isUrgent(now) && !a.options.DrainSlots.IsHeld()
}

// needsDrainSlot reports that a slot is needed, and until when it is waited for. A drain keeps its slot until it ends,
// even when it would no longer wait for one.
func (a *Agent) needsDrainSlot(now time.Time) (wanted bool, until time.Time) {
	if a.options.DryRun {
		return false, time.Time{}
	}
	for _, h := range a.notices {
		if !h.canWait() || !h.needsDrain() || h.Phase == Yielded || h.Phase == Redraining || h.isUrgent(now) && !a.options.DrainSlots.IsHeld() {
			continue
		}
		if !a.mayActOnNotice(h, now) && (h.recordedPhase != Draining || h.isUrgent(now)) {
			continue // keep an earlier agent's slot until the notices are read, but take no new one
		}
		if p := h.waitDeadline(); !p.IsZero() && (until.IsZero() || p.Before(until)) {
			until = p
		}
		wanted = true
	}
	return wanted, until
}

// updateSlotRequest requests a slot while one is needed, and releases it otherwise.
func (a *Agent) updateSlotRequest(now time.Time) {
	if a.options.DrainSlots != nil {
		a.options.DrainSlots.SetWanted(a.needsDrainSlot(now))
	}
}

// isSlotReleased reports that other nodes do not wait for a slot of this node.
func (a *Agent) isSlotReleased() bool {
	return a.options.DrainSlots == nil || a.options.DrainSlots.IsReleased()
}

// reportWaitingForSlot reports once for each notice that it waits, and for which nodes.
func (a *Agent) reportWaitingForSlot(h *noticeState) {
	holders := a.options.DrainSlots.Holders()
	if len(holders) == 0 || !h.setLastMessageIfChanged(WaitingForTurn, "") {
		return
	}
	a.log.Info("waiting for a drain slot", "id", h.Notice.ID, "type", h.Notice.Type, "nodes", holders,
		"until", h.waitDeadline())
	a.events.queueEvent(newWaitingForSlotEvent(h.Notice, holders, h.waitDeadline()))
}
