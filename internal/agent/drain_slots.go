package agent

import (
	"context"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// maxDrainLead is the most time that a notice reserves for its drain. A notice stops waiting for a drain slot or
// another tool at latest this long before its deadline. Azure announces every interruption that can wait at least this
// early. With usual grace periods a drain takes half of it.
const maxDrainLead = 10 * time.Minute

// DrainSlots limits how many nodes of the cluster are drained at once. *semaphore.Holder implements it.
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

// maxUrgentTermination is the longest time of a Terminate that cannot wait. It is the longest timeout of an Auto Scaling
// group's lifecycle hook. Only a retirement is announced earlier. Heartbeats can extend a hook to 48 hours, but its notice
// has no time, because the termination has begun.
const maxUrgentTermination = 2 * time.Hour

// isFinal reports whether the instance ends with the notice.
func (h *noticeState) isFinal() bool {
	return h.Notice.Type == notice.Preempt || h.Notice.Type == notice.Terminate
}

// canWait reports whether the drain of a notice may wait for a drain slot or for another tool. The drain of a Preempt
// or Terminate may not, because these notices leave too little time. A retirement that is known early may.
func (h *noticeState) canWait() bool {
	isEarly := h.Notice.Type == notice.Terminate && !h.Notice.NotBefore.IsZero() && h.Decision.Deadline.Sub(h.Seen.First) > maxUrgentTermination
	return !h.isFinal() || isEarly
}

// waitDeadline returns when a notice stops waiting for a drain slot or for another tool. It is the middle between the
// first read of the notice and its deadline, or maxDrainLead before the deadline if that is later. Zero means no limit:
// a condition has no deadline.
func (h *noticeState) waitDeadline() time.Time {
	due := h.Decision.Deadline
	if due.IsZero() {
		return time.Time{}
	}
	return due.Add(-min(max(0, due.Sub(h.Seen.First))/2, maxDrainLead))
}

// isUrgent reports whether a notice can no longer wait for a drain slot or for another tool.
func (h *noticeState) isUrgent(now time.Time) bool {
	until := h.waitDeadline()
	return !h.canWait() || !until.IsZero() && !now.Before(until)
}

// untilWaitDeadline returns the time until a waiting notice is checked again, at most idleInterval.
func (h *noticeState) untilWaitDeadline(now time.Time) time.Duration {
	if until := h.waitDeadline(); !until.IsZero() {
		return min(until.Sub(now), idleInterval)
	}
	return idleInterval
}

// isWaitingForSlot reports whether the drain of a notice has to wait because all drain slots are taken.
func (a *Agent) isWaitingForSlot(h *noticeState, now time.Time) bool {
	return a.options.DrainSlots != nil && !a.options.DryRun && h.Phase != Redraining && !h.isUrgent(now) && !a.options.DrainSlots.IsHeld()
}

// needsDrainSlot reports whether this node needs a drain slot, and until when it waits for one. Zero means that it
// waits without limit. A running drain keeps its slot until it ends, even after the end of the wait for one.
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

// updateSlotRequest requests a drain slot while the node needs one, and releases the slot afterwards.
func (a *Agent) updateSlotRequest(now time.Time) {
	if a.options.DrainSlots != nil {
		a.options.DrainSlots.SetWanted(a.needsDrainSlot(now))
	}
}

// isSlotReleased reports whether this node holds no drain slot, so that no other node waits for it.
func (a *Agent) isSlotReleased() bool {
	return a.options.DrainSlots == nil || a.options.DrainSlots.IsReleased()
}

// reportWaitingForSlot reports once for each notice that its drain waits, and names the nodes that hold the drain
// slots.
func (a *Agent) reportWaitingForSlot(h *noticeState) {
	holders := a.options.DrainSlots.Holders()
	if len(holders) == 0 || !h.setLastMessageIfChanged(WaitingForTurn, "") {
		return
	}
	a.log.Info("waiting for a drain slot", "id", h.Notice.ID, "type", h.Notice.Type, "nodes", holders,
		"until", h.waitDeadline())
	a.events.queueEvent(newWaitingForSlotEvent(h.Notice, holders, h.waitDeadline()))
}
