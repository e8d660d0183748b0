package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// MaxFinishedUpdates is the number of finished updates per pool that are not deleted.
const MaxFinishedUpdates = 20

// ErrUpdatesUnreadable is the error if the API server does not list the updates.
var ErrUpdatesUnreadable = errors.New("no answer")

// updateReadInterval is how often the update of a waiting client is read from the API server, in case the watch has
// missed a change.
const updateReadInterval = 5 * time.Second

// listUpdatesLive reads the pool's updates from the API server, the latest first.
func (u *Updater) listUpdatesLive(ctx context.Context) ([]v1alpha1.PoolUpdate, error) {
	ctx, cancel := context.WithTimeout(ctx, u.opts.Timeouts.NodeRestore/2) // an API server may accept a connection and never answer
	defer cancel()
	all, err := u.listUpdatesWith(ctx, u.opts.Cluster.objects.List)
	if err != nil {
		return nil, NewClusterFailure("reading the PoolUpdates", fmt.Errorf("%w: %w", ErrUpdatesUnreadable, err))
	}
	return all, nil
}

func (u *Updater) listUpdatesWith(ctx context.Context, read func(context.Context, client.ObjectList, ...client.ListOption) error) ([]v1alpha1.PoolUpdate, error) {
	var list v1alpha1.PoolUpdateList
	err := read(ctx, &list, client.InNamespace(u.opts.Namespace), client.MatchingLabels{PoolLabel: poolKey(u.opts.Pool, "")})
	all := slices.DeleteFunc(list.Items, func(up v1alpha1.PoolUpdate) bool { return !u.isOwnUpdate(&up) })
	slices.SortFunc(all, func(a, b v1alpha1.PoolUpdate) int {
		return cmp.Compare(u.parseUpdateNumber(b.Name), u.parseUpdateNumber(a.Name))
	})
	return all, err
}

// findEarliestUnfinished returns the earliest unfinished update, or nil.
func findEarliestUnfinished(all []v1alpha1.PoolUpdate) *v1alpha1.PoolUpdate {
	for i := range slices.Backward(all) {
		if !all[i].IsFinished() {
			return &all[i]
		}
	}
	return nil
}

// isOwnUpdate reports whether the PoolUpdate is an update of this pool that Slipway has created. It checks the pool and
// the form of the name. Any other object with the pool's label is ignored and blocks no update.
func (u *Updater) isOwnUpdate(up *v1alpha1.PoolUpdate) bool {
	return poolKey(up.Spec.Pool, "") == poolKey(u.opts.Pool, "") && u.parseUpdateNumber(up.Name) >= 0
}

// parseUpdateNumber returns the number in the name of a PoolUpdate of this pool. It returns -1 if the name has another
// form.
func (u *Updater) parseUpdateNumber(name string) int {
	n, err := strconv.ParseInt(name[strings.LastIndexByte(name, '-')+1:], 10, 32)
	if err != nil || u.newUpdateObject(int(n)).Name != name {
		return -1
	}
	return int(n)
}

// newUpdateObject returns the PoolUpdate with number n. It sends no request.
func (u *Updater) newUpdateObject(n int) *v1alpha1.PoolUpdate {
	key := poolKey(u.opts.Pool, "")
	return &v1alpha1.PoolUpdate{ObjectMeta: metav1.ObjectMeta{
		Namespace: u.opts.Namespace, Name: fmt.Sprintf("%s-%d", key, n), Labels: map[string]string{PoolLabel: key},
	}}
}

// SubmitOrFindEqual creates an update and returns it. If an unfinished update requests the same change, it returns that
// update. If another update is unfinished, it returns a *BusyError. If judge is not nil, it is called before the
// creation and may refuse the update with an error.
func (u *Updater) SubmitOrFindEqual(ctx context.Context, want Update, precheck func(context.Context, *Update) error) (*Update, error) {
	spec := want.toSpec(u.opts.Pool)
	taken := 0 // the number of the last name that already existed
	for judged := precheck == nil; ; {
		all, err := u.listUpdatesLive(ctx)
		if err != nil {
			return nil, err
		}
		if up := findEarliestUnfinished(all); up != nil {
			if isSameRequest(up.Spec, spec) {
				return u.toUpdate(up), nil
			}
			return nil, &BusyError{Current: u.toUpdate(up)}
		}
		if !judged {
			if err := precheck(ctx, &want); err != nil {
				return nil, err
			}
			judged = true
		}
		next := taken + 1
		if len(all) > 0 {
			next = max(next, u.parseUpdateNumber(all[0].Name)+1)
		}
		up := u.newUpdateObject(next)
		up.Spec = spec
		err = u.opts.Cluster.objects.Create(ctx, up)
		switch {
		case apierrors.IsAlreadyExists(err): // the name is the lock; an unrelated object may have it too
			taken = next
			continue
		case apierrors.IsInvalid(err):
			return nil, &api.BadRequestError{ErrorMessage: api.ErrorMessage{Message: "illegal input: " + want.APIOperation(), Detail: err.Error()}}
		case err != nil:
			return nil, NewClusterFailure("creating a PoolUpdate", err)
		}
		u.log.Info("created PoolUpdate", "update", up.Name, "type", spec.Type, "desiredSize", want.DesiredSize, "machine", spec.MachineID,
			"requestedBy", spec.RequestedBy)
		u.notifyWaiters()
		return u.toUpdate(up), nil
	}
}

