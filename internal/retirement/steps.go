package retirement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/observe"
)

// step is one step of the way. It returns nil when it is done, also when it was done before; a *waiting when it is not
// done yet; an *ending when the retirement is to end; and any other error to be tried again.
type step struct {
	name string
	take func(*passage, context.Context) error
}

// steps are the way of a node, in order.
var steps = []step{
	{"fetch", (*passage).look},
	{"capture", (*passage).capture},
	{"await", (*passage).await},
	{"admit", (*passage).admitOrYield},
	{"cordon", (*passage).hold},
	{"drain", (*passage).drain},
	{"detach", (*passage).detach},
	{"delete-node", (*passage).deleteNode},
	{"delete-instance", (*passage).deleteInstance},
	{"verify", (*passage).verify},
}

// passage is one walk of one retirement through the steps.
type passage struct {
	c   *Controller
	rt  *v1alpha1.NodeRetirement
	was v1alpha1.NodeRetirementStatus // as it was last read or written
	log *slog.Logger

	// node is the Node that the retirement is about, as the API server has it now; nil when it says there is none.
	node *kubeapi.Node
	// replacement is another Node of the same name.
	replacement *kubeapi.Node
	// group is the NodeGroup; nil for a node that belongs to none.
	group *v1alpha1.NodeGroup
	cloud cloud.Provider
	// captured is the machine when this walk is the one that has captured it.
	captured *cloud.Instance
	// isNodeLive reports that node was read past the cache.
	isNodeLive bool
	// isCurrent reports that a write of this walk, or a read past the cache, has confirmed that the record is as it was read.
	isCurrent bool
	// unsaved are the phases that were reached and are not written down yet.
	unsaved []v1alpha1.Phase
	// recounted is when a drain of this process has last found that nothing is left that has to leave the node.
	recounted time.Time
	// isInstanceGone reports that this walk has found the instance gone.
	isInstanceGone bool
	// listed are all NodeRetirements as this walk has read them.
	listed   *v1alpha1.NodeRetirementList
	listedAt time.Time
}

func (c *Controller) passage(rt *v1alpha1.NodeRetirement) *passage {
	return &passage{
		c: c, rt: rt, was: *rt.Status.DeepCopy(),
		log: c.o.Log.With("retirement", rt.Name, "node", rt.Spec.NodeName),
	}
}

// walk takes one step after another.
func (p *passage) walk(ctx context.Context) (reconcile.Result, error) {
	if controllerutil.AddFinalizer(p.rt, Finalizer) {
		if err := p.c.o.Client.Update(ctx, p.rt); err != nil {
			return again(err)
		}
		p.c.known.wrote(p.rt)
		p.was, p.isCurrent = *p.rt.Status.DeepCopy(), true
	}
	for _, s := range steps {
		err := s.take(p, ctx)
		p.c.o.Metrics.step(s.name, err)
		if err != nil {
			return p.stopped(ctx, s, err)
		}
	}
	return p.finish(ctx, v1alpha1.Succeeded, nil)
}

// stopped deals with the first step that is not done.
func (p *passage) stopped(ctx context.Context, s step, err error) (reconcile.Result, error) {
	var over *ending
	var throttled *cloud.ThrottledError
	switch {
	case errors.As(err, &over) && p.heldUp(over):
		err = blocked(p.c.o.Pace.Poll, over.reasons...)
	case errors.As(err, &over):
		return p.end(ctx, over.reasons)
	case errors.As(err, &throttled):
		err = blocked(max(throttled.After, time.Second), reason(CloudBusy, "", "%s", err))
	case cloud.RefusalOf(err) != "": // such as a right that is missing, which somebody may give
		err = blocked(p.c.o.Pace.Poll, reason(CloudRefused, "", "%s", err))
	case apierrors.IsConflict(err):
		return again(err)
	}
	w := isWaiting(err)
	if w == nil {
		p.log.Warn("step failed, and is tried again", "step", s.name, "err", err)
		p.note(ReadFailed, fmt.Sprintf("%s: %s", s.name, err), []v1alpha1.RetirementReason{reason(ReadFailed, "", "%s: %s", s.name, err)})
		return reconcile.Result{}, errors.Join(err, p.save(ctx))
	}
	code := ""
	if len(w.reasons) > 0 {
		code = w.reasons[0].Code
	}
	if p.note(code, w.message, w.reasons) && code != "" && !w.quiet {
		p.c.events.blocked(p.rt, code, w.message)
	}
	if err := p.save(ctx); err != nil {
		return again(err)
	}
	return reconcile.Result{RequeueAfter: max(w.after, time.Millisecond)}, nil
}

