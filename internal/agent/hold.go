package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// conditionReason is how our lifecycle conditions name their cause.
const conditionReason = "Slipway"

// owner is the name under which a notice holds the node.
func owner(source, id string) string { return source + "-" + id }

// readyMark is the label value of a node on which nothing needs to be done before the notice's interruption.
const readyMark cordon.Phase = "ready"

// drainedSelector selects the nodes that are drained on account of a notice, or need not be.
func drainedSelector(source, id string) string {
	return fmt.Sprintf("%s in (%s,%s)", cordon.LabelKey(owner(source, id)), cordon.Drained, readyMark)
}

// request says how the node is to be while h holds it.
func (a *Agent) request(h *handling) (cordon.Request, error) {
	state, err := json.Marshal(h)
	if err != nil {
		return cordon.Request{}, fmt.Errorf("record: %w", err)
	}
	r := cordon.Request{
		Reason:        h.Decision.Reason,
		Unschedulable: h.Decision.Action.cordons() && (h.cordoned || len(a.others) == 0),
		Phase:         h.mark(),
		State:         state,
		Conditions:    conditions(h),
		Labels:        a.o.Labels,
	}
	if a.o.Taint.Effect != "" && r.Unschedulable && (a.o.Taint.Effect != noExecute || h.drained()) {
		r.Taints = []cordon.Taint{a.o.Taint.For(h.Notice)}
	}
	return r, nil
}

// conditions are the lifecycle conditions (KEP-5683) that hold while h does. While something blocks its drain,
// DrainInProgress says how far the drain is and what it waits for, after the notice and a colon; see drain.Progress.
func conditions(h *handling) []cordon.Condition {
	message := fmt.Sprintf("%s %s (%s)", h.Notice.Source, h.Notice.Type, h.Notice.ID)
	var set []cordon.Condition
	switch {
	case h.Notice.Type == notice.Condition: // a problem of the node's is no maintenance
	case h.Notice.Status == notice.Started:
		set = append(set, cordon.Condition{Type: cordon.MaintenanceInProgress, Reason: conditionReason, Message: message})
	default:
		set = append(set, cordon.Condition{Type: cordon.MaintenancePlanned, Reason: conditionReason, Message: message})
	}
	switch h.Phase {
	case Draining:
		if h.shown != "" {
			message += ": " + h.shown
		}
		set = append(set, cordon.Condition{Type: cordon.DrainInProgress, Reason: conditionReason, Message: message})
	case Drained, Acknowledged:
		set = append(set, cordon.Condition{Type: cordon.DrainedCondition, Reason: conditionReason, Message: message})
	}
	return set
}

// cordon holds the node on account of h, its conditions later if so.
func (a *Agent) cordon(ctx context.Context, h *handling, later bool) error {
	r, err := a.request(h)
	if err != nil {
		return err
	}
	r.Later = later
	if h.asked.IsZero() {
		h.asked = time.Now()
	}
	h.touched = true // a hold takes several requests, and one that fails may have left something (I3)
	out, err := a.keeper.Hold(ctx, owner(h.Notice.Source, h.Notice.ID), r)
	h.closed = out.Node != nil && out.Node.Spec.Unschedulable
	if out.Node != nil {
		a.since = out.Node.ResourceVersion
	}
	if err != nil && !cordon.IsConditions(err) {
		a.sayFailed(h, CordonFailed)
		return a.lost(err)
	}
	h.saidFailed = false
	was := h.cordoned
	h.cordoned = out.Record.Cordon != ""
	for _, problem := range out.Problems {
		a.log.Warn("annotation on the node cannot be understood", "err", problem)
	}
	if h.cordoned && !was {
		a.sayHeld(h, out)
	}
	if out.Uncordoned {
		a.log.Warn("somebody uncordoned the node; cordoned it again", "id", h.Notice.ID)
		a.events.emit(cordonedAgain(h.Notice))
	}
	h.held = true
	a.node.cordonedNow()
	return err
}

// sayFailed says once that the node cannot be changed, however often that is tried.
func (a *Agent) sayFailed(h *handling, reason EventReason) {
	if !h.saidFailed {
		a.events.emit(unspoken(reason, h.Notice))
	}
	h.saidFailed = true
}

// sayHeld tells a cordon of ours from one that was there.
func (a *Agent) sayHeld(h *handling, out cordon.Outcome) {
	if out.Record.Cordon == cordon.Found {
		a.log.Info("found cordoned by somebody else", "id", h.Notice.ID, "type", h.Notice.Type)
		a.events.emit(foundCordoned(h.Notice))
		return
	}
	a.log.Info("cordoned", "id", h.Notice.ID, "type", h.Notice.Type, "heldBy", out.HeldBy)
	a.events.emit(cordoned(h.Notice))
	a.trace(h, Span{Name: "cordon", Began: h.asked, Ended: time.Now()})
	a.o.Metrics.Cordoned.With(string(h.Notice.Type)).Inc()
}

// unhold lets go of the node on account of h.
func (a *Agent) unhold(ctx context.Context, h *handling) error {
	began := time.Now()
	out, err := a.keeper.Release(ctx, owner(h.Notice.Source, h.Notice.ID))
	if cordon.IsUnreadable(err) {
		a.log.Error("record of a notice that is over cannot be understood, and stays", "err", err)
		err = nil
	}
	if err != nil && !cordon.IsConditions(err) {
		a.sayFailed(h, UncordonFailed)
		return a.lost(err)
	}
	wasCordoned := h.cordoned
	h.held, h.touched, h.closed, h.cordoned = false, err != nil, false, false
	if out.Node == nil {
		return err
	}
	switch {
	case !wasCordoned:
		a.log.Info("let go", "id", h.Notice.ID)
	case !out.Node.Spec.Unschedulable:
		a.log.Info("uncordoned", "id", h.Notice.ID)
		a.events.emit(uncordoned())
		a.trace(h, Span{Name: "uncordon", Began: began, Ended: time.Now()})
	case len(out.HeldBy) > 0:
		a.log.Info("let go, but others of ours still hold the node", "id", h.Notice.ID, "heldBy", out.HeldBy)
	default:
		a.log.Info("let go; the node stays cordoned as it was found", "id", h.Notice.ID)
		a.events.emit(stillCordoned("somebody else had cordoned it before"))
	}
	return err
}

// lost looks at an error of the keeper: when the Node was deleted and registered anew, nothing of ours is on it, and
// everything begins again with the new one.
func (a *Agent) lost(err error) error {
	if cordon.IsReplaced(err) || kubeapi.IsNotFound(err) {
		a.restored = false
		for _, h := range a.handled {
			h.held, h.touched, h.closed, h.cordoned, h.dirty = false, false, false, false, true
		}
	}
	return err
}