// WaitForOutcome waits until an accepted update has an outcome, and returns the update with it. If ctx ends, it returns
// the error of ctx. If the update cannot be read, or no replica starts it within Timeouts.FailureTolerance, the outcome
// reports that. The update continues in each of these cases.
func (u *Update) WaitForOutcome(ctx context.Context) (*Update, error) {
	up, patience, waits := u, u.updater.opts.Timeouts.FailureTolerance, stateTimers{}
	for live := false; ; {
		if is, ok := up.withClientOutcome(); ok {
			return is, nil
		}
		wakes := u.updater.changeSignal()
		found, err := up.reloadUnlessDeleted(ctx, live)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && waits.trackStateDuration("unread", "") >= patience:
			return up.withUnknownOutcome(ClusterUnavailable, "%s; the update continues as soon as it can be read", err), nil
		case err != nil:
		case found == nil:
			return up.withUnknownOutcome(Failed, "PoolUpdate %s was deleted: its outcome is unknown", up.ID), nil
		default:
			up = found
			delete(waits, "unread")
			if is, ok := up.withClientOutcome(); ok {
				return is, nil
			}
			if up.object.Status.StartedAt == nil && waits.trackStateDuration("idle", "") >= patience {
				return up.withUnknownOutcome(ClusterUnavailable, "no replica has started PoolUpdate %s within %s; it continues as soon as one does", up.ID, patience), nil
			}
		}
		select {
		case <-wakes: // the cache has the change
			live = false
		case <-time.After(updateReadInterval):
			live = true
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// reloadUnlessDeleted reads the update again: from the API server if live is true, otherwise from the cache. It returns nil if the
// update was deleted, or if a later update has its name.
func (u *Update) reloadUnlessDeleted(ctx context.Context, live bool) (*Update, error) {
	ctx, cancel := context.WithTimeout(ctx, u.updater.opts.Timeouts.NodeRestore/2)
	defer cancel()
	up, key, c := &v1alpha1.PoolUpdate{}, client.ObjectKeyFromObject(u.object), u.updater.opts.Cluster
	if !live {
		if c.getCached(ctx, key, up) == nil && up.UID == u.object.UID {
			return u.updater.toUpdate(up), nil
		}
		return u, nil // the cache does not have it yet
	}
	err := c.objects.Get(ctx, key, up)
	switch {
	case apierrors.IsNotFound(err), err == nil && up.UID != u.object.UID:
		return nil, nil
	case err != nil:
		return nil, NewClusterFailure("reading a PoolUpdate", err)
	}
	return u.updater.toUpdate(up), nil
}

// withUnknownOutcome returns the update with an outcome that tells the client that the real outcome is unknown.
func (u *Update) withUnknownOutcome(r Result, format string, a ...any) *Update {
	return u.withOutcome(&Outcome{Result: r, Detail: fmt.Sprintf(format, a...), Removed: int(u.object.Status.Removed), At: time.Now().UTC()})
}

// FindUpdate returns the update with the ID, or nil if it is not stored.
func (u *Updater) FindUpdate(ctx context.Context, id string) (*Update, error) {
	all, err := u.listUpdatesLive(ctx)
	if i := slices.IndexFunc(all, func(up v1alpha1.PoolUpdate) bool { return up.Name == id }); i >= 0 {
		return u.toUpdate(&all[i]), nil
	}
	return nil, err
}

// FindCompletedRemoval returns the latest update that has removed the same machine with the same effect on the desired
// size. It returns nil if there is none. An update that ended while the cloud was still deleting the machine counts
// too.
func (u *Updater) FindCompletedRemoval(ctx context.Context, want *Update) (*Update, error) {
	all, err := u.listUpdatesLive(ctx)
	for i := range all {
		up, m := u.toUpdate(&all[i]), all[i].FindMachineExceptPlanned(want.MachineID)
		switch {
		case up.MachineID != want.MachineID || up.Decrement != want.Decrement || up.Outcome == nil || up.Kind != Terminate && up.Kind != Dispose:
		case up.Outcome.Result == Done:
			return up, nil
		case !all[i].Status.Launch && m != nil && m.State == v1alpha1.MachineRemoving: // no replacement is missing
			return up.withOutcome(&Outcome{Result: Done, Removed: 1, At: up.Outcome.At}), nil
		}
	}
	return nil, err
}

// deleteOldUpdates deletes the oldest finished updates, so that MaxFinishedUpdates of them remain.
func (u *Updater) deleteOldUpdates(ctx context.Context) {
	all, err := u.listUpdatesLive(ctx)
	finished := slices.DeleteFunc(all, func(up v1alpha1.PoolUpdate) bool { return !up.IsFinished() })
	for i := MaxFinishedUpdates; err == nil && i < len(finished); i++ {
		err = client.IgnoreNotFound(u.opts.Cluster.objects.Delete(ctx, &finished[i]))
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		u.log.Warn("cannot delete finished PoolUpdates", "err", err)
	}
}
