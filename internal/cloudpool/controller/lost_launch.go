package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// lostLaunch is a launch without an answer from the cloud. Its instances may be provisioning.
type lostLaunch struct {
	at       time.Time
	replaces string          // the machine that it replaces; empty for a new desired size
	count    int             // instances
	size     int             // the group's size before it
	before   map[string]bool // the provider IDs of the instances that counted before it
}

// counted returns the group's size, and the provider IDs of the instances that count in it: those being deleted do not.
func (n *Native) counted(ctx context.Context) (size int, ids map[string]bool, err error) {
	has, err := n.provider.Group(ctx, n.group)
	if err != nil {
		return 0, nil, err
	}
	all, err := n.provider.Instances(ctx, n.group)
	ids = map[string]bool{}
	for _, i := range all {
		if i.State != cloud.Deleting {
			ids[i.ProviderID] = true
		}
	}
	return has.Size, ids, err
}

// launch requests instances within the group's limits, and keeps in mind that the answer was lost. The group's maximum is of all that
// the cloud counts.
func (n *Native) launch(ctx context.Context, count int, replaces string) error {
	g, err := n.nodeGroup(ctx)
	if err != nil {
		return err
	}
	size, before, err := n.counted(ctx)
	if err != nil {
		return err
	}
	_, err = n.cluster.launches.Launch(ctx, g, n.provider, launch.Want{Count: count, Owner: v1alpha1.LaunchOwner{Kind: "PoolUpdate", Name: n.name}})
	var unasked *launch.NotRequestedError
	switch isUnasked := errors.As(err, &unasked); {
	case isUnasked && unasked.Full && unasked.Pending: // this is no reason to refuse for good
		return Failuref(BackendUnavailable, "NodeGroup %s: %s: the result of a launch is not known yet: ask again", n.name, unasked)
	case isUnasked && unasked.Full:
		return &cloud.RefusedError{Reason: cloud.AtLimit, Err: fmt.Errorf("NodeGroup %s: %w: those that were detached or are not active count too",
			n.name, unasked)}
	case isUnasked:
		return unasked.Err
	case launch.IsUnclear(err):
		n.lost.Store(&lostLaunch{time.Now(), replaces, count, size, before})
	}
	return err
}

// settleLaunch finds out, before anything else is launched, whether the cloud accepted a launch without an answer: the group's size shows
// it, not counting the instances that have left since. It returns an error while that is not known.
func (n *Native) settleLaunch(ctx context.Context) error {
	lost := n.lost.Load()
	if lost == nil {
		return nil
	}
	size, now, err := n.counted(ctx)
	if err != nil {
		return err
	}
	want, since := lost.size+lost.count, time.Since(lost.at)
	for id := range lost.before {
		if !now[id] {
			want--
		}
	}
	switch {
	case size < want && since < launch.Settle:
		return Failuref(BackendUnavailable, "NodeGroup %s: the answer to a launch of %d instances was lost %s ago, and its cloud does not show "+
			"them yet: ask again in %s", n.name, lost.count, since.Round(time.Second), (launch.Settle - since).Round(time.Second))
	case size >= want && lost.replaces != "":
		n.replaced.Add(lost.replaces, true, replacedFor)
	}
	n.lost.CompareAndSwap(lost, nil)
	return nil
}
