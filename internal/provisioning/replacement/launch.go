package replacement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/instances"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// requestAndRecordLaunch requests an instance. The launch is recorded before the request, so that the next process finds it
// after a crash.
func (l *replacementScope) requestAndRecordLaunch(ctx context.Context, want launch.LaunchRequest) (requeueAfter time.Duration, err error) {
	within, cancel := context.WithTimeout(ctx, cloud.ChangeTimeout)
	defer cancel()
	id, err := l.controller.options.Launches.RequestInstances(within, l.group, l.cloud, want)
	var unasked *launch.NotRequestedError
	if errors.As(err, &unasked) {
		return l.recordIfNotRequested(ctx, unasked, l.ensureStatus().Reasons)
	}
	l.controller.options.ReportCall(l.cloud.Name(), "Grow", err)
	if err != nil {
		l.log.Warn("the cloud refused a launch, or its answer was lost", "launch", id, "err", err)
		if !launch.IsUnclearAnswer(err) {
			return shortRetry, nil
		}
	}
	return l.controller.options.Intervals.CloudRead, l.recordLaunched(ctx, id, "", l.ensureStatus().Reasons)
}

// maxBackOffPause is the longest pause between two reconciles during the back-off of a template.
const maxBackOffPause = time.Minute

// recordIfNotRequested records why the cloud was not asked.
func (l *replacementScope) recordIfNotRequested(ctx context.Context, err error, wanted []v1alpha1.RetirementReason) (requeueAfter time.Duration, _ error) {
	var why *launch.NotRequestedError
	if !errors.As(err, &why) {
		return 0, err
	}
	reason, pause := newReason(NotRequested, "", "%s", why), l.controller.options.Intervals.CloudRead
	switch {
	case why.AtMaximum:
		reason.Code = AtMaximum
	case why.ExistingLaunch != nil:
		reason.Code = AlreadyReplaced
	case why.BackOff != nil:
		reason.Code, reason.Object = why.BackOff.Reason, "group "+l.group.Spec.Cloud.Group
		pause = max(elapsed.RemainingWait(why.BackOff.Until.Time, time.Now(), maxBackOffPause), shortRetry)
	default:
		return pause, errors.Join(l.writeStateIfChanged(ctx, v1alpha1.ReplacementWaiting, append([]v1alpha1.RetirementReason{reason}, wanted...)...), why)
	}
	return pause, l.writeStateIfChanged(ctx, v1alpha1.ReplacementWaiting, append([]v1alpha1.RetirementReason{reason}, wanted...)...)
}

// recordLaunched records the launch, and its instance once that is known.
func (l *replacementScope) recordLaunched(ctx context.Context, id, instance string, reasons []v1alpha1.RetirementReason) error {
	r, isNew := l.ensureStatus(), replacementState(l.rt) != v1alpha1.ReplacementLaunched
	r.Launch, r.Instance = id, instance
	if err := l.writeStateIfChanged(ctx, v1alpha1.ReplacementLaunched, reasons...); err != nil {
		return err
	}
	if isNew {
		l.controller.events.emitLaunched(l.rt)
	}
	return nil
}

