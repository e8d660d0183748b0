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
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

// conditionReason is the reason field of Slipway's lifecycle conditions.
const conditionReason = "Slipway"

// claimState says whether the cordon claim of a notice is written on the Node, as far as this process knows.
type claimState int

const (
	claimNone      claimState = iota // nothing
	claimUncertain                   // perhaps something: a request failed, or has no answer yet
	claimWritten
	claimOutdated          // written, but the record is outdated
	claimConditionsPending // written without its conditions: they can wait, or failed
	claimConditionsLeft    // removed except for its conditions: that failed
)

// claim is the cordon claim of one notice as this process knows it: its state, and what its record lists.
type claim struct {
	state claimState
	// hasCordon is true while the claim includes the cordon. It is false if the action does not cordon, or another
	// tool has cordoned the Node.
	hasCordon bool
}

// isWritten reports whether the Node has a record of the claim. The record may be outdated, and the conditions of the Node
// may still be missing.
func (c claim) isWritten() bool { return c.isCurrent() || c.state == claimOutdated }

// isCurrent reports whether the newest record of the claim is on the Node. Its conditions may not be written yet.
func (c claim) isCurrent() bool { return c.state == claimWritten || c.state == claimConditionsPending }

// markOutdated records that a written claim differs from what the notice needs now. The next reconcile writes it again.
func (c *claim) markOutdated() {
	if c.isCurrent() {
		c.state = claimOutdated
	}
}

// readyLabel is the label value of a node that needs no drain before the interruption.
const readyLabel cordon.Phase = "ready"

// drainedNodesSelector returns a label selector for nodes that are drained for the notice, or that need no drain for
// it.
func drainedNodesSelector(source, id string) string {
	return fmt.Sprintf("%s in (%s,%s)", cordon.LabelKey(notice.ClaimOwner(source, id)), cordon.Drained, readyLabel)
}

// buildClaimSpec returns the cordon claim that the notice h needs on the Node.
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
	if r.Unschedulable {
		r.Taints = a.taintsFor(h)
	}
	if a.options.LabelsFor != nil && r.Unschedulable {
		labels := maps.Clone(a.options.LabelsFor(h.Notice, h.Seen.First))
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, r.Labels)
		r.Labels = labels
	}
	return r, nil
}

// taintsFor returns the taints that a notice needs now. NoExecute makes Kubernetes delete pods despite
// PodDisruptionBudgets, so a taint with this effect is only set once the node is drained.
func (a *Agent) taintsFor(h *noticeState) []cordon.Taint {
	var all []cordon.Taint
	switch {
	case a.options.TaintsFor != nil:
		all = a.options.TaintsFor(h.Notice)
		for i := range all {
			all[i].Value = toTaintValue(all[i].Value)
		}
	case a.options.Taint.Effect != "":
		all = []cordon.Taint{a.options.Taint.ForNotice(h.Notice)}
	}
	return slices.DeleteFunc(all, func(t cordon.Taint) bool { return t.Effect == noExecute && !h.Phase.isDrained() })
}

// writeClaimIfNeeded is the step that cordons the Node and writes the record of the notice. Later steps rely on the
// record, so they run after it. It sends no request if the claim on the Node is current.
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

// needsClaimWrite reports whether the claim of the notice must be written now. If later is true, a claim that lacks
// only its conditions does not have to be written now.
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
	out, err := a.claimWriter.WriteClaim(ctx, notice.ClaimOwner(h.Notice.Source, h.Notice.ID), r)
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

// endedNoticesWithClaims returns the ended or ignored notices that may still have a cordon, label, taint or condition
// on the Node. The key is the claim owner.
func (a *Agent) endedNoticesWithClaims() map[string]*noticeState {
	all := map[string]*noticeState{}
	for name, h := range a.notices {
		if h.Phase == Releasing && h.claim.state != claimNone {
			all[name] = h
		}
	}
	return all
}

// isCordonedByEndedNotice reports whether the node still has the cordon of a notice that has ended. The next notice
// takes over that cordon, even if another tool began to remove the node in the meantime. So the node stays
// unschedulable from one notice to the next.
func (a *Agent) isCordonedByEndedNotice() bool {
	for _, h := range a.endedNoticesWithClaims() {
		if h.claim.hasCordon {
			return true
		}
	}
	return false
}

// reportChangeFailedOnce reports that the node could not be changed. It reports only the first of several failures,
// although the change is retried.
func (a *Agent) reportChangeFailedOnce(ctx context.Context, h *noticeState, reason EventReason) {
	if isInterrupted(ctx) {
		return
	}
	if h.setLastMessageIfChanged(reason, "") {
		a.events.queueEvent(newSilentEvent(reason, h.Notice))
	}
}

// reportCordoned reports that Slipway has cordoned the node, or that the node was cordoned before.
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
	out, err := a.claimWriter.RemoveClaim(ctx, notice.ClaimOwner(h.Notice.Source, h.Notice.ID))
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

// forgetClaimsIfNodeReplaced forgets all claims if err means that the Node was deleted and registered again. The new
// Node has no claim of this agent, so the agent handles its notices from the start.
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

// removeEndedClaims removes the claims of all notices that have ended or are ignored. It returns when to check again.
// It waits until all other claims are written, so that the node stays unschedulable from one notice to the next. An
// urgent drain therefore does not wait for removals.
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

// hasUnwrittenCordonClaim reports whether a notice needs a cordon and has no claim on the Node yet. Notices that wait
// for a drain slot or for another tool do not count.
func (a *Agent) hasUnwrittenCordonClaim() bool {
	takesOver := a.isCordonedByEndedNotice()
	return slices.ContainsFunc(a.activeNoticesByUrgency(), func(h *noticeState) bool {
		leaves := h.Phase == Waiting || h.Phase == Yielded && !takesOver
		return h.Decision.Action.includesCordon() && !h.claim.isWritten() && !leaves && !a.options.DryRun
	})
}

// reportNoticeEnded reports that a notice has ended. The caller has removed its claim before.
func (a *Agent) reportNoticeEnded(h *noticeState) {
	a.log.Info("notice ended", "id", h.Notice.ID, "type", h.Notice.Type, "phase", h.recordedPhase)
	a.events.queueEvent(newNoticeOverEvent(h.Notice))
	a.queueEndNotification(h)
	a.options.Metrics.Ended.With(string(h.Notice.Type)).Inc()
}
