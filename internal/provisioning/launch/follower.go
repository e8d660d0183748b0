package launch

import (
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

// Follower tracks the launches of groups without spec.scaleUp. Package provisioning tracks the launches of other
// groups.
type Follower struct {
	record     *Record
	settleTime time.Duration
	reportCall func(provider, call string, err error)

	mu     sync.Mutex
	groups map[string]followedGroup
}

// followedGroup is what this process has seen of a group.
type followedGroup struct {
	uid                                   types.UID
	firstSeen                             map[string]time.Time
	watchedSince, unseenSince, emptySince time.Time
}

// NewFollower returns a Follower. settle is how long the instances of a launch may take to appear after its answer was
// lost. The function asked is called after each call of a cloud.
func NewFollower(r *Record, settle time.Duration, asked func(provider, call string, err error)) *Follower {
	return &Follower{record: r, settleTime: settle, reportCall: asked, groups: map[string]followedGroup{}}
}

// RecordInstancesBeforeLaunch records the instances that a group has before a launch, so that instances which appear later belong to
// the launch. If a launch is open, it does nothing, because TrackLaunch records the instances then.
func (f *Follower) RecordInstancesBeforeLaunch(g *v1alpha1.NodeGroup, s *v1alpha1.ProvisioningStatus, instances []cloud.Instance) {
	if slices.ContainsFunc(s.Launches, func(l v1alpha1.Launch) bool { return l.IsOpen() && l.Count > 0 }) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := f.groupState(g)
	seen.firstSeen = map[string]time.Time{}
	for _, i := range instances {
		seen.firstSeen[i.ProviderID] = time.Now()
	}
	f.groups[g.Name] = seen
}

func (f *Follower) groupState(g *v1alpha1.NodeGroup) followedGroup {
	seen, ok := f.groups[g.Name]
	if !ok || seen.uid != g.UID {
		return followedGroup{uid: g.UID, watchedSince: time.Now()}
	}
	return seen
}

// TrackLaunch updates the launches of a group from a cloud read, polls the operation of launch l, and returns l as updated.
// It returns nil if l is no longer in the record.
func (f *Follower) TrackLaunch(ctx context.Context, g *v1alpha1.NodeGroup, p cloud.Provider, l *v1alpha1.Launch, o Observation) (updated *v1alpha1.Launch, err error) {
	status := f.pollOperation(ctx, p, l)
	f.mu.Lock()
	defer f.mu.Unlock()
	o.Now = time.Now()
	seen := f.groupState(g)
	o.FirstSeen, o.WatchedSince, o.UnseenSince, o.EmptySince = seen.firstSeen, seen.watchedSince, seen.unseenSince, seen.emptySince
	restarted := o.FirstSeen == nil
	var v Tracking
	err = f.record.Update(ctx, g, func(s *v1alpha1.ProvisioningStatus) error {
		at := slices.IndexFunc(s.Launches, func(is v1alpha1.Launch) bool { return is.ID == l.ID })
		if updated = nil; at < 0 {
			return nil
		}
		if status.Done {
			recordOperationEnd(s, &s.Launches[at], status.Err, o.Now)
		}
		if restarted {
			o.FirstSeen = findPreexistingInstances(s, &o)
		}
		v = f.updateOpenLaunches(s, o)
		updated = s.Launches[at].DeepCopy()
		removeFinished(s)
		return nil
	})
	if updated == nil || err != nil { // an instance that is not in the record is found again
		return nil, err
	}
	seen.firstSeen, seen.unseenSince, seen.emptySince = v.FirstSeen, v.UnseenSince, v.EmptySince
	f.groups[g.Name] = seen
	return updated, nil
}

// findPreexistingInstances returns the instances that existed before the launches of an earlier process. An instance
// with a Node is at least as old as its Node. An instance without a Node and without a creation time is not in the
// result. It counts as launched, so that no second instance is launched for the same need (invariant I5).
func findPreexistingInstances(s *v1alpha1.ProvisioningStatus, o *Observation) map[string]time.Time {
	known := map[string]time.Time{}
	for _, i := range o.Instances {
		margin := answerMargin
		if o.JoinState(i) != NoNode {
			margin = 0
		}
		if !i.Created.IsZero() && !slices.ContainsFunc(s.Launches, func(l v1alpha1.Launch) bool {
			return l.IsOpen() && !i.Created.Before(l.RequestedAt.Add(-margin))
		}) {
			known[i.ProviderID] = i.Created
		}
	}
	return known
}

// pollOperation polls the operation of a launch. If the cloud does not know the operation, the operation is over, and
// the group shows the result. If the cloud does not answer, the operation counts as running.
func (f *Follower) pollOperation(ctx context.Context, p cloud.Provider, l *v1alpha1.Launch) cloud.OperationStatus {
	if l.OperationID == "" {
		return cloud.OperationStatus{}
	}
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	status, err := p.Status(ctx, cloud.Operation{ID: l.OperationID, Started: l.RequestedAt.Time})
	f.reportCall(p.Name(), "Status", err)
	switch {
	case IsOperationForgotten(err):
		return cloud.OperationStatus{Done: true}
	case err != nil:
		return cloud.OperationStatus{}
	}
	return status
}

// IsOperationForgotten reports whether an error says that the cloud does not know the operation. The operation is over
// then, and the group shows its result.
func IsOperationForgotten(err error) bool {
	return cloud.IsNotFound(err) || cloud.RefusalOf(err) == cloud.Invalid
}

// recordOperationEnd records that the operation of a launch is over. The cloud then still has the settle time to show the
// instances, because the last cloud read was earlier.
func recordOperationEnd(s *v1alpha1.ProvisioningStatus, l *v1alpha1.Launch, err error, now time.Time) {
	l.OperationID, l.AnsweredAt = "", new(metav1.NewTime(now).Rfc3339Copy())
	if err != nil {
		SetLaunchReason(l, err)
		recordBackOff(s, l.Template, l.Reason, l.Message, now.Add(cloud.RetryDelay(err)), now)
	}
}

// updateOpenLaunches updates the open launches of a group.
func (f *Follower) updateOpenLaunches(s *v1alpha1.ProvisioningStatus, o Observation) Tracking {
	o.Pending, o.Unjoined = nil, nil
	for i := range s.Launches {
		l := &s.Launches[i]
		if !l.IsOpen() {
			for _, i := range l.Instances {
				o.PreviouslyJoined[i.ProviderID] = true
			}
			continue
		}
		clampTimes(l, o.Now)
		if l.Count > 0 {
			o.Pending = append(o.Pending, NewPendingLaunch(l, f.settleTime, o.Now))
		}
		for _, i := range l.Instances {
			o.Unjoined = append(o.Unjoined, Instance{ProviderID: i.ProviderID, Template: l.Template, Launch: l.ID, Since: i.Since})
		}
	}
	v := TrackInstances(o)
	for i := range s.Launches {
		l := &s.Launches[i]
		if !l.IsOpen() {
			continue
		}
		reported := l.Reason != ""
		if v.UpdateLaunch(l, o.Now); l.State == v1alpha1.LaunchFailed && !reported {
			recordBackOff(s, l.Template, l.Reason, l.Message, o.Now, o.Now)
		}
	}
	return v
}

// clampTimes sets times in the future to now: the clock was set back after they were written.
func clampTimes(l *v1alpha1.Launch, now time.Time) {
	for _, at := range []*metav1.Time{&l.RequestedAt, l.AnsweredAt} {
		if at != nil && elapsed.IsFuture(at.Time, now) {
			*at = metav1.NewTime(now).Rfc3339Copy()
		}
	}
}

// removeFinished removes the finished launches that no NodeRetirement waits for.
func removeFinished(s *v1alpha1.ProvisioningStatus) {
	s.Launches = slices.DeleteFunc(s.Launches, func(l v1alpha1.Launch) bool { return !l.IsOpen() && !l.IsForRetirement() })
}
