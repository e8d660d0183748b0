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

func conditionTypes(n kubeapi.Node) (types []string) {
	for _, c := range n.Status.Conditions {
		types = append(types, c.Type)
	}
	slices.Sort(types)
	return types
}

// The API server answers the eviction after a delay.
func TestWritesWaitUntilEvictionsAreRequested(t *testing.T) {
	for name, c := range map[string]struct {
		answers time.Duration // to the eviction
		quiet   time.Duration // how long nothing is written
	}{
		"until the evictions are requested": {5 * time.Second, 5 * time.Second},
		"for half of the time at most":      {time.Minute, 15 * time.Second},
		"briefly if the API server is fast": {10 * time.Millisecond, 10 * time.Millisecond},
	} {
		t.Run(name, testNodeTest(2*time.Minute, func(t *testing.T, m *testNode) {
			m.evictionDelay = c.answers
			m.startAgent(t, 0, nil)
			time.Sleep(time.Second)
			m.source.setNotices(newNotice(notice.Preempt, "a", 30*time.Second))
			time.Sleep(c.quiet - time.Millisecond)
			n := m.currentNode()
			if !n.Spec.Unschedulable || n.Labels[cordon.LabelKey("azure-a")] != string(cordon.Draining) {
				t.Errorf("the node is not cordoned from the start: unschedulable %t, labels %v", n.Spec.Unschedulable, n.Labels)
			}
			if got := conditionTypes(n); len(got) > 0 || m.hasEvent("NoticeReceived") {
				t.Errorf("conditions %v, Event NoticeReceived %t, before the eviction was requested", got, m.hasEvent("NoticeReceived"))
			}
			time.Sleep(2 * time.Second)
			if got := conditionTypes(m.currentNode()); !slices.Equal(got, []string{cordon.DrainInProgress, cordon.MaintenancePlanned}) {
				t.Errorf("conditions %v after the eviction was requested", got)
			}
			for _, reason := range []string{"NoticeReceived", "Cordoned", "Draining"} {
				if !m.hasEvent(reason) {
					t.Errorf("no Event %s after the eviction was requested: %v", reason, m.eventReasons)
				}
			}
		}))
	}
}

func TestBlockedDrainDoesNotThrottleWrites(t *testing.T) {
	p := drain.Progress{Listed: true, RemainingPods: []drain.BlockedPod{{Reason: drain.ObstacleStopping}, {Reason: drain.ObstaclePDB}, {Reason: drain.ObstacleEarlierWave}}}
	if !hasRequestedAll(p) {
		t.Error("want true: all possible evictions were requested")
	}
	for _, r := range []drain.ObstacleKind{drain.ObstacleQueued, drain.ObstacleAPIServerBusy, drain.ObstacleError} {
		more := p
		more.RemainingPods = append(slices.Clone(p.RemainingPods), drain.BlockedPod{Reason: r})
		if hasRequestedAll(more) {
			t.Errorf("want false: an eviction waits: %s", r)
		}
	}
	if hasRequestedAll(drain.Progress{}) {
		t.Error("want false: the pods are not listed yet")
	}
}

func TestWriteThrottleEndsOnDemandOrContextEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newWriteThrottle()
		h.setEnd(time.Now().Add(time.Hour))
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			h.setEnd(time.Now().Add(5 * time.Second)) // earlier than before
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
