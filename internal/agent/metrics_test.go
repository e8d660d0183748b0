package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/notice/report"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func scrape(t *testing.T, r *observe.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

func TestMetricsExistFromTheStart(t *testing.T) {
	r := observe.NewRegistry()
	NewMetrics(r)
	page := scrape(t, r)
	for _, want := range []string{
		`slipway_agent_notices_total{type="Preempt",action="drain"} 0`,
		`slipway_agent_acknowledgements_total{type="Reboot"} 0`,
		`slipway_agent_polls_total{result="ok"} 0`,
		`slipway_agent_polls_total{result="not_json"} 0`,
		`slipway_drain_forced_pods_total 0`,
	} {
		check.Not(t, !strings.Contains(page, want+"\n"), "missing metric %s in\n%s", want, page)
	}
}

func TestMetricsFollowPollsAndDrains(t *testing.T) {
	r := observe.NewRegistry()
	m := NewMetrics(r)
	m.FetchSucceeded("gce-spot", time.Millisecond)
	m.FetchFailed("gce-host", errors.New("no answer"), poll.Unreachable)
	m.setDrainProgress(drain.Progress{Listed: true, Total: 3, Gone: 1, Waiting: 2, RemainingPods: []drain.BlockedPod{
		{Pod: "a", Reason: drain.ObstaclePDB}, {Pod: "b", Reason: drain.ObstacleStopping},
	}})
	m.recordDrain(drain.Report{Outcome: drain.Drained, Pods: []drain.PodReport{
		{Action: podrules.Evict, Removal: drain.ForceDeleted, End: drain.Killed, WantedGraceSeconds: 30, GivenGraceSeconds: 5},
		{Action: podrules.Evict, Removal: drain.Evicted, End: drain.Stopped},
		{Action: podrules.Skip},
	}})
	page := scrape(t, r)
	for _, want := range []string{
		`slipway_agent_polls_total{result="ok"} 1`,
		`slipway_agent_polls_total{result="unreachable"} 1`,
		`slipway_agent_last_read_timestamp_seconds{source="gce-host"} 0`,
		`slipway_drain_pods{state="gone"} 1`,
		`slipway_drain_blocked_pods{reason="disruption-budget"} 1`,
		`slipway_drains_total{outcome="drained"} 1`,
		`slipway_drain_pod_ends_total{end="killed"} 1`,
		`slipway_drain_pod_ends_total{end="stopped"} 1`,
		`slipway_drain_forced_pods_total 1`,
		`slipway_drain_shortened_grace_pods_total 1`,
	} {
		check.Not(t, !strings.Contains(page, want+"\n"), "missing metric %s in\n%s", want, page)
	}
	if !strings.Contains(page, `slipway_agent_last_read_timestamp_seconds{source="gce-spot"} 1`) {
		t.Errorf("the time of the last read is not in\n%s", page)
	}
}

func TestAgentsOfOneProcessAddTheirBlockedPods(t *testing.T) {
	r := observe.NewRegistry()
	all := NewMetrics(r)
	first, second := all.ForOneNode(), all.ForOneNode()
	blocked := func(names ...string) (p drain.Progress) {
		for _, name := range names {
			p.RemainingPods = append(p.RemainingPods, drain.BlockedPod{Pod: name, Reason: drain.ObstaclePDB})
		}
		return p
	}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { first.setDrainProgress(blocked("a", "b")) }, "2"},
		{func() { second.setDrainProgress(blocked("c")) }, "3"},
		{func() { first.setDrainProgress(blocked("b")) }, "2"},
		{first.clearRemainingPods, "1"},
		{first.clearRemainingPods, "1"},
		{second.clearRemainingPods, "0"},
	} {
		step.do()
		check.Contains(t, scrape(t, r), `slipway_drain_blocked_pods{reason="disruption-budget"} `+step.want+"\n")
	}
}

