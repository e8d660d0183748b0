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

// unreliableGroup is a cloud group that loses its answers to launches.
type unreliableGroup struct {
	*fakeGroup
	carriesOut bool  // requests are carried out although the answer is lost
	err        error // returned to the caller
	launches   int
}

func (l *unreliableGroup) Grow(ctx context.Context, name string, o cloud.LaunchRequest) (cloud.Operation, error) {
	l.launches++
	if l.err == nil {
		return l.fakeGroup.Grow(ctx, name, o)
	}
	if l.carriesOut {
		_, _ = l.fakeGroup.Grow(ctx, name, o)
	}
	return cloud.Operation{}, l.err
}

func TestI5LaunchWithLostAnswerIsNotRepeated(t *testing.T) {
	const first = "openstack:///"
	changes := map[string]func(context.Context, *NativePool) error{
		"new size": func(ctx context.Context, p *NativePool) error { return p.SetDesiredSize(ctx, 4) },
		"detached machine": func(ctx context.Context, p *NativePool) error {
			return p.Detach(ctx, api.Removal{MachineID: first + newUUID(1)})
		},
	}
	for name, change := range changes {
		for what, lost := range map[string]unreliableGroup{
			"carried out":                   {carriesOut: true, err: errConnectionRefused},
			"not carried out":               {err: errConnectionRefused},
			"carried out, size changed":     {carriesOut: true, err: &cloud.ThrottledError{RetryAfter: time.Second, Err: errors.New("412")}},
			"not carried out, size changed": {err: &cloud.ThrottledError{RetryAfter: time.Second, Err: errors.New("412")}},
			"refused":                       {err: &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("no cores")}},
		} {
			if lost.carriesOut && cloud.IsThrottled(lost.err) && name != "new size" {
				continue // a cloud that reports a changed size has not carried it out
			}
			t.Run(name+", "+what, func(t *testing.T) {
				simulateNative(t, 3, 10, func(t *testing.T, _ *sim, g *fakeGroup, pool *NativePool) {
					l := lost
					l.fakeGroup = g
					pool.provider = &l
					if err := change(t.Context(), pool); err == nil {
						t.Fatal("the answer was lost, and there is no error")
					}
					l.err = nil
					if launch.IsUnclearAnswer(lost.err) && !lost.carriesOut {
						if err := change(t.Context(), pool); ToResult(err) != BackendUnavailable || l.launches != 1 {
							t.Errorf("at once: %v after %d requests; want an error that asks for a retry", err, l.launches)
						}
						time.Sleep(launch.SettleTime)
					}
					if err := change(t.Context(), pool); err != nil || len(g.machines) != 4 {
						t.Errorf("repeated: %v, %d machines; want 4", err, len(g.machines))
					}
					if want := map[bool]int{true: 1, false: 2}[lost.carriesOut]; l.launches != want {
						t.Errorf("the cloud was asked %d times, want %d", l.launches, want)
					}
				})
			})
		}
	}
}

func TestI5LostLaunchIsDetectedAfterInstanceLeaves(t *testing.T) {
	simulateNative(t, 3, 10, func(t *testing.T, _ *sim, g *fakeGroup, pool *NativePool) {
		l := unreliableGroup{fakeGroup: g, carriesOut: true, err: errConnectionRefused}
		pool.provider = &l
		change := func() error {
			return pool.Detach(t.Context(), api.Removal{MachineID: "openstack:///" + newUUID(1)})
		}
		if err := change(); err == nil {
			t.Fatal("the answer was lost, and there is no error")
		}
		g.machines = slices.Delete(g.machines, 2, 3)
		l.err = nil
		if err := change(); err != nil || l.launches != 1 {
			t.Errorf("%v after %d launches; want the new instance to be recognized", err, l.launches)
		}
	})
}
