package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// Approving an event approves it for every machine that it names: one that is not known to be drained must hold it
// back, whatever the reason that it is not known (I7).
func TestI7OnlyMachinesKnownToBeDrainedCount(t *testing.T) {
	machine := func(id string) (string, error) {
		if id == "" {
			return "", errors.New("no provider ID")
		}
		return id, nil
	}
	node := func(id string) kubeapi.Node { return kubeapi.Node{Spec: kubeapi.NodeSpec{ProviderID: id}} }
	for name, tt := range map[string]struct {
		resources []string
		drained   []kubeapi.Node
		left      []string
	}{
		"alone":                                {[]string{"pool_1"}, nil, nil},
		"alone, in another letter case":        {[]string{"POOL_1"}, nil, nil},
		"another is not drained":               {[]string{"pool_1", "pool_2"}, nil, []string{"pool_2"}},
		"another is drained":                   {[]string{"pool_1", "pool_2"}, []kubeapi.Node{node("Pool_2")}, nil},
		"a machine that is no node":            {[]string{"pool_1", "stranger"}, []kubeapi.Node{node("pool_2")}, []string{"stranger"}},
		"a drained node without a provider ID": {[]string{"pool_1", "pool_2"}, []kubeapi.Node{node("")}, []string{"pool_2"}},
		"_1 drained is not _10 drained":        {[]string{"pool_1", "pool_10"}, []kubeapi.Node{node("pool_1")}, []string{"pool_10"}},
		"one of two others":                    {[]string{"pool_1", "pool_2", "pool_3"}, []kubeapi.Node{node("pool_3")}, []string{"pool_2"}},
	} {
		t.Run(name, func(t *testing.T) {
			check.Equal(t, tt.left, listUndrained(tt.resources, "pool_1", tt.drained, machine))
		})
	}
}

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

func TestI2ResultIsWrittenBeforeTheAcknowledgement(t *testing.T) {
	for _, c := range []struct {
		name        string
		takes, want time.Duration
	}{
		{"at once when nothing is left to say", 0, 0},
		{"as soon as the Event is written", 300 * time.Millisecond, 300 * time.Millisecond},
		{"without it after a moment", time.Minute, flushTimeout},
	} {
		t.Run(c.name, virtual.Time(func(t *testing.T) {
			told := approvedAfter(t, c.takes)
			if told < c.want || told > c.want+2*shortPollInterval {
				t.Errorf("acknowledged after %s, want %s", told, c.want)
			}
		}))
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
	h := &noticeState{
		Notice: notice.Notice{ID: "id", Type: notice.Preempt, Status: notice.Scheduled, Resources: []string{"vmss_0"}},
		Phase:  Drained,
	}
	a.events.emit(newNormalEvent(DrainDone, "said"))
	synctest.Wait()
	began := time.Now()
	for len(told.at) == 0 {
		wait, err := a.approveNotice(ctx, h, time.Now())
		must.NoError(t, err)
		if len(told.at) == 0 {
			time.Sleep(wait)
		}
	}
	return told.at[0].Sub(began)
}
