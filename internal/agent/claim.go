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

// conditionReason is how our lifecycle conditions name their cause.
const conditionReason = "Slipway"

// claimState says what a notice has on the Node, as far as this process knows.
type claimState int

const (
	claimNone      claimState = iota // nothing
	claimUncertain                   // perhaps something: a request for it failed, or is not answered
	claimWritten
	claimOutdated          // written, and the record is older than what is known here
	claimConditionsPending // written without its conditions: they can wait, or failed
	claimConditionsLeft    // removed except for its conditions: that failed
)

// claim is what a notice has on the Node: the record, and what the record lists.
type claim struct {
	state claimState
	// cordons is true while the cordon is a part of it. Else the action cordons nothing, or another tool has the Node cordoned.
	cordons bool
}

// isWritten reports that the Node is as the notice wants it. The conditions and the newest record may be missing.
func (c claim) isWritten() bool { return c.isCurrent() || c.state == claimOutdated }

// isCurrent reports that the newest record is written. The conditions may be missing.
func (c claim) isCurrent() bool { return c.state == claimWritten || c.state == claimConditionsPending }

// outdate has the record be written anew.
func (c *claim) outdate() {
	if c.isCurrent() {
		c.state = claimOutdated
	}
}

// owner is the name under which a notice holds the node.
func owner(source, id string) string { return source + "-" + id }

// readyMark is the label value of a node on which nothing needs to be done before the notice's interruption.
const readyMark cordon.Phase = "ready"

// drainedSelector selects the nodes that are drained on account of a notice, or need not be.
func drainedSelector(source, id string) string {
	return fmt.Sprintf("%s in (%s,%s)", cordon.LabelKey(owner(source, id)), cordon.Drained, readyMark)
}

// request says how the node is to be while h holds it.
func (a *Agent) request(h *noticeState) (cordon.Request, error) {
	recorded := *h
	recorded.Phase = h.recorded
	recorded.Notice = h.Notice.ForRecord(a.o.Resource)
	state, err := json.Marshal(&recorded)
	if err != nil {
		return cordon.Request{}, fmt.Errorf("record: %w", err)
	}
	r := cordon.Request{
		Reason:        h.Decision.Reason,
		Unschedulable: h.Decision.Action.cordons() && (h.claim.cordons || len(a.others) == 0 || a.endedCordons()),
		Phase:         recorded.mark(),
		State:         state,
		Conditions:    conditions(&recorded),
		Labels:        a.o.Labels,

		LabelOwnCordon: a.o.LabelOwnCordon,
	}
	if a.o.Taint.Effect != "" && r.Unschedulable && (a.o.Taint.Effect != noExecute || h.Phase.isDrained()) {
		r.Taints = []cordon.Taint{a.o.Taint.For(h.Notice)}
	}
	return r, nil
}

// writeClaim cordons and keeps the record up to date, before others are told to rely on it. It sends nothing if nothing has
// changed.
func (a *Agent) writeClaim(ctx context.Context, h *noticeState, now time.Time) (time.Duration, error) {
	if a.o.DryRun {
		if h.isNews(NodeCordoned, h.Decision.Reason) {
			a.log.Info("dry run: the node would be held", "id", h.Notice.ID, "action", h.Decision.Action)
		}
		return whenAsked, nil
	}
	g := a.guard(h, now)
	g.canStart = true // once the claim is written, so that one request says both
	next := *h
	next.move(inputChecked, g, now)
	later := a.asksNow(&next, now) || a.isPressed(now)
	shown := ""
	if p := a.blockedProgress(h); p != nil {
		shown = observe.Clip(p.String(), maxMessage)
	}
	if h.shown != shown && !later {
		h.shown = shown
		h.claim.outdate()
	}
	if !a.needsWrite(h, now, later) {
		return 0, nil
	}
	next.shown = h.shown
	r, err := a.request(&next)
	if err != nil {
		return 0, err
	}
	untilRetry := a.conditions.hung && a.conditions.next.After(now) // no conditions are written before
	r.Later = later || untilRetry
	err = a.sendClaim(ctx, h, r)
	if err != nil && !cordon.IsConditions(err) {
		return 0, err
	}
	switch {
	case err != nil:
		a.conditionsFailed(err)
	case !r.Later:
		a.conditionsWritten()
		h.claim.state = claimWritten
	}
	h.recorded = next.recorded
	a.take(h, inputChecked, now)
	return 0, nil
}

