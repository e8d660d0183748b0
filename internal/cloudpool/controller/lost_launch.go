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

// lostLaunch is a launch request that the cloud did not answer. The cloud may be creating its instances.
type lostLaunch struct {
	requestedAt     time.Time
	replacedMachine string          // ID of the machine to replace; empty for a new desired size
	count           int             // requested instances
	sizeBefore      int             // size of the group before the launch
	instancesBefore map[string]bool // provider IDs of the instances that counted before the launch
}

// readSizeAndInstanceIDs returns the size of the cloud group, and the provider IDs of its instances. It leaves out
// instances that are being deleted.
func (n *NativePool) readSizeAndInstanceIDs(ctx context.Context) (size int, ids map[string]bool, err error) {
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

// launchInstances requests instances within the limits of the NodeGroup. If the cloud does not answer, it remembers the
// launch. All instances in the cloud group count towards the maximum, including detached and inactive machines.
func (n *NativePool) launchInstances(ctx context.Context, count int, replacedMachine string) error {
	g, err := n.getNodeGroup(ctx)
	if err != nil {
		return err
	}
	size, before, err := n.readSizeAndInstanceIDs(ctx)
	if err != nil {
		return err
	}
	_, err = n.cluster.launches.RequestInstances(ctx, g, n.provider, launch.LaunchRequest{Count: count, Owner: v1alpha1.LaunchOwner{Kind: "PoolUpdate", Name: n.name}})
	var notRequested *launch.NotRequestedError
	switch isRefused := errors.As(err, &notRequested); {
	case isRefused && notRequested.AtMaximum && notRequested.ResultPending: // a later request may succeed
		return NewFailuref(BackendUnavailable, "NodeGroup %s: %s: the result of a launch is not known yet: retry later", n.name, notRequested)
	case isRefused && notRequested.AtMaximum:
		return &cloud.RefusedError{Reason: cloud.AtLimit, Err: fmt.Errorf("NodeGroup %s: %w: detached and inactive machines count too",
			n.name, notRequested)}
	case isRefused:
		return notRequested.Err
	case launch.IsUnclearAnswer(err):
		n.lostLaunch.Store(&lostLaunch{time.Now(), replacedMachine, count, size, before})
	}
	return err
}

// resolveLostLaunch finds out whether the cloud accepted a launch that it did not answer. It is called before the next
// launch. It compares the sizes of the cloud group before and after, without instances that have left since. It returns
// an error while the result is unknown.
func (n *NativePool) resolveLostLaunch(ctx context.Context) error {
	lost := n.lostLaunch.Load()
	if lost == nil {
		return nil
	}
	size, now, err := n.readSizeAndInstanceIDs(ctx)
	if err != nil {
		return err
	}
	want, since := lost.sizeBefore+lost.count, time.Since(lost.requestedAt)
	for id := range lost.instancesBefore {
		if !now[id] {
			want--
		}
	}
	switch {
	case size < want && since < launch.SettleTime:
		return NewFailuref(BackendUnavailable, "NodeGroup %s: the answer to a launch of %d instances was lost %s ago, and the cloud does not show "+
			"them yet: retry in %s", n.name, lost.count, since.Round(time.Second), (launch.SettleTime - since).Round(time.Second))
	case size >= want && lost.replacedMachine != "":
		n.replaced.Add(lost.replacedMachine, true, replacedTTL)
	}
	n.lostLaunch.CompareAndSwap(lost, nil)
	return nil
}
