package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
)

// checkNodeAccess is the step that waits until the agent may change the node for this notice.
//
// If another tool is removing the node, the agent leaves the node to that tool (invariant I6). Such tools are AKS node
// auto-drain, cluster-autoscaler and Karpenter. A voluntary notice leaves the whole drain to the tool. A forced notice
// waits for the tool until its wait deadline, and then drains: a second eviction of a pod does no harm. The agent never
// takes over the tool's cordon.
//
// For a condition, the agent does not change the node until the drain may begin. A faulty detector can report a
// condition on all nodes at once, and they must not all be cordoned. For an interruption, the agent cordons the node
// immediately. Otherwise pods from one interrupted instance could move to another one.
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
	if waits := a.findDrainDelay(h, now); waits != h.DrainWaitsFor {
		h.DrainWaitsFor = waits
		h.claim.markOutdated()
	}
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

// findDrainDelay returns what delays the start of the drain for a notice; empty if nothing does.
func (a *Agent) findDrainDelay(h *noticeState, now time.Time) string {
	switch {
	case h.Phase == Yielded && h.Decision.Action.includesDrain():
		return "another tool: " + strings.Join(a.otherTools, ", ")
	case h.Phase == Cordoned && h.needsDrain() && a.isWaitingForSlot(h, now):
		return "a drain slot"
	}
	return ""
}

// shouldYield reports whether the agent leaves the node to other tools that are removing it.
func (a *Agent) shouldYield(h *noticeState, now time.Time) bool {
	urgent := h.Decision.Forced && h.isUrgent(now)
	return h.Decision.Action.includesCordon() && len(a.otherTools) > 0 && !urgent && !h.Phase.isDrained()
}

// readOtherToolsOnce reads from the node which other tools are removing it. It sends no request if they are known, for
// example from the watch.
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

// reportOtherTools reports which other tools are removing the node, and what the agent does. It reports once for each
// notice, and again after each change.
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
