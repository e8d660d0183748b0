package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

// checkDrainFinished is the step that waits until the node is drained. It returns 0 if no pod of the node is being
// evicted or has to be evicted now. Otherwise it returns when to check again. It does not run the drain:
// syncDrainWithNotices runs one drain for all notices.
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
	// flushTimeout is the longest time that an approval waits for unsent Events, unsent notifications and the release
	// of a drain slot.
	flushTimeout = time.Second
	// shortPollInterval is the pause between two checks of work that ends within a second, such as a write of Events.
	shortPollInterval = 20 * time.Millisecond
)

// checkFlushFinished returns 0 if all Events and notifications are sent and the drain slot is released. Otherwise it
// returns when to check again. The platform may remove the instance right after the approval. An Event about a pod that
// was deleted despite its PDB would then be lost (invariant I2: such a deletion is reported). After flushTimeout it
// returns 0 in any case, because an API server outage must not delay the platform.
func (a *Agent) checkFlushFinished(h *noticeState, now time.Time) (recheckAfter time.Duration) {
	if h.approvableSince.IsZero() {
		h.approvableSince = now
	}
	if a.events.isIdle() && a.areNotificationsSent() && a.isSlotReleased() || now.Sub(h.approvableSince) >= flushTimeout {
		return 0
	}
	return shortPollInterval
}

// isApprovable reports whether the platform waits for an approval of a notice, and accepts an approval with the
// notice's ID.
func isApprovable(n notice.Notice) bool {
	return n.Status != notice.Started && n.Type.HasDeadline() && !n.HasGeneratedID && !n.NotApprovable
}

// approverOf returns the approver of a notice, or nil if it cannot be approved.
func (a *Agent) approverOf(n notice.Notice) Approver {
	if approver, has := a.options.Approvers[n.Source]; has {
		return approver
	}
	return a.options.Approver
}

// approveWhenAllDrained approves the event at the platform once every instance of the event is drained. The platform
// can then begin early. If a drain gave up, approveWhenAllDrained never approves the event.
func (a *Agent) approveWhenAllDrained(ctx context.Context, h *noticeState, now time.Time) (recheckAfter time.Duration, err error) {
	approver := a.approverOf(h.Notice)
	if approver == nil || h.recordedPhase == Acknowledged || !isApprovable(h.Notice) {
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
	err = approver.Approve(ctx, h.Notice.ID)
	if errors.Is(err, notice.ErrApprovedTooEarly) {
		a.logWaitingForPlatform(h, err)
		return earlyApprovalInterval, nil
	}
	if err != nil {
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

// earlyApprovalInterval is the pause after an approval that the platform does not await yet. An Auto Scaling group of AWS awaits
// it only after it has deregistered the instance from its load balancers, which takes 5 minutes by default.
const earlyApprovalInterval = 10 * time.Second

// peerPollInterval is the shortest pause between two checks whether the other instances of an event are drained. With
// many instances the pause is peerPollPerInstance for each other instance, if that is longer. In a large event each
// agent lists many nodes, so more agents must ask less often.
const (
	peerPollInterval    = 2 * time.Second
	peerPollPerInstance = 10 * time.Millisecond
)

func peerPollDelay(others int) time.Duration {
	return max(peerPollInterval, time.Duration(others)*peerPollPerInstance)
}

const maxNamed = 10

// joinFirstNames joins the first maxNamed names, and appends how many names were left out.
func joinFirstNames(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// NodeLister lists the Nodes of an event's instances. Each agent sets a label for the event on its Node.
type NodeLister interface {
	ListNodes(ctx context.Context, labelSelector string) ([]kubeapi.Node, error)
}

// listUndrainedInstances returns the instances of the event that are not known to be drained, except own. One approval
// lets the platform begin with all instances of the event, so the approval waits for the last instance. An instance
// without a Node, or with a Node that has no label from its agent, counts as not drained (invariant I7: unknown is not
// gone).
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
// event's nodes. If the event names only this instance, it sends no request.
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

// logWaitingForPeers logs the instances that the approval waits for, if they have changed since the last call.
func (a *Agent) logWaitingForPeers(h *noticeState, left []string) {
	if who := joinFirstNames(left); who != h.waitsFor {
		h.waitsFor = who
		a.log.Info("drained; waiting for other instances of the event to be drained", "id", h.Notice.ID, "waitsFor", who)
	}
}

// logWaitingForPlatform logs that the platform does not await the approval yet, unless the previous try had the same result.
func (a *Agent) logWaitingForPlatform(h *noticeState, err error) {
	if who := "the platform, because it does not await the approval yet"; who != h.waitsFor {
		h.waitsFor = who
		a.log.Info("drained; will approve when the platform awaits it", "id", h.Notice.ID, "err", err)
	}
}