func TestEndedDrainLeavesNoBlockedPods(t *testing.T) {
	for name, c := range map[string]struct {
		kind notice.Type
		end  func(*testNode)
	}{
		"its notice is cancelled": {notice.Reboot, func(m *testNode) { m.source.setNotices() }},
		"it gives up":             {notice.Condition, func(*testNode) { time.Sleep(10 * time.Minute) }},
		"its agent stops":         {notice.Reboot, func(m *testNode) { m.stopAgent() }},
	} {
		t.Run(name, testNodeTest(time.Minute, func(t *testing.T, m *testNode) {
			r, n := observe.NewRegistry(), newNotice(c.kind, "X", 15*time.Minute)
			m.source.name = n.Source
			m.denyEvictions("shop/web")
			m.startAgent(t, 0, func(o *Options) {
				o.Metrics, o.ConditionDrainTimeout = NewMetrics(r), 10*time.Minute
				o.Policy.ActionByCondition = map[string]Action{"X": Drain}
			})
			m.source.setNotices(n)
			time.Sleep(time.Minute)
			blocked, waiting := `slipway_drain_blocked_pods{reason="disruption-budget"} `, `slipway_drain_pods{state="waiting"} `
			page := scrape(t, r)
			check.Contains(t, page, blocked+"1\n")
			check.Contains(t, page, waiting+"1\n")
			c.end(m)
			time.Sleep(time.Minute)
			page = scrape(t, r)
			check.Contains(t, page, blocked+"0\n")
			check.Contains(t, page, waiting+"0\n")
		}))
	}
}

func TestAgentRecordsCanBeReportedByOthers(t *testing.T) {
	seen := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := noticeState{
		Notice:   notice.Notice{ID: "E1", Source: "azure", Type: notice.Preempt, Status: notice.Started},
		Seen:     SeenTimes{First: seen},
		Decision: Decision{Action: Drain, Deadline: seen.Add(30 * time.Second)},
		Phase:    Draining,
	}
	state, err := json.Marshal(&h)
	must.NoError(t, err)
	name := notice.ClaimOwner(h.Notice.Source, h.Notice.ID)
	record, err := json.Marshal(cordon.Record{Owner: name, Since: seen, State: state})
	must.NoError(t, err)
	reports, problems := report.ReadReports(map[string]string{cordon.AnnotationKey(name): string(record)})
	must.Not(t, len(reports) != 1 || len(problems) != 0, "%v, %v", reports, problems)
	check.Is(t, "", report.BlockedProgress(lifecycleConditions(&h)[1].Message))
	h.shownProgress = "7 of 12 gone, 1 waiting (disruption-budget shop/web: 1)"
	if got := report.BlockedProgress(lifecycleConditions(&h)[1].Message); got != h.shownProgress {
		t.Errorf("blocked progress %q", got)
	}
	r := reports[0]
	if r.ID != "E1" || r.Type != notice.Preempt || r.Status != notice.Started || !r.Seen.Equal(seen) ||
		!r.Deadline.Equal(h.Decision.Deadline) || r.Phase != string(Draining) {
		t.Errorf("reported %+v of %+v", r, h)
	}
}

// The node is registered again under another UID while an Event of the old node waits.
func TestEventKeepsUIDOfItsNode(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		m.startAgent(t, 0, nil)
		time.Sleep(time.Second)
		m.agent.events.throttle.setEnd(time.Now().Add(time.Minute))
		m.agent.events.queueEvent(newUncordonedEvent())
		m.mu.Lock()
		m.node.UID = "uid-new"
		m.mu.Unlock()
		m.agent.updates <- func(context.Context) { m.agent.recordsRead = false }
		time.Sleep(time.Second)
		m.agent.events.queueEvent(newUncordonedEvent())
		time.Sleep(time.Minute)
		m.crashAgent()
		if want := []string{"uid-n", "uid-new"}; !slices.Equal(m.eventNodeUIDs, want) {
			t.Errorf("the Events are about %v, want %v", m.eventNodeUIDs, want)
		}
	})
}

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
	check.Not(t, !hasRequestedAll(p), "want true: all possible evictions were requested")
	for _, r := range []drain.ObstacleKind{drain.ObstacleQueued, drain.ObstacleAPIServerBusy, drain.ObstacleError} {
		more := p
		more.RemainingPods = append(slices.Clone(p.RemainingPods), drain.BlockedPod{Reason: r})
		check.Not(t, hasRequestedAll(more), "want false: an eviction waits: %s", r)
	}
	check.Not(t, hasRequestedAll(drain.Progress{}), "want false: the pods are not listed yet")
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
