package controller

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
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
	"github.com/slipway-dev/slipway/internal/observe"
)

// stateTimers records for each key since when its state has been the same. The timers are not stored. A process that
// takes over an update therefore starts all of them again.
type stateTimers map[string]stateSince

type stateSince struct {
	state string
	at    time.Time
}

// trackStateDuration records that key has this state now. It returns how long the state has been the same.
func (p stateTimers) trackStateDuration(key, state string) (unchangedFor time.Duration) {
	if was, ok := p[key]; !ok || was.state != state {
		p[key] = stateSince{state, time.Now()}
	}
	return time.Since(p[key].at)
}

// Reconcile takes the next steps of the pool's earliest unfinished update. Before each action it writes the PoolUpdate
// with the resourceVersion that it has read. If another process has taken over the Lease and changed the PoolUpdate,
// this write returns a conflict, and no action follows.
func (u *Updater) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	retry := reconcile.Result{RequeueAfter: u.opts.Timeouts.PollInterval}
	if !u.lease.IsHeld() { // another process works on it: the timers restart afterwards
		u.timersUID = ""
		return retry, nil
	}
	if known, err := u.listUpdatesWith(ctx, u.opts.Cluster.listCached); err == nil && findEarliestUnfinished(known) == nil {
		return retry, nil
	}
	all, err := u.listUpdatesLive(ctx)
	if up := findEarliestUnfinished(all); up != nil {
		err = u.reconcileUpdate(ctx, up)
	}
	if err != nil && ctx.Err() == nil {
		u.log.Warn("reconciling the pool's updates failed, retrying", "err", err)
	}
	return retry, nil
}

type updateScope struct {
	*Updater
	update        *v1alpha1.PoolUpdate
	writtenStatus *v1alpha1.PoolUpdateStatus
}

// reconcileUpdate runs the next steps of an update and stores its progress.
func (u *Updater) reconcileUpdate(ctx context.Context, up *v1alpha1.PoolUpdate) error {
	if u.timersUID != up.UID {
		u.timersUID, u.timers = up.UID, stateTimers{}
	}
	s, st := &updateScope{u, up, up.Status.DeepCopy()}, &up.Status
	if st.StartedAt == nil {
		st.StartedAt = toMicroTime(time.Now())
		setCondition(up, v1alpha1.PoolUpdateAccepted, metav1.ConditionTrue, "Accepted", "")
		if err := s.saveStatus(ctx); err != nil {
			return err
		}
	}
	err := s.runSteps(ctx)
	var outcome *Outcome
	switch {
	case apierrors.IsConflict(err) || ctx.Err() != nil:
		return err
	case err != nil && !errors.As(err, &outcome):
		outcome = s.recordStepFailure(err)
	default:
		delete(u.timers, "troubled")
	}
	switch {
	case outcome == nil:
	case outcome.Result != Done && !isPermanentError(err) && s.describeUnfinishedWork() != "":
		s.markBlockedOnce(outcome)
	default:
		return s.completeUpdate(ctx, outcome)
	}
	if summarizeStatus(up); equality.Semantic.DeepEqual(s.writtenStatus, st) {
		return nil
	}
	return s.saveStatus(ctx)
}

// runSteps takes the next steps of the update. If it returns an *Outcome as its error, the update is finished. Before
// each action it writes the status. In a process that no longer works on the update, this write fails, and no action
// follows.
func (s *updateScope) runSteps(ctx context.Context) error {
	if s.update.Status.ObservedAt == nil {
		removes, err := s.mayRemoveMachines(ctx)
		switch {
		case err != nil:
			return newOutcome(ToResult(err), "%s", err)
		case !removes:
			return s.forwardUpdate(ctx)
		}
		if err := s.planRemovals(ctx); err != nil {
			return err
		}
	}
	err := s.updateRemovingMachines(ctx)
	switch {
	case err != nil:
	case s.update.Spec.Type == v1alpha1.SetPoolSize:
		err = s.advancePoolShrink(ctx)
	default:
		err = s.advanceMachineRemoval(ctx)
	}
	var outcome *Outcome
	if errors.As(err, &outcome) && outcome.Result != Done && s.update.Status.MadeEvictable && s.isMachineKept() {
		if err := s.undoMadeEvictable(ctx); err != nil {
			return err
		}
	}
	return err
}

// mayRemoveMachines reports whether the update may remove a machine. Any other update is forwarded to the pool.
func (s *updateScope) mayRemoveMachines(ctx context.Context) (mayRemove bool, err error) {
	switch s.update.Spec.Type {
	case v1alpha1.SetPoolSize:
		return s.WouldShrink(ctx, int(*s.update.Spec.DesiredSize))
	case v1alpha1.TerminateMachine:
		return true, nil
	}
	return s.update.IsDisposal(), nil
}

