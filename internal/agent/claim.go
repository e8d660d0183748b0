package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/observe"
)

// conditionReason is the reason field of Slipway's lifecycle conditions.
const conditionReason = "Slipway"

// claimState says what a notice has set on the Node, as far as this process knows.
type claimState int

const (
	claimNone      claimState = iota // nothing
	claimUncertain                   // perhaps something: a request failed, or has no answer yet
	claimWritten
	claimOutdated          // written, but the record is outdated
	claimConditionsPending // written without its conditions: they can wait, or failed
	claimConditionsLeft    // removed except for its conditions: that failed
)

// claim is what a notice has set on the Node: the record, and what the record lists.
type claim struct {
	state claimState
	// hasCordon is true while the claim includes the cordon. It is false if the action does not cordon, or another
	// tool has cordoned the Node.
	hasCordon bool
}

// isWritten reports that the claim is on the Node. Its conditions and its newest record may be missing.
func (c claim) isWritten() bool { return c.isCurrent() || c.state == claimOutdated }

// isCurrent reports that the newest record is written. The conditions may be missing.
func (c claim) isCurrent() bool { return c.state == claimWritten || c.state == claimConditionsPending }

// markOutdated makes a written claim be written again.
func (c *claim) markOutdated() {
	if c.isCurrent() {
		c.state = claimOutdated
	}
}

// claimOwner is the owner name of a notice's cordon claim.
func claimOwner(source, id string) string { return source + "-" + id }

// readyLabel is the label value of a node that needs no drain before the interruption.
const readyLabel cordon.Phase = "ready"

// drainedNodesSelector selects the nodes that are drained for a notice, or need no drain.
func drainedNodesSelector(source, id string) string {
	return fmt.Sprintf("%s in (%s,%s)", cordon.LabelKey(claimOwner(source, id)), cordon.Drained, readyLabel)
}

// buildClaimSpec returns the cordon claim that h needs on the Node.
func (a *Agent) buildClaimSpec(h *noticeState) (cordon.ClaimSpec, error) {
	recorded := *h
	recorded.Phase = h.recordedPhase
	recorded.Notice = h.Notice.TrimForRecord(a.options.ResourceName)
	state, err := json.Marshal(&recorded)
	if err != nil {
		return cordon.ClaimSpec{}, fmt.Errorf("encode the record of the cordon claim: %w", err)
	}
	r := cordon.ClaimSpec{
		Reason:        h.Decision.Reason,
		Unschedulable: h.Decision.Action.includesCordon() && (h.claim.hasCordon || len(a.otherTools) == 0 || a.isCordonedByEndedNotice()),
		Phase:         recorded.phaseLabelValue(),
		State:         state,
		Conditions:    lifecycleConditions(&recorded),
		Labels:        a.options.Labels,

		LabelOnlyOwnCordon: a.options.LabelOwnCordon,
	}
	if a.options.Taint.Effect != "" && r.Unschedulable && (a.options.Taint.Effect != noExecute || h.Phase.isDrained()) {
		r.Taints = []cordon.Taint{a.options.Taint.ForNotice(h.Notice)}
	}
	return r, nil
}

// writeClaimIfNeeded cordons the Node and updates the record, before others are told to rely on it. It sends nothing if
// nothing has changed.
func (a *Agent) writeClaimIfNeeded(ctx context.Context, h *noticeState, now time.Time) (recheckAfter time.Duration, err error) {
	if a.options.DryRun {
		if h.setLastMessageIfChanged(NodeCordoned, h.Decision.Reason) {
			a.log.Info("dry run: the cordon claim would be written", "id", h.Notice.ID, "action", h.Decision.Action)
		}
		return idleInterval, nil
	}
	g := a.computeTransitionGuard(h, now)
	g.canStartDrain = true // true once the claim is written, so one request records both
	next := *h
	next.applyTransition(inputChecked, g, now)
	later := a.isThrottled(&next, now) || a.isForcedDrainPending(now)
	shown := ""
	if p := a.blockedProgress(h); p != nil {
		shown = observe.ClipBytes(p.String(), maxEventMessageBytes)
	}
	if h.shownProgress != shown && !later {
		h.shownProgress = shown
		h.claim.markOutdated()
	}
	if !a.needsClaimWrite(h, now, later) {
		return 0, nil
	}
	next.shownProgress = h.shownProgress
	r, err := a.buildClaimSpec(&next)
	if err != nil {
		return 0, err
	}
	untilRetry := a.conditionBackoff.timedOut && a.conditionBackoff.next.After(now) // conditions are not written before the retry
	r.DeferConditions = later || untilRetry
	err = a.sendClaim(ctx, h, r)
	if err != nil && !cordon.IsConditionsError(err) {
		return 0, err
	}
	switch {
	case err != nil:
		a.backOffAfterConditionFailure(err)
	case !r.DeferConditions:
		a.resetConditionBackoff()
		h.claim.state = claimWritten
	}
	h.recordedPhase = next.recordedPhase
	a.handleInput(h, inputChecked, now)
	return 0, nil
}