// needsWrite reports that the claim has to be written; later is whether its conditions can wait.
func (a *Agent) needsWrite(h *noticeState, now time.Time, later bool) bool {
	switch h.claim.state {
	case claimWritten:
	case claimConditionsPending:
		if !later && !now.Before(a.conditions.next) {
			return true
		}
	default:
		return true
	}
	if h.claim.cordons {
		return a.node.uncordoned()
	}
	return h.Decision.Action.cordons() && len(a.others) == 0 // another tool had it cordoned
}

// sendClaim writes the claim of h.
func (a *Agent) sendClaim(ctx context.Context, h *noticeState, r cordon.Request) error {
	ended := a.endedClaims()
	if r.Unschedulable {
		r.Replaces = slices.Sorted(maps.Keys(ended))
	}
	if h.asked.IsZero() {
		h.asked = time.Now()
	}
	if !h.claim.isWritten() {
		h.claim.state = claimUncertain // it takes several requests, and one that fails may have left something (I3)
	}
	for _, name := range r.Replaces {
		ended[name].claim.state = claimUncertain
	}
	out, err := a.keeper.Hold(ctx, owner(h.Notice.Source, h.Notice.ID), r)
	if out.Node != nil {
		a.since, a.unschedulable = out.Node.ResourceVersion, out.Node.Spec.Unschedulable
	}
	if err != nil && !cordon.IsConditions(err) {
		a.sayFailed(ctx, h, CordonFailed)
		return a.checkReplaced(err)
	}
	for _, name := range r.Replaces {
		ended[name].claim = claim{}
		a.log.Info("claim removed: the claim of another notice replaces it", "id", ended[name].Notice.ID, "by", h.Notice.ID)
	}
	delete(h.said, CordonFailed)
	cordons := out.Record.Cordon != ""
	for _, problem := range out.Problems {
		a.log.Warn("annotation on the node cannot be understood", "err", problem)
	}
	if cordons && !h.claim.cordons {
		a.sayCordoned(h, out)
	}
	if out.Uncordoned {
		a.log.Warn("somebody uncordoned the node; cordoned it again", "id", h.Notice.ID)
		a.events.emit(cordonedAgain(h.Notice))
	}
	h.claim = claim{claimConditionsPending, cordons}
	a.node.cordonedNow()
	return err
}

// endedClaims are the notices that are over and may have something on the node, by owner.
func (a *Agent) endedClaims() map[string]*noticeState {
	all := map[string]*noticeState{}
	for name, h := range a.handled {
		if h.Phase == Releasing && h.claim.state != claimNone {
			all[name] = h
		}
	}
	return all
}

// endedCordons reports that a notice that is over has the node cordoned. Another takes that over, also where another tool has come meanwhile:
// between the two the node takes no pods.
func (a *Agent) endedCordons() bool {
	for _, h := range a.endedClaims() {
		if h.claim.cordons {
			return true
		}
	}
	return false
}

// sayFailed says once that the node cannot be changed, however often that is tried.
func (a *Agent) sayFailed(ctx context.Context, h *noticeState, reason EventReason) {
	if interrupted(ctx) {
		return
	}
	if h.isNews(reason, "") {
		a.events.emit(unspoken(reason, h.Notice))
	}
}

// sayCordoned tells a cordon of ours from one that was there.
func (a *Agent) sayCordoned(h *noticeState, out cordon.Outcome) {
	if out.Record.Cordon == cordon.Found {
		a.log.Info("found cordoned by somebody else", "id", h.Notice.ID, "type", h.Notice.Type)
		a.events.emit(foundCordoned(h.Notice))
		return
	}
	a.log.Info("cordoned", "id", h.Notice.ID, "type", h.Notice.Type, "heldBy", out.HeldBy)
	a.events.emit(cordoned(h.Notice))
	a.trace(h, observe.Span{Name: "cordon", Began: h.asked, Ended: time.Now()})
	a.o.Metrics.Cordoned.With(string(h.Notice.Type)).Inc()
}