// forwardUpdate sends an update to the pool, once. The pool's answer becomes the outcome of the update.
func (s *updateScope) forwardUpdate(ctx context.Context) error {
	is := s.Forward(ctx, s.toUpdate(s.update))
	level := slog.LevelInfo
	if is.Outcome.Result != Done {
		level = slog.LevelWarn
	}
	s.log.Log(ctx, level, "forwarded a change to the pool", "update", s.update.Name, "change", is.APIOperation(), "user", is.RequestedBy, "result", is.Outcome.Result,
		"detail", is.Outcome.Detail)
	s.update.Status.Answer = is.ServerAnswer
	return is.Outcome
}

// planRemovals reads the pool and the cluster, and stores in the status which machines will be removed.
func (s *updateScope) planRemovals(ctx context.Context) error {
	w, err := s.observePool(ctx)
	if err != nil {
		return err
	}
	st := &s.update.Status
	st.SizeBefore, st.ObservedAt = int32(w.size.Desired), toMicroTime(w.pool.Timestamp)
	st.Launch = s.update.Spec.Type != v1alpha1.SetPoolSize && !s.update.Spec.Decrement && !s.opts.Backend.KeepsSize()
	if s.update.Spec.Type == v1alpha1.SetPoolSize {
		d, err := s.chooseMachinesToRemove(w, s.update, nil)
		if err != nil {
			return err
		}
		for _, v := range d.Victims[:min(len(d.Victims), v1alpha1.MaxPoolMachines)] {
			s.update.SetMachine(v1alpha1.PoolMachine{ID: v.Machine, Node: v.Node, State: v1alpha1.MachinePlanned})
		}
		for _, p := range d.Skipped[:min(len(d.Skipped), v1alpha1.MaxSkippedMachines)] {
			st.Skipped = append(st.Skipped, v1alpha1.SkippedMachine{
				Machine: p.Machine, Node: p.Node, Rule: p.Rule, Pod: p.Pod, Message: observe.ClipBytes(p.Message, maxReasonBytes), Remedy: observe.ClipBytes(p.Remedy, maxReasonBytes),
			})
		}
	}
	return s.saveStatus(ctx)
}

// summarizeStatus updates the counters in the status, and removes the details of machines that need no more work.
func summarizeStatus(up *v1alpha1.PoolUpdate) {
	st := &up.Status
	st.Removed = int32(countRemoved(up))
	if all := len(st.Machines) - up.CountMachinesInState(v1alpha1.MachineRefused); all > 0 {
		st.Progress = fmt.Sprintf("%d/%d", st.Removed, all)
	}
	for i := range st.Machines { // a finished machine keeps its result only
		if m := &st.Machines[i]; m.State == v1alpha1.MachineRemoved || m.State == v1alpha1.MachineRefused {
			*m = v1alpha1.PoolMachine{
				ID: m.ID, Node: m.Node, DeletionRequested: m.DeletionRequested, State: m.State, Reason: observe.ClipBytes(m.Reason, maxReasonBytes), Since: m.Since,
			}
		}
	}
}

// maxReasonBytes limits the text that says why a machine is not removed. maxMessageBytes limits the text with the
// reason of an outcome.
const (
	maxReasonBytes  = 400
	maxMessageBytes = 32 << 10 // the API server's limit
)

// saveStatus writes the status. It returns a conflict if another client has changed the PoolUpdate since it was read.
func (s *updateScope) saveStatus(ctx context.Context) error {
	summarizeStatus(s.update)
	c := s.update.DeepCopy() // the response would overwrite the object in use
	if err := s.opts.Cluster.objects.Status().Update(ctx, c); err != nil {
		return NewClusterFailure("writing PoolUpdate "+s.update.Name, err)
	}
	s.update.ResourceVersion, s.writtenStatus = c.ResourceVersion, s.update.Status.DeepCopy()
	return nil
}

func setCondition(up *v1alpha1.PoolUpdate, kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&up.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: observe.ClipBytes(message, maxMessageBytes), ObservedGeneration: up.Generation,
	})
}

// recordStepFailure records that a step has failed. After steps have failed for Timeouts.FailureTolerance, it returns
// an outcome for the clients, otherwise nil. The retirements continue in both cases.
func (s *updateScope) recordStepFailure(err error) *Outcome {
	s.log.Warn("a step of the update failed, retrying", "update", s.update.Name, "err", err)
	s.update.Status.Message = err.Error()
	if s.timers.trackStateDuration("troubled", "") < s.opts.Timeouts.FailureTolerance {
		return nil
	}
	return &Outcome{Result: ToResult(err), Detail: err.Error()}
}

