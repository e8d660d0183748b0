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

// progress is since when something, by its name, has been as it is. It is not stored: a process that takes an update over waits anew.
type progress map[string]since

type since struct {
	code string
	at   time.Time
}

// lasts notes how something is now, and returns for how long it has been so.
func (p progress) lasts(what, code string) time.Duration {
	if was, ok := p[what]; !ok || was.code != code {
		p[what] = since{code, time.Now()}
	}
	return time.Since(p[what].at)
}

// Reconcile does what is due for the pool's earliest update that has not ended. It acts on what the API server says at this moment, and
// only after a write with the resourceVersion that it has read: a process that has lost the Lease without knowing it conflicts.
func (u *Updater) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	again := reconcile.Result{RequeueAfter: u.o.Pace.Poll}
	if !u.slot.Held() { // another process works on it, or will: how long something lasts is counted anew afterwards
		u.known = ""
		return again, nil
	}
	if known, err := u.list(ctx, u.o.Cluster.list); err == nil && underway(known) == nil {
		return again, nil
	}
	all, err := u.updates(ctx)
	if up := underway(all); up != nil {
		err = u.step(ctx, up)
	}
	if err != nil && ctx.Err() == nil {
		u.log.Warn("the pool's updates do not come on, and that is tried again", "err", err)
	}
	return again, nil
}

// step is one reconcile of an update.
type step struct {
	*Updater
	up      *v1alpha1.PoolUpdate
	written *v1alpha1.PoolUpdateStatus
}

// step does what is due, and writes down how far the update is.
func (u *Updater) step(ctx context.Context, up *v1alpha1.PoolUpdate) error {
	if u.known != up.UID {
		u.known, u.progress = up.UID, progress{}
	}
	s, st := &step{u, up, up.Status.DeepCopy()}, &up.Status
	if st.StartedAt == nil {
		st.StartedAt = toMicro(time.Now())
		setCondition(up, v1alpha1.PoolUpdateAccepted, metav1.ConditionTrue, "Accepted", "")
		if err := s.save(ctx); err != nil {
			return err
		}
	}
	err := s.turn(ctx)
	var outcome *Outcome
	switch {
	case apierrors.IsConflict(err) || ctx.Err() != nil:
		return err
	case err != nil && !errors.As(err, &outcome):
		outcome = s.trouble(err)
	default:
		delete(u.progress, "troubled")
	}
	switch {
	case outcome == nil:
	case outcome.Result != Done && !isFinal(err) && s.debt() != "":
		s.block(outcome)
	default:
		return s.finish(ctx, outcome)
	}
	if note(up); equality.Semantic.DeepEqual(s.written, st) {
		return nil
	}
	return s.save(ctx)
}

// turn does what is due. An *Outcome ends the update. Each act follows a write of the status, so that a process that has fallen behind
// another one does nothing.
func (s *step) turn(ctx context.Context) error {
	if s.up.Status.ObservedAt == nil {
		takes, err := s.takesMachines(ctx)
		switch {
		case err != nil:
			return end(ResultOf(err), "%s", err)
		case !takes:
			return s.pass(ctx)
		}
		if err := s.begin(ctx); err != nil {
			return err
		}
	}
	err := s.follow(ctx)
	switch {
	case err != nil:
	case s.up.Spec.Type == v1alpha1.SetPoolSize:
		err = s.shrink(ctx)
	default:
		err = s.remove(ctx)
	}
	var outcome *Outcome
	if errors.As(err, &outcome) && outcome.Result != Done && s.up.Status.MadeEvictable && s.stays() {
		if err := s.protect(ctx); err != nil {
			return err
		}
	}
	return err
}

// takesMachines reports whether the update may take a machine away; any other is passed on.
func (s *step) takesMachines(ctx context.Context) (bool, error) {
	switch s.up.Spec.Type {
	case v1alpha1.SetPoolSize:
		return s.Shrinks(ctx, int(*s.up.Spec.DesiredSize))
	case v1alpha1.TerminateMachine:
		return true, nil
	}
	return s.up.Disposes(), nil
}