// removeClaim removes the claim of h, if there is one.
func (a *Agent) removeClaim(ctx context.Context, h *noticeState) error {
	if h.claim.state == claimNone || a.o.DryRun {
		return nil
	}
	began := time.Now()
	h.claim.state = claimUncertain
	out, err := a.keeper.Release(ctx, owner(h.Notice.Source, h.Notice.ID))
	if cordon.IsUnreadable(err) {
		a.log.Error("record of a notice that is over cannot be understood, and stays", "err", err)
		err = nil
	}
	if err != nil && !cordon.IsConditions(err) {
		a.sayFailed(ctx, h, UncordonFailed)
		return a.checkReplaced(err)
	}
	delete(h.said, UncordonFailed)
	wasCordoned := h.claim.cordons
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
		a.events.emit(uncordoned())
		a.trace(h, observe.Span{Name: "uncordon", Began: began, Ended: time.Now()})
	case len(out.HeldBy) > 0:
		a.log.Info("claim removed; the node stays cordoned for other notices", "id", h.Notice.ID, "heldBy", out.HeldBy)
	default:
		a.log.Info("claim removed; the node stays cordoned as it was found", "id", h.Notice.ID)
		a.events.emit(stillCordoned("somebody else had cordoned it before"))
	}
	return err
}

// checkReplaced looks at an error of the keeper: when the Node was deleted and registered anew, nothing of ours is on it, and
// everything begins again with the new one.
func (a *Agent) checkReplaced(err error) error {
	if cordon.IsReplaced(err) || kubeapi.IsNotFound(err) {
		a.restored, a.unschedulable = false, false
		for _, h := range a.handled {
			h.claim = claim{}
			a.take(h, inputNodeReplaced, time.Now())
		}
	}
	return err
}

// release removes the claims of every notice that has ended or is ignored, and returns when to look again. It comes after all other claims
// are written: between two notices for one machine the node takes no pods, and an urgent drain does not wait for it.
func (a *Agent) release(pass context.Context) (time.Duration, error) {
	if a.claimsPending() {
		return whenAsked, nil // their steps say when they are tried again
	}
	next := whenAsked
	var errs []error
	for key, h := range a.handled {
		if h.Phase != Releasing {
			continue
		}
		if wait := time.Until(a.conditions.next); h.claim.state == claimConditionsLeft && wait > 0 {
			next = min(next, wait)
			continue
		}
		bounded, cancel := a.bound(pass, nil)
		err := a.removeClaim(bounded, h)
		cancel()
		switch {
		case cordon.IsConditions(err):
			// What is left on the node is theirs and their record's, which is kept until they can be taken away (I3).
			a.conditionsFailed(err)
			next = min(next, a.conditions.pause)
		case err != nil:
			errs = append(errs, err)
		case h.missing.IsZero():
			a.take(h, inputClaimRemoved, time.Now())
		default:
			a.forget(h)
			delete(a.handled, key)
		}
	}
	return next, errors.Join(errs...)
}

// claimsPending reports that a notice wants the node cordoned and has no claim on it yet.
func (a *Agent) claimsPending() bool {
	takesOver := a.endedCordons()
	return slices.ContainsFunc(a.inOrder(), func(h *noticeState) bool {
		leaves := h.Phase == Waiting || h.Phase == Yielded && !takesOver
		return h.Decision.Action.cordons() && !h.claim.isWritten() && !leaves && !a.o.DryRun
	})
}

// forget says that a notice has ended. Its claim is removed already.
func (a *Agent) forget(h *noticeState) {
	a.log.Info("notice is over", "id", h.Notice.ID, "type", h.Notice.Type, "phase", h.recorded)
	a.events.emit(over(h.Notice))
	a.announceOver(h)
	a.o.Metrics.Over.With(string(h.Notice.Type)).Inc()
}