// markBlockedOnce reports an outcome to the clients although the update continues. If the update ended now, the pool
// would stay one machine short, or a machine would stay evictable.
func (s *updateScope) markBlockedOnce(outcome *Outcome) {
	if meta.IsStatusConditionTrue(s.update.Status.Conditions, v1alpha1.PoolUpdateBlocked) {
		return
	}
	setCondition(s.update, v1alpha1.PoolUpdateBlocked, metav1.ConditionTrue, string(outcome.Result), outcome.Detail+"; the update continues until "+s.describeUnfinishedWork())
	s.log.Warn("the update fails and continues without its clients", "update", s.update.Name, "result", outcome.Result, "detail", outcome.Detail)
}

// isMachineKept reports whether, as far as is known, the update does not remove its machine.
func (s *updateScope) isMachineKept() bool {
	m := s.update.FindMachineExceptPlanned(s.update.Spec.MachineID)
	return m == nil || m.State == v1alpha1.MachineRefused
}

// describeUnfinishedWork returns the state that the update must still reach, or "" if there is none. Either a machine
// that stays must be made non-evictable again, or a removed machine needs a replacement.
func (s *updateScope) describeUnfinishedWork() string {
	m, st := s.update.FindMachineExceptPlanned(s.update.Spec.MachineID), &s.update.Status
	switch {
	case s.isMachineKept() && st.MadeEvictable:
		return "machine " + s.update.Spec.MachineID + " is not evictable again"
	case !s.isMachineKept() && st.Launch && (m.State == v1alpha1.MachineRemoved || m.Retirement != "" || m.DeletionRequested):
		return "the machine is gone and another one is launched in its place"
	}
	return ""
}

// completeUpdate stores that the update is finished. After the write, waiting clients get their answer.
func (s *updateScope) completeUpdate(ctx context.Context, outcome *Outcome) error {
	st, complete, message := &s.update.Status, metav1.ConditionFalse, observe.ClipBytes(outcome.Detail, maxReasonBytes)
	if outcome.Result == Done {
		complete, message = metav1.ConditionTrue, ""
	}
	st.Machines = slices.DeleteFunc(st.Machines, func(m v1alpha1.PoolMachine) bool { return m.State == v1alpha1.MachinePlanned })
	st.CompletedAt, st.Message = toMicroTime(time.Now()), message
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.PoolUpdateBlocked)
	setCondition(s.update, v1alpha1.PoolUpdateComplete, complete, string(outcome.Result), outcome.Detail)
	if err := s.saveStatus(ctx); err != nil {
		return err
	}
	s.log.Info("finished PoolUpdate", "update", s.update.Name, "result", outcome.Result, "removed", st.Removed, "detail", outcome.Detail)
	s.opts.Metrics.recordFinished(s.toUpdate(s.update))
	s.notifyWaiters()
	s.deleteOldUpdates(ctx)
	return nil
}

// toMicroTime returns the time rounded up to microseconds. With rounding up, an observation at t is never later than
// the stored time.
func toMicroTime(t time.Time) *metav1.MicroTime {
	return new(metav1.NewMicroTime(t.Add(time.Microsecond - 1).Truncate(time.Microsecond)))
}

// undoMadeEvictable makes the update's machine non-evictable again. It succeeds too if the machine is gone or is not
// evictable.
func (s *updateScope) undoMadeEvictable(ctx context.Context) error {
	if err := s.setMachineEvictable(ctx, false); err != nil {
		pool, unread := s.opts.Backend.Pool(ctx)
		mayGo := slices.ContainsFunc(pool.Machines, func(m api.Machine) bool {
			return m.ID == s.update.Spec.MachineID && !matching.HasEnded(&m, s.opts.Backend) && m.IsEvictable()
		})
		if unread != nil || mayGo || !pool.Timestamp.After(s.update.Status.StartedAt.Time) {
			return err
		}
	}
	s.update.Status.MadeEvictable = false
	return nil
}

// setMachineEvictable sets whether the update's machine is evictable. The machine stays active.
func (s *updateScope) setMachineEvictable(ctx context.Context, evictable bool) error {
	if err := s.saveStatus(ctx); err != nil {
		return err
	}
	status := api.MembershipStatus{Active: true, Evictable: evictable}
	if err := s.opts.Backend.SetMembershipStatus(ctx, api.SetMembershipStatus{MachineID: s.update.Spec.MachineID, MembershipStatus: status}); err != nil {
		return NewBackendFailure(fmt.Sprintf("setting the membership of machine %s to %+v", s.update.Spec.MachineID, status), err)
	}
	return nil
}