// pass passes an update on, once: what its pool says is its outcome.
func (s *step) pass(ctx context.Context) error {
	is := s.Pass(ctx, s.view(s.up))
	level := slog.LevelInfo
	if is.Outcome.Result != Done {
		level = slog.LevelWarn
	}
	s.log.Log(ctx, level, "a change has been passed on", "update", s.up.Name, "change", is.Doing(), "user", is.RequestedBy, "result", is.Outcome.Result,
		"detail", is.Outcome.Detail)
	s.up.Status.Answer = is.Answer
	return is.Outcome
}

// begin observes the pool and plans which machines go.
func (s *step) begin(ctx context.Context) error {
	w, err := s.look(ctx)
	if err != nil {
		return err
	}
	st := &s.up.Status
	st.SizeBefore, st.ObservedAt = int32(w.size.Desired), toMicro(w.pool.Timestamp)
	st.Launch = s.up.Spec.Type != v1alpha1.SetPoolSize && !s.up.Spec.Decrement && !s.o.Backend.KeepsSize()
	if s.up.Spec.Type == v1alpha1.SetPoolSize {
		d, err := s.decide(w, s.up, nil)
		if err != nil {
			return err
		}
		for _, v := range d.Victims[:min(len(d.Victims), v1alpha1.MaxPoolMachines)] {
			s.up.SetMachine(v1alpha1.PoolMachine{ID: v.Machine, Node: v.Node, State: v1alpha1.MachinePlanned})
		}
		for _, p := range d.Passed[:min(len(d.Passed), v1alpha1.MaxPoolPassed)] {
			st.Passed = append(st.Passed, v1alpha1.PoolPassed{
				Machine: p.Machine, Node: p.Node, Rule: p.Rule, Pod: p.Pod, Message: observe.Clip(p.Text, maxReason), Remedy: observe.Clip(p.Remedy, maxReason),
			})
		}
	}
	return s.save(ctx)
}

// note puts into the status what is counted.
func note(up *v1alpha1.PoolUpdate) {
	st := &up.Status
	st.Removed = int32(removed(up))
	if all := len(st.Machines) - up.CountMachines(v1alpha1.MachineRefused); all > 0 {
		st.Progress = fmt.Sprintf("%d/%d", st.Removed, all)
	}
	for i := range st.Machines { // what is over needs no more than how it ended
		if m := &st.Machines[i]; m.State == v1alpha1.MachineLeft || m.State == v1alpha1.MachineRefused {
			*m = v1alpha1.PoolMachine{
				ID: m.ID, Node: m.Node, DeletionRequested: m.DeletionRequested, State: m.State, Reason: observe.Clip(m.Reason, maxReason), Since: m.Since,
			}
		}
	}
}

// maxReason is what is kept of why a machine stays, in bytes, and maxMessage of why an update ended.
const (
	maxReason  = 400
	maxMessage = 32 << 10 // what the API server takes
)

// save writes the status, unless the update was changed since it was read.
func (s *step) save(ctx context.Context) error {
	note(s.up)
	c := s.up.DeepCopy() // the answer would replace what is being worked on
	if err := s.o.Cluster.objects.Status().Update(ctx, c); err != nil {
		return ClusterFailure("writing PoolUpdate "+s.up.Name, err)
	}
	s.up.ResourceVersion, s.written = c.ResourceVersion, s.up.Status.DeepCopy()
	return nil
}

func setCondition(up *v1alpha1.PoolUpdate, kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&up.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: observe.Clip(message, maxMessage), ObservedGeneration: up.Generation,
	})
}

// trouble notes that a step failed. It returns an outcome when steps have failed for too long. The retirements continue.
func (s *step) trouble(err error) *Outcome {
	s.log.Warn("an update meets an error, and tries again", "update", s.up.Name, "err", err)
	s.up.Status.Message = err.Error()
	if s.progress.lasts("troubled", "") < s.o.Pace.Trouble {
		return nil
	}
	return &Outcome{Result: ResultOf(err), Detail: err.Error()}
}

