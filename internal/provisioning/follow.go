package provisioning

import (
	"context"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// followPause is the shortest time between two questions about a launch.
const followPause = 10 * time.Second

// follow asks the cloud for the result of a launch that it has accepted, until the launch is done or the join timeout ends. A
// cloud may find only then that it has no capacity or quota, and may show no instance for it.
func (a *Controller) follow(ctx context.Context, g *known, o plan.Order, id string, provider cloud.Provider, op cloud.Operation) {
	if op.ID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, plan.JoinTimeout(g.Group))
	defer cancel()
	shown := time.Duration(0) // until the cloud shows what came of it
	defer func() {
		at := time.Now().Add(shown)
		a.answer(g, true, func(g *known) { g.memory.ended(id, at) })
	}()
	for {
		within, done := context.WithTimeout(ctx, cloudTimeout)
		status, err := provider.Status(within, op)
		done()
		switch {
		case launch.IsOperationForgotten(err):
			shown = a.o.Settle
			return
		case err != nil:
			status.After = cloud.PauseOf(err)
		case status.Done && status.Err != nil:
			a.answer(g, true, func(g *known) { a.launchFailed(g, o, id, status.Err) })
			return
		case status.Done:
			return
		}
		if !elapsed.Sleep(ctx, status.Pause(a.followPause)) {
			return
		}
	}
}

// followAgain asks for the operations of launches that another process or a replacement has written.
func (a *Controller) followAgain(ctx context.Context, groups []*known) {
	for _, g := range groups {
		provider := a.o.Clouds[g.Group.Spec.Cloud.Provider]
		for id, l := range g.memory.launches {
			if l.OperationID == "" || g.memory.followed[id] || provider == nil {
				continue
			}
			g.memory.followed[id] = true
			o := plan.Order{Group: g.name(), Template: l.Template, Count: int(l.Count)}
			a.work.Go(func() {
				a.follow(ctx, g, o, id, provider, cloud.Operation{ID: l.OperationID, Started: l.RequestedAt.Time})
			})
		}
	}
}

// runs notes the operation of a launch, which is followed.
func (m *memory) runs(id, operation string) {
	if l, open := m.launches[id]; open && operation != "" {
		l.OperationID, m.followed[id] = operation, true
		m.launches[id] = l
		m.less(id, func(a *launch.Pending) { a.Running = true })
	}
}

// ended notes that the operation of a launch is over. What the cloud has shown before may be without its instances.
func (m *memory) ended(id string, at time.Time) {
	if l, open := m.launches[id]; open {
		l.OperationID = ""
		m.launches[id] = l
	}
	m.less(id, func(a *launch.Pending) {
		a.Running, a.Answered = false, at
		a.Settled = at.Add(m.settle)
	})
}

// launchFailed takes in that a cloud could not make the instances of a launch that it had accepted.
func (a *Controller) launchFailed(g *known, o plan.Order, id string, err error) {
	a.o.Log.Error("the cloud could not make the instances of a launch", "group", o.Group, "template", o.Template, "instances", o.Count, "err", err)
	a.backedOff(g, g.memory.refuse(o.Template, err, time.Now()))
	if l, open := g.memory.launches[id]; open {
		launch.SetReason(&l, err)
		g.memory.launches[id] = l
	}
	g.memory.notMade(id, time.Now())
}

// notMade expects no instance any more of a launch that has failed. Nothing is launched until the cloud was read again.
func (m *memory) notMade(id string, at time.Time) {
	m.doubt = at
	m.wanted.Store(true)
	m.less(id, func(a *launch.Pending) {
		m.short[id] += a.Expected()
		a.Answer = launch.NotMade
	})
}
