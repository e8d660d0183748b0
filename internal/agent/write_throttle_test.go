package agent

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// conditionsOf lists the types of a node's conditions.
func conditionsOf(n kubeapi.Node) (types []string) {
	for _, c := range n.Status.Conditions {
		types = append(types, c.Type)
	}
	slices.Sort(types)
	return types
}

// TestReportsWaitUntilPodsWereAsked has the API server take its time over the eviction.
func TestReportsWaitUntilPodsWereAsked(t *testing.T) {
	for name, c := range map[string]struct {
		answers time.Duration // to the eviction
		quiet   time.Duration // for so long nothing is written
	}{
		"until they were":                    {5 * time.Second, 5 * time.Second},
		"and for half of the time at most":   {time.Minute, 15 * time.Second},
		"which is not long when all is well": {10 * time.Millisecond, 10 * time.Millisecond},
	} {
		t.Run(name, machineTest(2*time.Minute, func(t *testing.T, m *machine) {
			m.answers = c.answers
			m.start(t, 0, nil)
			time.Sleep(time.Second)
			m.source.say(announced(notice.Preempt, "a", 30*time.Second))
			time.Sleep(c.quiet - time.Millisecond)
			n := m.see()
			if !n.Spec.Unschedulable || n.Labels[cordon.LabelKey("azure-a")] != string(cordon.Draining) {
				t.Errorf("the node is not held from the start: unschedulable %t, labels %v", n.Spec.Unschedulable, n.Labels)
			}
			if got := conditionsOf(n); len(got) > 0 || m.said("NoticeReceived") {
				t.Errorf("conditions %v, an Event %t, while the pod waits to be asked", got, m.said("NoticeReceived"))
			}
			time.Sleep(2 * time.Second)
			if got := conditionsOf(m.see()); !slices.Equal(got, []string{cordon.DrainInProgress, cordon.MaintenancePlanned}) {
				t.Errorf("conditions %v after it", got)
			}
			for _, reason := range []string{"NoticeReceived", "Cordoned", "Draining"} {
				if !m.said(reason) {
					t.Errorf("no Event %s after it: %v", reason, m.events)
				}
			}
		}))
	}
}

func TestBlockedDrainDoesNotThrottleWrites(t *testing.T) {
	p := drain.Progress{Listed: true, Blocked: []drain.Blocked{{Reason: drain.Stopping}, {Reason: drain.Budget}, {Reason: drain.EarlierWave}}}
	if !hasRequestedAll(p) {
		t.Error("all were asked that can be")
	}
	for _, r := range []drain.Obstacle{drain.Turn, drain.Busy, drain.Failing} {
		more := p
		more.Blocked = append(slices.Clone(p.Blocked), drain.Blocked{Reason: r})
		if hasRequestedAll(more) {
			t.Errorf("one waits: %s", r)
		}
	}
	if hasRequestedAll(drain.Progress{}) {
		t.Error("the pods are not known yet")
	}
}

func TestWriteThrottleEndsOnDemandOrContextEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newWriteThrottle()
		h.setEnd(time.Now().Add(time.Hour))
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			h.setEnd(time.Now().Add(5 * time.Second)) // sooner than before
		}()
		h.wait(t.Context())
		check.Is(t, 6*time.Second, time.Since(began))
		h.setEnd(time.Now().Add(time.Hour))
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		h.wait(ctx)
		check.Is(t, 7*time.Second, time.Since(began))
	})
}