// block answers the clients of an update that has troubles, and that must not end before its debt is paid: the pool would be one
// machine short, or a machine would be without its protection, for good.
func (s *step) block(outcome *Outcome) {
	if meta.IsStatusConditionTrue(s.up.Status.Conditions, v1alpha1.PoolUpdateBlocked) {
		return
	}
	setCondition(s.up, v1alpha1.PoolUpdateBlocked, metav1.ConditionTrue, string(outcome.Result), outcome.Detail+"; the update goes on until "+s.debt())
	s.log.Warn("an update has troubles, and goes on without its clients", "update", s.up.Name, "result", outcome.Result, "detail", outcome.Detail)
}

// stays reports that the update's machine is kept, as far as is known.
func (s *step) stays() bool {
	m := s.up.Machine(s.up.Spec.MachineID)
	return m == nil || m.State == v1alpha1.MachineRefused
}

// debt says what only this update does: protect a machine that stays and was made evictable, or launch another one in the place of a
// machine that leaves. It is empty if there is nothing.
func (s *step) debt() string {
	m, st := s.up.Machine(s.up.Spec.MachineID), &s.up.Status
	switch {
	case s.stays() && st.MadeEvictable:
		return "machine " + s.up.Spec.MachineID + " is not evictable again"
	case !s.stays() && st.Launch && (m.State == v1alpha1.MachineLeft || m.Retirement != "" || m.DeletionRequested):
		return "the machine is gone and another one is launched in its place"
	}
	return ""
}

// finish writes down that the update is over. Clients are told afterwards.
func (s *step) finish(ctx context.Context, outcome *Outcome) error {
	st, complete := &s.up.Status, metav1.ConditionFalse
	if outcome.Result == Done {
		complete = metav1.ConditionTrue
	}
	st.Machines = slices.DeleteFunc(st.Machines, func(m v1alpha1.PoolMachine) bool { return m.State == v1alpha1.MachinePlanned })
	st.CompletedAt, st.Message = toMicro(time.Now()), ""
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.PoolUpdateBlocked)
	setCondition(s.up, v1alpha1.PoolUpdateComplete, complete, string(outcome.Result), outcome.Detail)
	if err := s.save(ctx); err != nil {
		return err
	}
	s.log.Info("an update is over", "update", s.up.Name, "result", outcome.Result, "removed", st.Removed, "detail", outcome.Detail)
	s.o.Metrics.finished(s.view(s.up))
	s.notify()
	s.prune(ctx)
	return nil
}

// toMicro rounds a time up, so that what was observed then is not later than that.
func toMicro(t time.Time) *metav1.MicroTime {
	return new(metav1.NewMicroTime(t.Add(time.Microsecond - 1).Truncate(time.Microsecond)))
}

// protect undoes that the machine was made evictable, unless it is gone, or was never made evictable.
func (s *step) protect(ctx context.Context) error {
	if err := s.setEvictable(ctx, false); err != nil {
		pool, unread := s.o.Backend.Pool(ctx)
		mayGo := slices.ContainsFunc(pool.Machines, func(m api.Machine) bool {
			return m.ID == s.up.Spec.MachineID && !matching.HasEnded(&m, s.o.Backend) && m.Evictable()
		})
		if unread != nil || mayGo || !pool.Timestamp.After(s.up.Status.StartedAt.Time) {
			return err
		}
	}
	s.up.Status.MadeEvictable = false
	return nil
}

// setEvictable says whether the machine of an update, which counts, may be taken away.
func (s *step) setEvictable(ctx context.Context, evictable bool) error {
	if err := s.save(ctx); err != nil {
		return err
	}
	status := api.MembershipStatus{Active: true, Evictable: evictable}
	if err := s.o.Backend.SetMembershipStatus(ctx, api.SetMembershipStatus{MachineID: s.up.Spec.MachineID, MembershipStatus: status}); err != nil {
		return BackendFailure(fmt.Sprintf("setting the membership of machine %s to %+v", s.up.Spec.MachineID, status), err)
	}
	return nil
}
