package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
)

// checkNodeAccess finishes when the agent may change the node for this notice.
//
// It leaves the node to another tool that is taking it out of service (I6): AKS node auto-drain, cluster-autoscaler
// or Karpenter. A voluntary notice leaves it to the tool entirely. A forced notice drains when it cannot wait longer
// for the tool, because a second eviction of a pod does no harm. The cordon stays the other tool's.
//
// For a condition it changes nothing until the node may be drained. A faulty detector reports a condition on all
// nodes at once, and they must not all be cordoned at once. For an interruption it cordons immediately, so that pods
// from other instances do not move to an instance that is due too.
func (a *Agent) checkNodeAccess(ctx context.Context, h *noticeState, now time.Time) (recheckAfter time.Duration, err error) {
	if h.Decision.Action.includesCordon() {
		if err := a.readOtherToolsOnce(ctx); err != nil {
			if !h.Decision.Forced || !h.isUrgent(now) || isInterrupted(ctx) {
				return 0, err
			}
			a.log.Warn("cannot read whether another tool is taking the node out of service; draining anyway", "err", err)
		}
		a.reportOtherTools(h, now)
	}
	a.handleInput(h, inputChecked, now)
	switch {
	case h.Phase == Waiting:
		a.reportWaitingForSlot(h)
		return h.untilWaitDeadline(now), nil
	case h.Phase != Yielded:
		return 0, nil
	case h.claim.state == claimOutdated, a.isCordonedByEndedNotice():
		// The record is older than the other tool and says too much, or a notice that has ended still cordons the
		// node.
		if _, err := a.writeClaimIfNeeded(ctx, h, now); err != nil {
			return 0, err
		}
	}
	if h.Decision.Forced {
		return h.untilWaitDeadline(now), nil
	}
	return idleInterval, nil
}

// shouldYield reports that the node is left to the other tools that are removing it.
func (a *Agent) shouldYield(h *noticeState, now time.Time) bool {
	urgent := h.Decision.Forced && h.isUrgent(now)
	return h.Decision.Action.includesCordon() && len(a.otherTools) > 0 && !urgent && !h.Phase.isDrained()
}

// readOtherToolsOnce reads the node once, unless the watch already reads it.
func (a *Agent) readOtherToolsOnce(ctx context.Context) error {
	if a.otherToolsKnown {
		return nil
	}
	ctx, cancel := withHalfRemainingTime(ctx)
	defer cancel()
	node, err := a.options.API.GetNode(ctx, a.options.Node)
	if err != nil {
		return fmt.Errorf("node %s: %w", a.options.Node, err)
	}
	a.otherTools, a.otherToolsKnown = cordon.RemovingTools(node), true
	a.nodeVersion = node.ResourceVersion
	a.claimWriter.ObserveNode(node)
	return nil
}

// reportOtherTools reports the other tools and the consequence, once for each notice and after each change.
func (a *Agent) reportOtherTools(h *noticeState, now time.Time) {
	who := strings.Join(a.otherTools, ", ")
	what := ""
	switch {
	case h.Phase.isDrained():
		what = "its pods are already evicted"
	case a.shouldYield(h, now) && h.Decision.Forced:
		what = "waiting for the other tool, until " + h.waitDeadline().UTC().Format(time.RFC3339) + " at the latest"
	case a.shouldYield(h, now):
		what = "waiting for the other tool"
	default:
		what = "evicting the pods anyway, without changing the cordon"
	}
	if who == "" {
		delete(h.lastMessages, OthersAtWork)
		return
	}
	if !h.setLastMessageIfChanged(OthersAtWork, who+what) {
		return
	}
	a.log.Warn("other tools are taking this node out of service", "others", a.otherTools, "id", h.Notice.ID,
		"type", h.Notice.Type, "consequence", what)
	a.events.queueEvent(newOtherToolsEvent(a.otherTools, h.Notice, what))
}
