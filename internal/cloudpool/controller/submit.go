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

// KeepPast is how many finished updates of a pool are kept.
const KeepPast = 20

// ErrUnanswered is an API server that did not say which updates there are.
var ErrUnanswered = errors.New("no answer")

// pollEvery is how often an update is read that a client waits for, and that does not announce its changes.
const pollEvery = 5 * time.Second

// updates reads the pool's updates past all caches, the latest first.
func (u *Updater) updates(ctx context.Context) ([]v1alpha1.PoolUpdate, error) {
	ctx, cancel := context.WithTimeout(ctx, u.o.Pace.Take/2) // an API server may take a connection and never answer
	defer cancel()
	all, err := u.list(ctx, u.o.Cluster.objects.List)
	if err != nil {
		return nil, ClusterFailure("reading the PoolUpdates", fmt.Errorf("%w: %w", ErrUnanswered, err))
	}
	return all, nil
}

func (u *Updater) list(ctx context.Context, read func(context.Context, client.ObjectList, ...client.ListOption) error) ([]v1alpha1.PoolUpdate, error) {
	var list v1alpha1.PoolUpdateList
	err := read(ctx, &list, client.InNamespace(u.o.Namespace), client.MatchingLabels{PoolLabel: poolKey(u.o.Pool, "")})
	all := slices.DeleteFunc(list.Items, func(up v1alpha1.PoolUpdate) bool { return !u.isOwn(&up) })
	slices.SortFunc(all, func(a, b v1alpha1.PoolUpdate) int { return cmp.Compare(u.number(b.Name), u.number(a.Name)) })
	return all, err
}

// underway finds the earliest update that has not ended; nil when there is none.
func underway(all []v1alpha1.PoolUpdate) *v1alpha1.PoolUpdate {
	for i := range slices.Backward(all) {
		if !all[i].Finished() {
			return &all[i]
		}
	}
	return nil
}

// isOwn reports whether a replica has created a PoolUpdate for this pool, by its pool and its name. Any other object with the pool's
// label is left alone, and keeps no update from beginning.
func (u *Updater) isOwn(up *v1alpha1.PoolUpdate) bool {
	return poolKey(up.Spec.Pool, "") == poolKey(u.o.Pool, "") && u.number(up.Name) >= 0
}

// number returns the number of the pool's update of a name; -1 for a name that is none.
func (u *Updater) number(name string) int {
	n, err := strconv.ParseInt(name[strings.LastIndexByte(name, '-')+1:], 10, 32)
	if err != nil || u.object(int(n)).Name != name {
		return -1
	}
	return int(n)
}

// object is the pool's update of a number, which asks for nothing yet.
func (u *Updater) object(n int) *v1alpha1.PoolUpdate {
	key := poolKey(u.o.Pool, "")
	return &v1alpha1.PoolUpdate{ObjectMeta: metav1.ObjectMeta{
		Namespace: u.o.Namespace, Name: fmt.Sprintf("%s-%d", key, n), Labels: map[string]string{PoolLabel: key},
	}}
}

// Submit creates an update and returns it. If an equal one is unfinished it returns that; for a different one it returns a *BusyError.
// judge, if not nil, may refuse the update before.
func (u *Updater) Submit(ctx context.Context, want Update, judge func(context.Context, *Update) error) (*Update, error) {
	spec := want.spec(u.o.Pool)
	taken := 0 // the number of the last name that was found to be taken
	for judged := judge == nil; ; {
		all, err := u.updates(ctx)
		if err != nil {
			return nil, err
		}
		if up := underway(all); up != nil {
			if isSame(up.Spec, spec) {
				return u.view(up), nil
			}
			return nil, &BusyError{By: u.view(up)}
		}
		if !judged {
			if err := judge(ctx, &want); err != nil {
				return nil, err
			}
			judged = true
		}
		next := taken + 1
		if len(all) > 0 {
			next = max(next, u.number(all[0].Name)+1)
		}
		up := u.object(next)
		up.Spec = spec
		err = u.o.Cluster.objects.Create(ctx, up)
		switch {
		case apierrors.IsAlreadyExists(err): // the name is the lock; an object that is no update of the pool may have it, too
			taken = next
			continue
		case apierrors.IsInvalid(err):
			return nil, &api.BadRequest{ErrorMessage: api.ErrorMessage{Message: "illegal input: " + want.Doing(), Detail: err.Error()}}
		case err != nil:
			return nil, ClusterFailure("creating a PoolUpdate", err)
		}
		u.log.Info("an update begins", "update", up.Name, "type", spec.Type, "desiredSize", want.DesiredSize, "machine", spec.MachineID,
			"requestedBy", spec.RequestedBy)
		u.notify()
		return u.view(up), nil
	}
}

