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

// WouldShrink reports whether the desired size n could make the pool's server remove a machine. It could if n is less
// than the current desired size, or less than the number of active machines.
func (u *Updater) WouldShrink(ctx context.Context, desired int) (shrinks bool, err error) {
	size, err := u.opts.Backend.Size(ctx)
	if err != nil {
		return false, NewBackendFailure("reading the pool's size", err)
	}
	if desired < size.Desired || desired < size.Active {
		return true, nil
	}
	pool, err := u.opts.Backend.Pool(ctx)
	if err != nil {
		return false, NewBackendFailure("reading the pool", err)
	}
	return desired < countActiveMachines(&pool), nil
}

// Forward sends a change that removes no machine to the pool's server. It returns the update with its outcome.
func (u *Updater) Forward(ctx context.Context, want *Update) *Update {
	return want.WithServerAnswer(u.forwardIfSafe(ctx, want))
}

// WithServerAnswer returns the update with the outcome that err means. If the pool's server or its cloud has refused
// the change, the outcome contains the answer.
func (u *Update) WithServerAnswer(err error) *Update {
	is := u.withOutcome(&Outcome{Result: Done})
	if err != nil {
		is.ServerAnswer, is.Outcome.Result, is.Outcome.Detail = toPoolAnswer(u.APIOperation(), err), ToResult(err), err.Error()
		if is.ServerAnswer != nil && is.Outcome.Result == Failed {
			is.Outcome.Result = BackendUnavailable
		}
	}
	return is
}

func (u *Updater) forwardIfSafe(ctx context.Context, want *Update) error {
	_, native := u.opts.Backend.(*NativePool) // a pool without a server never removes machines on its own
	switch want.Kind {
	case SetSize: // another client may have changed the pool, and a forwarded size must not shrink it
		smaller, err := u.WouldShrink(ctx, want.DesiredSize)
		switch {
		case err != nil:
			return err
		case smaller:
			return NewFailuref(NotPossible, "the pool is larger than the requested size")
		}
		return u.opts.Backend.SetDesiredSize(ctx, want.DesiredSize)
	case DetachMachine:
		if !native {
			if err := u.cancelMachineRetirement(ctx, want.MachineID, true); err != nil {
				return err
			}
		}
		return u.opts.Backend.Detach(ctx, api.Removal{MachineID: want.MachineID, Decrement: want.Decrement})
	}
	membership := api.SetMembershipStatus{MachineID: want.MachineID, MembershipStatus: api.MembershipStatus(*want.Membership)}
	if native {
		return u.opts.Backend.SetMembershipStatus(ctx, membership)
	}
	if !want.Membership.Evictable {
		if err := u.cancelMachineRetirement(ctx, want.MachineID, false); err != nil {
			return err
		}
	}
	return u.forwardMembershipIfSafe(ctx, membership, want.RequestedBy)
}

// forwardMembershipIfSafe sends a membership status to the pool's server. If the pool has more active machines than
// desired, it refuses to make a machine evictable: the server would then delete machines of its choice. It logs a
// warning if an activated machine exceeds the desired size.
func (u *Updater) forwardMembershipIfSafe(ctx context.Context, want api.SetMembershipStatus, user string) error {
	b := u.opts.Backend
	if !want.MembershipStatus.Active {
		return b.SetMembershipStatus(ctx, want)
	}
	pool, err := b.Pool(ctx)
	if err != nil {
		return err // the server would answer the request the same way
	}
	size, err := b.Size(ctx)
	if err != nil {
		return err
	}
	active := countActiveMachines(&pool)
	for i := range pool.Machines {
		is := &pool.Machines[i]
		switch {
		case is.ID != want.MachineID || is.State.HasLeftPool():
		case !is.IsActive() && active >= size.Desired:
			u.log.Warn("an activated machine exceeds the desired size: the pool's server deletes a machine of its choice",
				"machine", is.ID, "active", active+1, "desiredSize", size.Desired, "user", user)
		case is.IsActive() && !is.IsEvictable() && want.MembershipStatus.Evictable && active > size.Desired:
			return NewFailuref(NotPossible, "the pool has %d active machines and desiredSize %d: if machine %s becomes evictable, the server deletes "+
				"machines of its choice: bring the pool to its size first, with POST /pool/size", active, size.Desired, want.MachineID)
		}
	}
	return b.SetMembershipStatus(ctx, want)
}

