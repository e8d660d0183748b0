package controller

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// Shrinks reports whether the pool could take a machine away to come to a size: it is meant to be larger, or it is.
func (u *Updater) Shrinks(ctx context.Context, n int) (bool, error) {
	size, err := u.o.Backend.Size(ctx)
	if err != nil {
		return false, BackendFailure("reading the pool's size", err)
	}
	if n < size.Desired || n < size.Active {
		return true, nil
	}
	pool, err := u.o.Backend.Pool(ctx)
	if err != nil {
		return false, BackendFailure("reading the pool", err)
	}
	return n < countActive(&pool), nil
}

// Pass asks the pool for what takes no machine away, and returns how that ended.
func (u *Updater) Pass(ctx context.Context, want *Update) *Update {
	return want.Answered(u.passOn(ctx, want))
}

// Answered returns an update that was passed on: its outcome and, if the pool's server or its cloud refused it, their answer.
func (u *Update) Answered(err error) *Update {
	is := u.with(&Outcome{Result: Done})
	if err != nil {
		is.Answer, is.Outcome.Result, is.Outcome.Detail = answerOf(u.Doing(), err), ResultOf(err), err.Error()
		if is.Answer != nil && is.Outcome.Result == Failed {
			is.Outcome.Result = BackendUnavailable
		}
	}
	return is
}

func (u *Updater) passOn(ctx context.Context, want *Update) error {
	_, native := u.o.Backend.(*Native) // a pool without a server of its own takes no machine away by itself
	switch want.Kind {
	case SetSize: // another client may have changed the pool since, and what passes must not shrink it
		smaller, err := u.Shrinks(ctx, want.DesiredSize)
		switch {
		case err != nil:
			return err
		case smaller:
			return Failuref(NotPossible, "the pool is larger")
		}
		return u.o.Backend.SetDesiredSize(ctx, want.DesiredSize)
	case DetachMachine:
		if !native {
			if err := u.release(ctx, want.MachineID, true); err != nil {
				return err
			}
		}
		return u.o.Backend.Detach(ctx, api.Removal{MachineID: want.MachineID, Decrement: want.Decrement})
	}
	membership := api.SetMembershipStatus{MachineID: want.MachineID, MembershipStatus: api.MembershipStatus(*want.Membership)}
	if native {
		return u.o.Backend.SetMembershipStatus(ctx, membership)
	}
	if !want.Membership.Evictable {
		if err := u.release(ctx, want.MachineID, false); err != nil {
			return err
		}
	}
	return u.setMembership(ctx, membership, want.RequestedBy)
}

// setMembership passes a membership on as it is, and the desired size stays. It refuses to make a machine evictable while the pool has
// more active machines than it should: the pool's server would choose some and delete them. It logs a machine that is one too many as
// soon as it counts again.
func (u *Updater) setMembership(ctx context.Context, want api.SetMembershipStatus, user string) error {
	b := u.o.Backend
	if !want.MembershipStatus.Active {
		return b.SetMembershipStatus(ctx, want)
	}
	pool, err := b.Pool(ctx)
	if err != nil {
		return err // the server's own word, which it would have for the request too
	}
	size, err := b.Size(ctx)
	if err != nil {
		return err
	}
	active := countActive(&pool)
	for i := range pool.Machines {
		is := &pool.Machines[i]
		switch {
		case is.ID != want.MachineID || is.State.Over():
		case !is.Active() && active >= size.Desired:
			u.log.Warn("a machine counts again, and the pool has one more than it is meant to have: its server takes one of its own choice away",
				"machine", is.ID, "active", active+1, "desiredSize", size.Desired, "user", user)
		case is.Active() && !is.Evictable() && want.MembershipStatus.Evictable && active > size.Desired:
			return Failuref(NotPossible, "the pool has %d active machines and is meant to have %d: as soon as machine %s may be taken away, its server takes "+
				"some of its own choice: want the pool brought to its size before, with POST /pool/size", active, size.Desired, want.MachineID)
		}
	}
	return b.SetMembershipStatus(ctx, want)
}

// countActive counts the machines that a pool's size counts.
func countActive(pool *api.Pool) int {
	n := 0
	for i := range pool.Machines {
		if pool.Machines[i].Active() {
			n++
		}
	}
	return n
}

// tooLate says why a machine with a retirement cannot be kept any more: its node is drained. rt may be nil.
func tooLate(machine string, rt *v1alpha1.NodeRetirement) error {
	if rt != nil && (rt.Status.Phase == v1alpha1.Drained || pastReturn(rt)) {
		return Failuref(NotPossible, "machine %s cannot be kept any more: NodeRetirement %s of its node %s is %s", machine, rt.Name, rt.Spec.NodeName,
			rt.Status.Phase)
	}
	return nil
}

// waits reports a retirement that has done nothing yet.
func waits(rt *v1alpha1.NodeRetirement) bool {
	return (rt.Status.Phase == "" || rt.Status.Phase == v1alpha1.Pending) && !retirement.InFlight(rt)
}

// release cancels the retirement of a machine that is to run on: the server would never let it finish, and its node would stay cordoned.
// A retirement that has done nothing stays if waiting is false, or if it is for a notice.
func (u *Updater) release(ctx context.Context, machine string, waiting bool) error {
	retirements, err := u.o.Cluster.unfinished(ctx)
	if err != nil || len(retirements) == 0 {
		return err
	}
	pool, err := u.o.Backend.Pool(ctx)
	if err != nil {
		return err // the server's own word, which it would have for the request too
	}
	nodes, err := u.o.Cluster.Nodes()
	if err != nil {
		return ClusterFailure("reading the nodes", err)
	}
	rt := matching.FindRetirements(matching.Pair(pool.Machines, nodes, u.o.Backend).Members, retirements, u.o.Backend)[machine]
	if rt == nil || waits(rt) && (!waiting || rt.Spec.Notice != nil) {
		return nil
	}
	if err := tooLate(machine, rt); err != nil {
		return err
	}
	u.log.Info("a retirement is called off: its machine is to run on", "machine", machine, "node", rt.Spec.NodeName, "retirement", rt.Name)
	return u.cancel(ctx, machine, rt.Name)
}

// cancel deletes a retirement, and waits until it has restored its node.
func (u *Updater) cancel(ctx context.Context, machine, name string) error {
	if err := u.o.Cluster.callOff(ctx, name); err != nil {
		return err
	}
	var rt v1alpha1.NodeRetirement
	var unread error
	err := wait.PollUntilContextTimeout(ctx, restoreEvery, u.o.Pace.Take, true, func(context.Context) (bool, error) {
		err := u.o.Cluster.objects.Get(ctx, client.ObjectKey{Name: name}, &rt)
		unread = client.IgnoreNotFound(err)
		return err != nil || rt.Status.Phase.Finished(), unread
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case unread != nil:
		return ClusterFailure("reading a NodeRetirement", unread)
	case err == nil:
		return nil
	}
	if err := tooLate(machine, &rt); err != nil { // it was, before it could be called off
		return err
	}
	return Failuref(NotPossible, "NodeRetirement %s of its node %s was called off, and has not given the node back within %s: ask again",
		name, rt.Spec.NodeName, u.o.Pace.Take)
}

// restoreEvery is the time between two reads of a retirement that was cancelled.
const restoreEvery = 500 * time.Millisecond
