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

// checkDrainFinished finishes when the node is drained and known to be empty now. syncDrainWithNotices runs the drain itself, for all
// notices together.
func (a *Agent) checkDrainFinished(_ context.Context, h *noticeState, now time.Time) (recheckAfter time.Duration, err error) {
	switch {
	case h.keepsNodeEmpty() && !a.isKnownEmpty(now):
		h.approvableSince = time.Time{} // the new drain may queue Events, and they are sent before the approval
		return idleInterval, nil
	case h.Decision.Action == Acknowledge && h.Decision.Forced && a.isDrainRunning():
		return idleInterval, nil // its pods may stay, but the drain's pods should end in their own time
	case h.Phase.isDrained(), h.Decision.Action == Acknowledge:
		return 0, nil
	case h.needsDrain() && a.isWaitingForSlot(h, now):
		a.reportWaitingForSlot(h)
		return h.untilWaitDeadline(now), nil
	case h.claim.state == claimConditionsPending && a.isThrottled(h, now):
		return max(a.throttleEndFor(h).Sub(now), shortPollInterval), nil
	case h.claim.state == claimConditionsPending:
		return max(a.conditionBackoff.next.Sub(now), shortPollInterval), nil
	}
	return idleInterval, nil
}

const (
	// flushTimeout limits how long an approval waits for unsent Events and notifications.
	flushTimeout = time.Second
	// shortPollInterval is the pause between two checks of something that ends soon.
	shortPollInterval = 20 * time.Millisecond
)

// checkFlushFinished returns when to check again while Events, notifications or the release of a drain slot are unsent. The
// platform may remove the instance right after the approval. An Event about a pod deleted despite its PDB would then
// be lost (I2). The wait is at most flushTimeout, because an API server outage must not delay the platform.
func (a *Agent) checkFlushFinished(h *noticeState, now time.Time) (recheckAfter time.Duration) {
	if h.approvableSince.IsZero() {
		h.approvableSince = now
	}
	if a.events.isIdle() && a.areNotificationsSent() && a.isSlotReleased() || now.Sub(h.approvableSince) >= flushTimeout {
		return 0
	}
	return shortPollInterval
}

// isApprovable reports that the platform waits for an approval of a notice and accepts the notice's ID for it.
func isApprovable(n notice.Notice) bool {
	return n.Status != notice.Started && n.Type != notice.Condition && !n.HasGeneratedID
}

// approveWhenAllDrained tells the platform to begin, once every instance of the event is drained. After a drain that gave up,
// it never does.
func (a *Agent) approveWhenAllDrained(ctx context.Context, h *noticeState, now time.Time) (recheckAfter time.Duration, err error) {
	if a.options.Approver == nil || h.recordedPhase == Acknowledged || !isApprovable(h.Notice) {
		return idleInterval, nil
	}
	left, err := a.listUndrainedPeers(ctx, h)
	if err != nil {
		return 0, err
	}
	if len(left) > 0 {
		a.logWaitingForPeers(h, left)
		return peerPollDelay(len(left)), nil
	}
	if wait := a.checkFlushFinished(h, now); wait > 0 {
		return wait, nil
	}
	if err := a.options.Approver.Approve(ctx, h.Notice.ID); err != nil {
		if ctx.Err() == nil { // otherwise the request was interrupted, and is retried
			h.waitsFor = "the platform, because it refused the approval"
		}
		return 0, err
	}
	a.handleInput(h, inputApproved, now)
	a.recordSpan(h, observe.Span{Name: "acknowledge", Began: h.approvableSince, Ended: time.Now()})
	a.log.Info("acknowledged", "id", h.Notice.ID, "type", h.Notice.Type, "resources", joinFirstNames(h.Notice.Resources))
	a.events.queueEvent(newAcknowledgedEvent(h.Notice, h.Decision))
	a.options.Metrics.Acknowledged.With(string(h.Notice.Type)).Inc()
	return a.writeClaimIfNeeded(ctx, h, time.Now())
}

// peerPollInterval is the least pause between two checks whether the other instances of an event are drained. An
// event with many instances makes each agent list many nodes. So each other instance adds peerPollPerInstance to the
// pause, if that makes it longer than the least.
const (
	peerPollInterval    = 2 * time.Second
	peerPollPerInstance = 10 * time.Millisecond
)

func peerPollDelay(others int) time.Duration {
	return max(peerPollInterval, time.Duration(others)*peerPollPerInstance)
}

const maxNamed = 10

// joinFirstNames joins the first maxNamed names and says how many more there are.
func joinFirstNames(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// NodeLister finds the other instances of an event by the label that their agents set.
type NodeLister interface {
	ListNodes(ctx context.Context, labelSelector string) ([]kubeapi.Node, error)
}

// listUndrainedInstances returns the event's instances that are not known to be drained, without ownName. An approval lets the
// platform begin with all instances of an event at once, so it waits for the last one. An instance without a Node, or
// without a label from its agent, is not drained (I7).
func listUndrainedInstances(resources []string, ownName string, drainedNodes []kubeapi.Node, nameOfProviderID func(string) (string, error)) []string {
	ready := map[string]bool{strings.ToLower(ownName): true}
	for _, n := range drainedNodes {
		if name, err := nameOfProviderID(n.Spec.ProviderID); err == nil {
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

// listUndrainedPeers returns the other instances of the event that are not drained. It sends one list request for the
// event's nodes, and none if the event names only this instance.
func (a *Agent) listUndrainedPeers(ctx context.Context, h *noticeState) ([]string, error) {
	others := h.Notice.CountOtherInstances(a.options.ResourceName)
	switch {
	case others == 0:
		return nil, nil
	case h.Notice.InstanceCount > 0: // a record holds only their number, until the notice is read again
		return []string{fmt.Sprintf("%d other instances", others)}, nil
	}
	nodes, err := a.options.API.ListNodes(ctx, drainedNodesSelector(h.Notice.Source, h.Notice.ID))
	if err != nil {
		return nil, fmt.Errorf("notice %s: cannot list the drained instances: %w", h.Notice.ID, err)
	}
	return listUndrainedInstances(h.Notice.Resources, a.options.ResourceName, nodes, a.options.InstanceName), nil
}

// logWaitingForPeers logs which instances the approval waits for, once for each change.
func (a *Agent) logWaitingForPeers(h *noticeState, left []string) {
	if who := joinFirstNames(left); who != h.waitsFor {
		h.waitsFor = who
		a.log.Info("drained; waiting for other instances of the event to be drained", "id", h.Notice.ID, "waitsFor", who)
	}
}