// note writes down what is waited for, and reports whether what blocks is new.
func (p *passage) note(code, message string, reasons []v1alpha1.RetirementReason) bool {
	status := &p.rt.Status
	if status.Phase == "" {
		status.Phase = v1alpha1.Pending
	}
	status.Message = observe.Cut(message, maxMessage)
	status.Reasons = reasons[:min(len(reasons), maxReasons)]
	before := "" // what held it up; the condition itself is overwritten
	if c := meta.FindStatusCondition(status.Conditions, v1alpha1.RetirementBlocked); c != nil && c.Status == metav1.ConditionTrue {
		before = c.Reason
	}
	switch {
	case code != "":
		p.condition(v1alpha1.RetirementBlocked, metav1.ConditionTrue, code, message)
	case before != "":
		p.condition(v1alpha1.RetirementBlocked, metav1.ConditionFalse, goesOn, "")
	}
	return before != code
}

func (p *passage) condition(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&p.rt.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: observe.Cut(message, maxMessage), ObservedGeneration: p.rt.Generation,
	})
}

// save writes the status down unless it is written already. A record that somebody else has changed meanwhile answers a
// conflict: another look is due.
func (p *passage) save(ctx context.Context) error {
	p.rt.Status.ObservedGeneration = p.rt.Generation
	if equality.Semantic.DeepEqual(p.rt.Status, p.was) {
		return nil
	}
	if err := p.c.o.Client.Status().Update(ctx, p.rt); err != nil {
		return fmt.Errorf("writing down how far it is: %w", err)
	}
	p.c.known.wrote(p.rt)
	p.was, p.isCurrent = *p.rt.Status.DeepCopy(), true
	for _, phase := range p.unsaved {
		p.log.Info("phase reached", "phase", phase, "message", p.rt.Status.Message)
		p.c.o.Metrics.phase(p.rt, phase)
		if phase == v1alpha1.Cordoned {
			p.c.events.cordoned(p.rt)
		}
	}
	p.unsaved = nil
	return nil
}

// confirmRecord makes sure, before what cannot be taken back, that the record is as this walk has read it: nobody has called the
// retirement off. A write of this walk has shown that, or else the API server is asked.
func (p *passage) confirmRecord(ctx context.Context) error {
	if p.isCurrent {
		return nil
	}
	live := &v1alpha1.NodeRetirement{}
	err := p.c.o.Live.Get(ctx, client.ObjectKeyFromObject(p.rt), live)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("NodeRetirement %s: %w", p.rt.Name, err)
	case err != nil || live.ResourceVersion != p.rt.ResourceVersion:
		return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("noderetirements").GroupResource(), p.rt.Name,
			errors.New("it has changed since it was read"))
	}
	p.isCurrent = true
	return nil
}

// order are the phases as they follow each other.
var order = []v1alpha1.Phase{
	"", v1alpha1.Pending, v1alpha1.Cordoned, v1alpha1.Draining, v1alpha1.Drained, v1alpha1.NodeDeleted,
	v1alpha1.InstanceDeleted, v1alpha1.Succeeded,
}

// reached reports whether the retirement has come to a phase, or past it.
func (p *passage) reached(phase v1alpha1.Phase) bool {
	return slices.Index(order, p.rt.Status.Phase) >= slices.Index(order, phase)
}

// pastReturn reports a phase in which the Node is known to be gone.
func pastReturn(phase v1alpha1.Phase) bool {
	return slices.Index(order, phase) >= slices.Index(order, v1alpha1.NodeDeleted)
}

// pass writes down that a phase is reached.
func (p *passage) pass(ctx context.Context, phase v1alpha1.Phase, at **metav1.Time, condition, message string) error {
	p.advance(phase, at, condition, message, nil)
	return p.save(ctx)
}

// advance notes that a phase is reached, for the next save to write down. It is for phases that can be told from the world: a
// process that ends before comes to the same phase again.
func (p *passage) advance(phase v1alpha1.Phase, at **metav1.Time, condition, message string, reasons []v1alpha1.RetirementReason) {
	now := metav1.Now().Rfc3339Copy()
	p.rt.Status.Phase = phase
	if *at == nil {
		*at = &now
	}
	p.rt.Status.Message, p.rt.Status.Reasons = observe.Cut(message, maxMessage), reasons[:min(len(reasons), maxReasons)]
	if condition != "" {
		p.condition(condition, metav1.ConditionTrue, string(phase), message)
	}
	if meta.IsStatusConditionTrue(p.rt.Status.Conditions, v1alpha1.RetirementBlocked) {
		p.condition(v1alpha1.RetirementBlocked, metav1.ConditionFalse, goesOn, "")
	}
	p.unsaved = append(p.unsaved, phase)
}

// end ends a retirement early: refused while nothing was done to the node, aborted with the node given back while there
// is a way back, failed after that.
func (p *passage) end(ctx context.Context, reasons []v1alpha1.RetirementReason) (reconcile.Result, error) {
	p.c.drains.stop(p.rt.Name)
	phase := v1alpha1.Refused
	switch {
	case p.reached(v1alpha1.NodeDeleted), p.nodeGoing():
		phase = v1alpha1.Failed
	case meta.IsStatusConditionTrue(p.rt.Status.Conditions, v1alpha1.RetirementAdmitted):
		phase = v1alpha1.Aborted
		if err := p.giveBack(ctx); err != nil {
			return p.notGivenBack(ctx, reasons, err)
		}
	}
	return p.finish(ctx, phase, reasons)
}

