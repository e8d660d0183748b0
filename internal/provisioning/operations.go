package provisioning

import (
	"context"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// minPollInterval is the shortest time between two polls of an operation.
const minPollInterval = 10 * time.Second

// pollOperationUntilDone polls the operation of an accepted launch until the operation is done or the join timeout is over.
// Some clouds find out only during the operation that they have no capacity or quota, and then show no instance.
func (a *Controller) pollOperationUntilDone(ctx context.Context, g *managedGroup, planned plan.Launch, id string, provider cloud.Provider, op cloud.Operation) {
	if op.ID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, plan.JoinTimeout(g.Group))
	defer cancel()
	shown := time.Duration(0) // how long the cloud may take to show the result
	defer func() {
		at := time.Now().Add(shown)
		a.queueReply(g, true, func(g *managedGroup) { g.state.markOperationEnded(id, at) })
	}()
	for {
		within, done := context.WithTimeout(ctx, cloudTimeout)
		status, err := provider.Status(within, op)
		done()
		switch {
		case launch.IsOperationForgotten(err):
			shown = a.options.SettleTime
			return
		case err != nil:
			status.RetryAfter = cloud.RetryDelay(err)
		case status.Done && status.Err != nil:
			a.queueReply(g, true, func(g *managedGroup) { a.recordLaunchFailure(g, planned, id, status.Err) })
			return
		case status.Done:
			return
		}
		if !elapsed.Sleep(ctx, status.RetryDelay(a.pollInterval)) {
			return
		}
	}
}

// startPollingRecordedOperations polls the operations of launches that another process or a replacement has recorded.
func (a *Controller) startPollingRecordedOperations(ctx context.Context, groups []*managedGroup) {
	for _, g := range groups {
		provider := a.options.Clouds[g.Group.Spec.Cloud.Provider]
		for id, l := range g.state.launches {
			if l.OperationID == "" || g.state.followedLaunches[id] || provider == nil {
				continue
			}
			g.state.followedLaunches[id] = true
			o := plan.Launch{Group: g.name(), Template: l.Template, Count: int(l.Count)}
			a.calls.Go(func() {
				a.pollOperationUntilDone(ctx, g, o, id, provider, cloud.Operation{ID: l.OperationID, Started: l.RequestedAt.Time})
			})
		}
	}
}

// recordOperation records the operation of a launch, which is being polled.
func (m *groupState) recordOperation(id, operation string) {
	if l, open := m.launches[id]; open && operation != "" {
		l.OperationID, m.followedLaunches[id] = operation, true
		m.launches[id] = l
		m.updatePendingLaunch(id, func(a *launch.PendingLaunch) { a.Running = true })
	}
}

// markOperationEnded records that the operation of a launch is over. A cloud read that began earlier may not show its
// instances.
func (m *groupState) markOperationEnded(id string, at time.Time) {
	if l, open := m.launches[id]; open {
		l.OperationID = ""
		m.launches[id] = l
	}
	m.updatePendingLaunch(id, func(a *launch.PendingLaunch) {
		a.Running, a.AnsweredAt = false, at
		a.SettledAt = at.Add(m.settleTime)
	})
}

// recordLaunchFailure records that a cloud could not make the instances of an accepted launch.
func (a *Controller) recordLaunchFailure(g *managedGroup, o plan.Launch, id string, err error) {
	a.options.Log.Error("the cloud could not make the instances of a launch", "group", o.Group, "template", o.Template, "instances", o.Count, "err", err)
	a.reportBackOff(g, g.state.recordRefusalAndPauseReads(o.Template, err, time.Now()))
	if l, open := g.state.launches[id]; open {
		launch.SetLaunchReason(&l, err)
		g.state.launches[id] = l
	}
	g.state.stopExpectingInstances(id, time.Now())
}

// stopExpectingInstances records that no more instances of a failed launch are expected. Nothing is launched for the group before
// its next cloud read.
func (m *groupState) stopExpectingInstances(id string, at time.Time) {
	m.failedAt = at
	m.mustReread.Store(true)
	m.updatePendingLaunch(id, func(a *launch.PendingLaunch) {
		m.missing[id] += a.ExpectedCount()
		a.Answer = launch.NotMade
	})
}
