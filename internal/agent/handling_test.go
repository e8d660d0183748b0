package agent

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

// slowEvents is an API server that takes its time to write an Event.
type slowEvents struct {
	API

	takes time.Duration
}

func (s slowEvents) CreateEvent(ctx context.Context, _ kubeapi.Event) error {
	select {
	case <-time.After(s.takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// approvals notes when the platform was told to begin.
type approvals struct{ at []time.Time }

func (a *approvals) Approve(context.Context, ...string) error {
	a.at = append(a.at, time.Now())
	return nil
}

func TestI2WhatWasDoneIsWrittenBeforeTheMachineMayGo(t *testing.T) {
	for _, c := range []struct {
		name        string
		takes, want time.Duration
	}{
		{"at once when nothing is left to say", 0, 0},
		{"as soon as the Event is written", 300 * time.Millisecond, 300 * time.Millisecond},
		{"without it after a moment", time.Minute, lastWords},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				told := approvedAfter(t, c.takes)
				if told < c.want || told > c.want+2*listenEvery {
					t.Errorf("acknowledged after %s, want %s", told, c.want)
				}
			})
		})
	}
}

// approvedAfter lets an agent emit an Event and acknowledge a drained node's notice, and says how long that took.
func approvedAfter(t *testing.T, eventTakes time.Duration) time.Duration {
	t.Helper()
	var told approvals
	a := New(Options{
		Node: "node", Resource: "vmss_0", API: slowEvents{takes: eventTakes}, Approver: &told, DryRun: true,
		Metrics: NewMetrics(observe.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go a.events.run(ctx)
	h := &handling{
		Notice: notice.Notice{ID: "id", Type: notice.Preempt, Status: notice.Scheduled, Resources: []string{"vmss_0"}},
		Phase:  Drained,
	}
	a.events.emit(normal(DrainDone, "said"))
	synctest.Wait()
	began := time.Now()
	for len(told.at) == 0 {
		wait, err := a.approve(ctx, h, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if len(told.at) == 0 {
			time.Sleep(wait)
		}
	}
	return told.at[0].Sub(began)
}