// recordLaunchState records the state of the launch. A launch that failed without an instance is repeated after the back-off
// of its template.
func (l *replacementScope) recordLaunchState(ctx context.Context, own *v1alpha1.Launch) (requeueAfter time.Duration, err error) {
	if own.IsOpen() && l.group.Spec.ScaleUp == nil {
		var err error
		if own, err = l.readAndTrackLaunch(ctx, own); own == nil || err != nil {
			return shortRetry, err
		}
	}
	r, instance := l.ensureStatus(), ""
	if len(own.Instances) > 0 {
		instance = own.Instances[0].ProviderID
	}
	why := newReason(own.Reason, "group "+l.group.Spec.Cloud.Group, "%s", own.Message)
	switch own.State {
	case v1alpha1.LaunchReady:
		r.Launch, r.Instance = own.ID, instance
		if err := l.writeStateIfChanged(ctx, v1alpha1.ReplacementReady, r.Reasons...); err != nil {
			return 0, err
		}
		l.controller.options.Metrics.observeReady(time.Since(own.RequestedAt.Time))
		l.controller.events.emitReady(l.rt)
	case v1alpha1.LaunchFailed:
		state := v1alpha1.ReplacementWaiting
		if instance != "" || own.Reason == launch.NeverJoined {
			state, r.Launch, r.Instance = v1alpha1.ReplacementFailed, own.ID, instance
		}
		if err := l.writeStateIfChanged(ctx, state, why); err != nil {
			return 0, err
		}
		l.controller.options.Metrics.countFailure(l.rt.Spec.Group, why.Code)
		l.controller.events.emitFailed(l.rt, why)
	default:
		reasons := r.Reasons
		if own.Unrequested && instance == "" {
			return l.controller.options.Intervals.CloudRead, l.writeStateIfChanged(ctx, v1alpha1.ReplacementWaiting, newReason(CloudReplaces, "", "the size of the group counts an instance that does "+
				"not exist: its cloud launches it"))
		}
		if own.Reason != "" { // the cloud could not create it, but its size counts it
			reasons = []v1alpha1.RetirementReason{why}
		}
		return l.controller.options.Intervals.CloudRead, l.recordLaunched(ctx, own.ID, instance, reasons)
	}
	return shortRetry, l.controller.options.Launches.RemoveLaunch(ctx, l.group, own.ID)
}

// trackAbandonedLaunches tracks open launches that no replacement follows, for example because their NodeRetirement was
// deleted. Without that, they would count as open forever. It returns the new record.
func (l *replacementScope) trackAbandonedLaunches(ctx context.Context, record *v1alpha1.ProvisioningStatus) (*v1alpha1.ProvisioningStatus, error) {
	if l.group.Spec.ScaleUp != nil || !slices.ContainsFunc(record.Launches, func(o v1alpha1.Launch) bool { return o.IsOpen() }) {
		return record, nil
	}
	others, err := l.listOtherReplacementsOfGroup(ctx)
	if err != nil {
		return nil, err
	}
	for i := range record.Launches {
		o := &record.Launches[i]
		if !o.IsOpen() || slices.ContainsFunc(others, func(rt v1alpha1.NodeRetirement) bool {
			return o.For != nil && rt.UID == o.For.UID && !replacementState(&rt).IsFinal()
		}) {
			continue
		}
		if _, err := l.readAndTrackLaunch(ctx, o); err != nil {
			return nil, err
		}
	}
	return l.controller.options.Launches.ReadUncached(ctx, l.group)
}

// readAndTrackLaunch updates a launch in a group that package provisioning does not track.
func (l *replacementScope) readAndTrackLaunch(ctx context.Context, own *v1alpha1.Launch) (*v1alpha1.Launch, error) {
	began := time.Now()
	s, err := l.controller.readConsistentGroup(ctx, l.cloud, l.group.Spec.Cloud.Group)
	if err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := l.controller.options.Client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	hosts, byName := make([]cloud.NodeIdentity, len(nodes.Items)), map[string]*corev1.Node{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		hosts[i], byName[n.Name] = instances.NodeIdentityOf(n), n
	}
	others, err := l.listOtherReplacementsOfGroup(ctx)
	if err != nil {
		return nil, err
	}
	on := cloud.NewNodeIndex(l.cloud.Normalize, hosts)
	joins := map[string]launch.JoinState{}
	for k := range s.Instances {
		i := &s.Instances[k]
		switch name, err := on.FindNode(*i); {
		case err != nil:
			joins[i.ProviderID] = launch.NodeUncertain
		case name != "":
			joins[i.ProviderID] = plan.FindJoinState(l.group, byName[name])
			i.Created = byName[name].CreationTimestamp.Time // by the clock that the launch's time is from
		}
	}
	return l.controller.follower.TrackLaunch(ctx, l.group, l.cloud, own, launch.Observation{
		Group: s.Group, Instances: s.Instances, JoinState: func(i cloud.Instance) launch.JoinState { return joins[i.ProviderID] },
		JoinTimeout: plan.JoinTimeout(l.group), ReadAt: began, PreviouslyJoined: retirement.ReplacementInstanceIDs(others, l.group.Name),
	})
}