// notGivenBack says that a node is to be given back, why, and why it cannot be yet.
func (p *passage) notGivenBack(ctx context.Context, why []v1alpha1.RetirementReason, err error) (reconcile.Result, error) {
	if kubeapi.IsConflict(err) {
		return reconcile.Result{}, err
	}
	message := fmt.Sprintf("the node is to be given back, and cannot be yet: %s; it is to be, since %s", err, sentence(why))
	all := append([]v1alpha1.RetirementReason{reason(NotGivenBack, "", "the node cannot be given back yet: %s", err)}, why...)
	if p.note(NotGivenBack, message, all) {
		p.c.events.blocked(p.rt, NotGivenBack, message)
	}
	return reconcile.Result{}, errors.Join(err, p.save(ctx))
}

// givingBack are the reasons why a node is to be given back that could not be before; none when that is not so.
func givingBack(rt *v1alpha1.NodeRetirement) []v1alpha1.RetirementReason {
	if r := rt.Status.Reasons; len(r) > 0 && r[0].Code == NotGivenBack {
		return r[1:]
	}
	return nil
}

// finish writes down that the retirement is over.
func (p *passage) finish(ctx context.Context, phase v1alpha1.Phase, reasons []v1alpha1.RetirementReason) (
	reconcile.Result, error,
) {
	status, message := metav1.ConditionFalse, sentence(reasons)
	code := string(phase)
	switch {
	case phase == v1alpha1.Succeeded:
		status, message = metav1.ConditionTrue, p.farewell()
	case len(reasons) > 0:
		code = reasons[0].Code
	}
	p.condition(v1alpha1.RetirementSucceeded, status, code, message)
	p.advance(phase, &p.rt.Status.Times.Finished, "", message, reasons)
	if err := p.save(ctx); err != nil {
		return again(err)
	}
	p.c.o.Metrics.finished(p.rt, phase, code)
	p.c.events.finished(p.rt, phase, code, message)
	return p.c.collect(ctx, p.rt)
}

// callOff ends a retirement whose record is being deleted, if there is a way back; past that it goes on, since the
// machine would be forgotten otherwise, and the record goes when that is done.
func (p *passage) callOff(ctx context.Context) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(p.rt, Finalizer) {
		return reconcile.Result{}, nil // nothing was begun
	}
	node, err := p.c.o.API.GetNode(ctx, p.rt.Spec.NodeName)
	if err != nil && !kubeapi.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	ours := node != nil && p.rt.Status.Captured != nil && node.UID == string(p.rt.Status.Captured.NodeUID)
	// From Drained on it is not known whether it was we who deleted the Node.
	if p.reached(v1alpha1.NodeDeleted) || p.nodeGoing() || p.reached(v1alpha1.Drained) && (!ours || node.DeletionTimestamp != nil) {
		return p.walk(ctx)
	}
	message := "called off: its NodeRetirement was deleted"
	if p.rt.Spec.Notice != nil {
		message += "; it stays until its notice is over, or the Node gone, so that no other is made of the notice"
	}
	return p.end(ctx, []v1alpha1.RetirementReason{reason(CalledOff, "", "%s", message)})
}

// giveBack makes the node as it was found.
func (p *passage) giveBack(ctx context.Context) error {
	if p.rt.Status.Captured == nil || p.rt.Status.Captured.NodeUID == "" {
		return nil
	}
	keeper, err := p.keeper()
	if err != nil {
		return err
	}
	keeper.See(p.node)
	_, err = keeper.Release(ctx, Owner(p.rt))
	switch {
	case kubeapi.IsNotFound(err), cordon.IsReplaced(err):
		return nil // there is nothing left of it
	case cordon.IsUnreadable(err):
		p.log.Error("the record on the node cannot be understood, and stays", "err", err)
		return nil
	case cordon.IsConditions(err) && kubeapi.IsForbidden(err): // the record on the node has them, and the sweeper takes them away (I3)
		p.log.Warn("the node is given back but for its conditions, which are taken away later", "err", err)
		return nil
	}
	return err
}

func (p *passage) keeper() (*cordon.Keeper, error) {
	return cordon.New(p.c.o.API, p.rt.Spec.NodeName, string(p.rt.Status.Captured.NodeUID))
}

// letGo lets the record be deleted.
func (c *Controller) letGo(ctx context.Context, rt *v1alpha1.NodeRetirement) error {
	if !controllerutil.RemoveFinalizer(rt, Finalizer) {
		return nil
	}
	err := c.o.Client.Update(ctx, rt)
	if err == nil {
		c.known.wrote(rt)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
