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

// An approval covers every instance of an event. So an instance that is not known to be drained blocks the approval,
// for any reason (I7).
func TestI7OnlyInstancesKnownToBeDrainedCount(t *testing.T) {
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
		"an instance without a Node":           {[]string{"pool_1", "stranger"}, []kubeapi.Node{node("pool_2")}, []string{"stranger"}},
		"a drained node without a provider ID": {[]string{"pool_1", "pool_2"}, []kubeapi.Node{node("")}, []string{"pool_2"}},
		"_1 drained is not _10 drained":        {[]string{"pool_1", "pool_10"}, []kubeapi.Node{node("pool_1")}, []string{"pool_10"}},
		"one of two others":                    {[]string{"pool_1", "pool_2", "pool_3"}, []kubeapi.Node{node("pool_3")}, []string{"pool_2"}},
	} {
		t.Run(name, func(t *testing.T) {
			check.Equal(t, tt.left, listUndrainedInstances(tt.resources, "pool_1", tt.drained, machine))
		})
	}
}

// slowEventAPI writes each Event after a delay.
type slowEventAPI struct {
	API

	delay time.Duration
}

func (s slowEventAPI) CreateEvent(ctx context.Context, _ kubeapi.Event) error {
	select {
	case <-time.After(s.delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// approvalRecorder records the times of the approvals.
type approvalRecorder struct{ at []time.Time }

func (a *approvalRecorder) Approve(context.Context, ...string) error {
	a.at = append(a.at, time.Now())
	return nil
}

func TestI2EventsAreWrittenBeforeApproval(t *testing.T) {
	for _, c := range []struct {
		name        string
		takes, want time.Duration
	}{
		{"at once if all Events are written", 0, 0},
		{"as soon as the Event is written", 300 * time.Millisecond, 300 * time.Millisecond},
		{"without the Event after a timeout", time.Minute, flushTimeout},
	} {
		t.Run(c.name, virtual.InVirtualTime(func(t *testing.T) {
			told := timeToApproval(t, c.takes)
			if told < c.want || told > c.want+2*shortPollInterval {
				t.Errorf("approved after %s, want %s", told, c.want)
			}
		}))
	}
}

// timeToApproval queues an Event, approves the notice of a drained node, and returns how long that took.
func timeToApproval(t *testing.T, eventTakes time.Duration) time.Duration {
	t.Helper()
	var told approvalRecorder
	a := New(Options{
		Node: "node", ResourceName: "vmss_0", API: slowEventAPI{delay: eventTakes}, Approver: &told, DryRun: true,
		Metrics: NewMetrics(observe.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go a.events.run(ctx)
	h := &noticeState{
		Notice: notice.Notice{ID: "id", Type: notice.Preempt, Status: notice.Scheduled, Resources: []string{"vmss_0"}},
		Phase:  Drained,
	}
	a.events.queueEvent(newNormalEvent(DrainDone, "message"))
	synctest.Wait()
	began := time.Now()
	for len(told.at) == 0 {
		wait, err := a.approveWhenAllDrained(ctx, h, time.Now())
		must.NoError(t, err)
		if len(told.at) == 0 {
			time.Sleep(wait)
		}
	}
	return told.at[0].Sub(began)
}