func countActiveMachines(pool *api.Pool) int {
	n := 0
	for i := range pool.Machines {
		if pool.Machines[i].IsActive() {
			n++
		}
	}
	return n
}

// checkNotDrained returns an error if the retirement rt has drained the machine's node, because the machine is then
// deleted in any case. rt may be nil.
func checkNotDrained(machine string, rt *v1alpha1.NodeRetirement) error {
	if rt != nil && (rt.Status.Phase == v1alpha1.Drained || isNodeGone(rt)) {
		return NewFailuref(NotPossible, "machine %s can no longer be kept: NodeRetirement %s of its node %s is %s", machine, rt.Name, rt.Spec.NodeName,
			rt.Status.Phase)
	}
	return nil
}

// hasNotStarted reports whether a retirement is pending and has changed nothing yet.
func hasNotStarted(rt *v1alpha1.NodeRetirement) bool {
	return (rt.Status.Phase == "" || rt.Status.Phase == v1alpha1.Pending) && !retirement.IsInFlight(rt)
}

// cancelMachineRetirement cancels the retirement of a machine that must keep running. Otherwise the server would refuse
// the deletion, and the node would stay cordoned. It does not cancel a retirement that has not started if cancelPending
// is false, or if the retirement is for a notice.
func (u *Updater) cancelMachineRetirement(ctx context.Context, machine string, cancelPending bool) error {
	retirements, err := u.opts.Cluster.listUnfinishedRetirements(ctx)
	if err != nil || len(retirements) == 0 {
		return err
	}
	pool, err := u.opts.Backend.Pool(ctx)
	if err != nil {
		return err // the server would answer the request the same way
	}
	nodes, err := u.opts.Cluster.CachedNodes()
	if err != nil {
		return NewClusterFailure("reading the nodes", err)
	}
	rt := matching.MapRetirementsByMachine(matching.PairMachines(pool.Machines, nodes, u.opts.Backend).Members, retirements, u.opts.Backend)[machine]
	if rt == nil || hasNotStarted(rt) && (!cancelPending || rt.Spec.Notice != nil) {
		return nil
	}
	if err := checkNotDrained(machine, rt); err != nil {
		return err
	}
	u.log.Info("cancelling a NodeRetirement because its machine must keep running", "machine", machine, "node", rt.Spec.NodeName, "retirement", rt.Name)
	return u.cancelAndAwaitRestore(ctx, machine, rt.Name)
}

// cancelAndAwaitRestore deletes a retirement, and waits until the manager has restored its node.
func (u *Updater) cancelAndAwaitRestore(ctx context.Context, machine, name string) error {
	if err := u.opts.Cluster.deleteRetirement(ctx, name); err != nil {
		return err
	}
	var rt v1alpha1.NodeRetirement
	var unread error
	err := wait.PollUntilContextTimeout(ctx, restorePollInterval, u.opts.Timeouts.NodeRestore, true, func(context.Context) (bool, error) {
		err := u.opts.Cluster.objects.Get(ctx, client.ObjectKey{Name: name}, &rt)
		unread = client.IgnoreNotFound(err)
		return err != nil || rt.Status.Phase.IsFinal(), unread
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case unread != nil:
		return NewClusterFailure("reading a NodeRetirement", unread)
	case err == nil:
		return nil
	}
	if err := checkNotDrained(machine, &rt); err != nil { // the drain finished before the cancellation
		return err
	}
	return NewFailuref(NotPossible, "NodeRetirement %s of its node %s was cancelled, but the node was not restored within %s: retry later",
		name, rt.Spec.NodeName, u.opts.Timeouts.NodeRestore)
}

// restorePollInterval is the interval between reads of a cancelled retirement.
const restorePollInterval = 500 * time.Millisecond