// needsClaimWrite reports that the claim has to be written. later says that its conditions can wait.
func (a *Agent) needsClaimWrite(h *noticeState, now time.Time, later bool) bool {
	switch h.claim.state {
	case claimWritten:
	case claimConditionsPending:
		if !later && !now.Before(a.conditionBackoff.next) {
			return true
		}
	default:
		return true
	}
	if h.claim.hasCordon {
		return a.nodeWatch.isUncordoned()
	}
	return h.Decision.Action.includesCordon() && len(a.otherTools) == 0 // another tool had cordoned it
}

func (a *Agent) sendClaim(ctx context.Context, h *noticeState, r cordon.ClaimSpec) error {
	ended := a.endedNoticesWithClaims()
	if r.Unschedulable {
		r.ReplacedOwners = slices.Sorted(maps.Keys(ended))
	}
	if h.cordonRequestedAt.IsZero() {
		h.cordonRequestedAt = time.Now()
	}
	if !h.claim.isWritten() {
		h.claim.state = claimUncertain // the claim takes several requests, and a failed one may have had an effect (I3)
	}
	for _, name := range r.ReplacedOwners {
		ended[name].claim.state = claimUncertain
	}
	out, err := a.claimWriter.WriteClaim(ctx, claimOwner(h.Notice.Source, h.Notice.ID), r)
	if out.Node != nil {
		a.nodeVersion, a.unschedulable = out.Node.ResourceVersion, out.Node.Spec.Unschedulable
	}
	if err != nil && !cordon.IsConditionsError(err) {
		a.reportChangeFailedOnce(ctx, h, CordonFailed)
		return a.forgetClaimsIfNodeReplaced(err)
	}
	for _, name := range r.ReplacedOwners {
		ended[name].claim = claim{}
		a.log.Info("claim removed: the claim of another notice replaces it", "id", ended[name].Notice.ID, "by", h.Notice.ID)
	}
	delete(h.lastMessages, CordonFailed)
	cordons := out.Record.Cordon != ""
	for _, problem := range out.UnreadableRecords {
		a.log.Warn("cannot parse an annotation of the node", "err", problem)
	}
	if cordons && !h.claim.hasCordon {
		a.reportCordoned(h, out)
	}
	if out.WasUncordoned {
		a.log.Warn("the node was uncordoned during a notice; cordoned it again", "id", h.Notice.ID)
		a.events.queueEvent(newCordonedAgainEvent(h.Notice))
	}
	h.claim = claim{claimConditionsPending, cordons}
	a.nodeWatch.markCordoned()
	return err
}

// endedNoticesWithClaims returns the notices that have ended and may still have something set on the Node, by claim owner.
func (a *Agent) endedNoticesWithClaims() map[string]*noticeState {
	all := map[string]*noticeState{}
	for name, h := range a.notices {
		if h.Phase == Releasing && h.claim.state != claimNone {
			all[name] = h
		}
	}
	return all
}

// isCordonedByEndedNotice reports that a notice that has ended still cordons the node. The next notice takes over that cordon,
// even if another tool came meanwhile. So the node stays unschedulable between the two.
func (a *Agent) isCordonedByEndedNotice() bool {
	for _, h := range a.endedNoticesWithClaims() {
		if h.claim.hasCordon {
			return true
		}
	}
	return false
}

// reportChangeFailedOnce reports once that the node cannot be changed, however often the change is retried.
func (a *Agent) reportChangeFailedOnce(ctx context.Context, h *noticeState, reason EventReason) {
	if isInterrupted(ctx) {
		return
	}
	if h.setLastMessageIfChanged(reason, "") {
		a.events.queueEvent(newSilentEvent(reason, h.Notice))
	}
}

// reportCordoned reports a new cordon, or that the node was found cordoned.
func (a *Agent) reportCordoned(h *noticeState, out cordon.ClaimResult) {
	if out.Record.Cordon == cordon.FoundCordon {
		a.log.Info("the node was already cordoned; it stays cordoned after the notice", "id", h.Notice.ID, "type", h.Notice.Type)
		a.events.queueEvent(newFoundCordonedEvent(h.Notice))
		return
	}
	a.log.Info("cordoned", "id", h.Notice.ID, "type", h.Notice.Type, "heldBy", out.OtherOwners)
	a.events.queueEvent(newCordonedEvent(h.Notice))
	a.recordSpan(h, observe.Span{Name: "cordon", Began: h.cordonRequestedAt, Ended: time.Now()})
	a.options.Metrics.Cordoned.With(string(h.Notice.Type)).Inc()
}