// Wait returns an accepted update when it is over, or ctx's error. An update that does not end, or cannot be read, for too long is
// returned with such an outcome. It continues in any case.
func (u *Update) Wait(ctx context.Context) (*Update, error) {
	up, patience, waits := u, u.by.o.Pace.Trouble, progress{}
	for live := false; ; {
		if is, ok := up.answered(); ok {
			return is, nil
		}
		wakes := u.by.wakes()
		found, err := up.read(ctx, live)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && waits.lasts("unread", "") >= patience:
			return up.unknown(ClusterUnavailable, "%s; the update goes on as soon as that can be read", err), nil
		case err != nil:
		case found == nil:
			return up.unknown(Failed, "PoolUpdate %s was deleted: it is not known how it ended", up.ID), nil
		default:
			up = found
			delete(waits, "unread")
			if is, ok := up.answered(); ok {
				return is, nil
			}
			if up.object.Status.StartedAt == nil && waits.lasts("idle", "") >= patience {
				return up.unknown(ClusterUnavailable, "no replica has begun with PoolUpdate %s within %s; it goes on as soon as one does", up.ID, patience), nil
			}
		}
		select {
		case <-wakes: // what woke us is in the cache
			live = false
		case <-time.After(pollEvery):
			live = true
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// read reads an update, live or as the watches know it; nil when it is gone, or another one has its name.
func (u *Update) read(ctx context.Context, live bool) (*Update, error) {
	ctx, cancel := context.WithTimeout(ctx, u.by.o.Pace.Take/2)
	defer cancel()
	up, key, c := &v1alpha1.PoolUpdate{}, client.ObjectKeyFromObject(u.object), u.by.o.Cluster
	if !live {
		if c.get(ctx, key, up) == nil && up.UID == u.object.UID {
			return u.by.view(up), nil
		}
		return u, nil // it has not been heard of yet
	}
	err := c.objects.Get(ctx, key, up)
	switch {
	case apierrors.IsNotFound(err), err == nil && up.UID != u.object.UID:
		return nil, nil
	case err != nil:
		return nil, ClusterFailure("reading a PoolUpdate", err)
	}
	return u.by.view(up), nil
}

// unknown returns the update with an outcome for a client, while the real one is not known.
func (u *Update) unknown(r Result, format string, a ...any) *Update {
	return u.with(&Outcome{Result: r, Detail: fmt.Sprintf(format, a...), Removed: int(u.object.Status.Removed), At: time.Now().UTC()})
}

// Find gives an update by its ID, as it is; nil when it is not kept.
func (u *Updater) Find(ctx context.Context, id string) (*Update, error) {
	all, err := u.updates(ctx)
	if i := slices.IndexFunc(all, func(up v1alpha1.PoolUpdate) bool { return up.Name == id }); i >= 0 {
		return u.view(&all[i]), nil
	}
	return nil, err
}

// Past returns the latest update that has removed the machine of a repeated request, with the same effect on the size; nil if there is
// none. An update that ended while its cloud still deleted the machine counts as done.
func (u *Updater) Past(ctx context.Context, want *Update) (*Update, error) {
	all, err := u.updates(ctx)
	for i := range all {
		up, m := u.view(&all[i]), all[i].Machine(want.MachineID)
		switch {
		case up.MachineID != want.MachineID || up.Decrement != want.Decrement || up.Outcome == nil || up.Kind != Terminate && up.Kind != Dispose:
		case up.Outcome.Result == Done:
			return up, nil
		case !all[i].Status.Launch && m != nil && m.State == v1alpha1.MachineLeaving: // nothing is owed for it
			return up.with(&Outcome{Result: Done, Removed: 1, At: up.Outcome.At}), nil
		}
	}
	return nil, err
}

// prune deletes the finished updates that are too many.
func (u *Updater) prune(ctx context.Context) {
	all, err := u.updates(ctx)
	finished := slices.DeleteFunc(all, func(up v1alpha1.PoolUpdate) bool { return !up.Finished() })
	for i := KeepPast; err == nil && i < len(finished); i++ {
		err = client.IgnoreNotFound(u.o.Cluster.objects.Delete(ctx, &finished[i]))
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		u.log.Warn("finished PoolUpdates cannot be deleted", "err", err)
	}
}
