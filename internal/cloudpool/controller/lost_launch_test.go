package controller

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// losing is a group that loses its answers to launches.
type losing struct {
	*group
	reaches bool  // the requests are carried out all the same
	err     error // what the caller sees
	asked   int
}

func (l *losing) Grow(ctx context.Context, name string, o cloud.Order) (cloud.Operation, error) {
	l.asked++
	if l.err == nil {
		return l.group.Grow(ctx, name, o)
	}
	if l.reaches {
		_, _ = l.group.Grow(ctx, name, o)
	}
	return cloud.Operation{}, l.err
}

func TestI5ALaunchWhoseAnswerIsLostIsNotRepeated(t *testing.T) {
	const first = "openstack:///"
	changes := map[string]func(context.Context, *Native) error{
		"a new size": func(ctx context.Context, p *Native) error { return p.SetDesiredSize(ctx, 4) },
		"a machine that is detached": func(ctx context.Context, p *Native) error {
			return p.Detach(ctx, api.Removal{MachineID: first + uuid(1)})
		},
	}
	for name, change := range changes {
		for what, lost := range map[string]losing{
			"it was carried out":            {reaches: true, err: errCut},
			"it was not":                    {err: errCut},
			"it was, and the size changed":  {reaches: true, err: &cloud.ThrottledError{After: time.Second, Err: errors.New("412")}},
			"it was not, the size changed":  {err: &cloud.ThrottledError{After: time.Second, Err: errors.New("412")}},
			"it was not, and it is refused": {err: &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("no cores")}},
		} {
			if lost.reaches && cloud.IsThrottled(lost.err) && name != "a new size" {
				continue // a cloud that says that the size has changed has not carried it out
			}
			t.Run(name+", "+what, func(t *testing.T) {
				serveNatively(t, 3, 10, func(t *testing.T, _ *sim, g *group, pool *Native) {
					l := lost
					l.group = g
					pool.provider = &l
					if err := change(t.Context(), pool); err == nil {
						t.Fatal("the answer was lost, and there is no error")
					}
					l.err = nil
					if launch.IsUnclear(lost.err) && !lost.reaches {
						if err := change(t.Context(), pool); ResultOf(err) != BackendUnavailable || l.asked != 1 {
							t.Errorf("at once: %v after %d requests; want to be asked again later", err, l.asked)
						}
						time.Sleep(launch.Settle)
					}
					if err := change(t.Context(), pool); err != nil || len(g.machines) != 4 {
						t.Errorf("asked again: %v, %d machines; want 4", err, len(g.machines))
					}
					if want := map[bool]int{true: 1, false: 2}[lost.reaches]; l.asked != want {
						t.Errorf("the cloud was asked %d times, want %d", l.asked, want)
					}
				})
			})
		}
	}
}

func TestI5ALostLaunchIsSeenThoughAnotherInstanceLeft(t *testing.T) {
	serveNatively(t, 3, 10, func(t *testing.T, _ *sim, g *group, pool *Native) {
		l := losing{group: g, reaches: true, err: errCut}
		pool.provider = &l
		change := func() error {
			return pool.Detach(t.Context(), api.Removal{MachineID: "openstack:///" + uuid(1)})
		}
		if err := change(); err == nil {
			t.Fatal("the answer was lost, and there is no error")
		}
		g.machines = slices.Delete(g.machines, 2, 3)
		l.err = nil
		if err := change(); err != nil || l.asked != 1 {
			t.Errorf("%v after %d requests; want the instance that came to be the one", err, l.asked)
		}
	})
}