func (a *Agent) removeClaim(ctx context.Context, h *noticeState) error {
	if h.claim.state == claimNone || a.options.DryRun {
		return nil
	}
	began := time.Now()
	h.claim.state = claimUncertain
	out, err := a.claimWriter.RemoveClaim(ctx, claimOwner(h.Notice.Source, h.Notice.ID))
	if cordon.IsUnreadableError(err) {
		a.log.Error("cannot parse the record of a notice that has ended; the record stays", "err", err)
		err = nil
	}
	if err != nil && !cordon.IsConditionsError(err) {
		a.reportChangeFailedOnce(ctx, h, UncordonFailed)
		return a.forgetClaimsIfNodeReplaced(err)
	}
	delete(h.lastMessages, UncordonFailed)
	wasCordoned := h.claim.hasCordon
	h.claim = claim{}
	if err != nil {
		h.claim.state = claimConditionsLeft
	}
	if out.Node == nil {
		return err
	}
	a.unschedulable = out.Node.Spec.Unschedulable
	switch {
	case !wasCordoned:
		a.log.Info("claim removed", "id", h.Notice.ID)
	case !out.Node.Spec.Unschedulable:
		a.log.Info("uncordoned", "id", h.Notice.ID)
		a.events.queueEvent(newUncordonedEvent())
		a.recordSpan(h, observe.Span{Name: "uncordon", Began: began, Ended: time.Now()})
	case len(out.OtherOwners) > 0:
		a.log.Info("claim removed; the node stays cordoned for other notices", "id", h.Notice.ID, "heldBy", out.OtherOwners)
	default:
		a.log.Info("claim removed; the node stays cordoned, as before the notice", "id", h.Notice.ID)
		a.events.queueEvent(newLeftCordonedEvent("it was cordoned before the notice"))
	}
	return err
}

// forgetClaimsIfNodeReplaced forgets all claims if err means that the Node was deleted and registered again. The new Node
// has nothing from this agent, so handling starts again.
func (a *Agent) forgetClaimsIfNodeReplaced(err error) error {
	if cordon.IsReplacedError(err) || kubeapi.IsNotFound(err) {
		a.recordsRead, a.unschedulable = false, false
		for _, h := range a.notices {
			h.claim = claim{}
			a.handleInput(h, inputNodeReplaced, time.Now())
		}
	}
	return err
}

// removeEndedClaims removes the claims of every notice that has ended or is ignored. It returns when to check again.
// It runs after all other claims are written. So the node stays unschedulable between two notices, and an urgent
// drain does not wait for it.
func (a *Agent) removeEndedClaims(pass context.Context) (recheckAfter time.Duration, err error) {
	if a.hasUnwrittenCordonClaim() {
		return idleInterval, nil // their steps return when to retry
	}
	next := idleInterval
	var errs []error
	for key, h := range a.notices {
		if h.Phase != Releasing {
			continue
		}
		if wait := time.Until(a.conditionBackoff.next); h.claim.state == claimConditionsLeft && wait > 0 {
			next = min(next, wait)
			continue
		}
		bounded, cancel := a.withStepTimeout(pass, nil)
		err := a.removeClaim(bounded, h)
		cancel()
		switch {
		case cordon.IsConditionsError(err):
			// Only conditions and their record are left on the node. The record stays until the conditions can be
			// removed (I3).
			a.backOffAfterConditionFailure(err)
			next = min(next, a.conditionBackoff.delay)
		case err != nil:
			errs = append(errs, err)
		case h.missingSince.IsZero():
			a.handleInput(h, inputClaimRemoved, time.Now())
		default:
			a.reportNoticeEnded(h)
			delete(a.notices, key)
		}
	}
	return next, errors.Join(errs...)
}

// hasUnwrittenCordonClaim reports that a notice needs a cordon and has no claim yet.
func (a *Agent) hasUnwrittenCordonClaim() bool {
	takesOver := a.isCordonedByEndedNotice()
	return slices.ContainsFunc(a.activeNoticesByUrgency(), func(h *noticeState) bool {
		leaves := h.Phase == Waiting || h.Phase == Yielded && !takesOver
		return h.Decision.Action.includesCordon() && !h.claim.isWritten() && !leaves && !a.options.DryRun
	})
}

// reportNoticeEnded reports that a notice has ended. Its claim is removed already.
func (a *Agent) reportNoticeEnded(h *noticeState) {
	a.log.Info("notice ended", "id", h.Notice.ID, "type", h.Notice.Type, "phase", h.recordedPhase)
	a.events.queueEvent(newNoticeOverEvent(h.Notice))
	a.queueEndNotification(h)
	a.options.Metrics.Ended.With(string(h.Notice.Type)).Inc()
}
