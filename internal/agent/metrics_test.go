package agent

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/observe"
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
		`slipway_agent_last_read_timestamp_seconds 0`,
		`slipway_drain_forced_pods_total 0`,
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("missing metric %s in\n%s", want, page)
		}
	}
}

func TestMetricsFollowPollsAndDrains(t *testing.T) {
	r := observe.NewRegistry()
	m := NewMetrics(r)
	m.FetchSucceeded(time.Millisecond)
	m.FetchFailed(errors.New("no answer"), azure.Unreachable)
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
		`slipway_drain_pods{state="gone"} 1`,
		`slipway_drain_blocked_pods{reason="disruption-budget"} 1`,
		`slipway_drains_total{outcome="drained"} 1`,
		`slipway_drain_pod_ends_total{end="killed"} 1`,
		`slipway_drain_pod_ends_total{end="stopped"} 1`,
		`slipway_drain_forced_pods_total 1`,
		`slipway_drain_shortened_grace_pods_total 1`,
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("missing metric %s in\n%s", want, page)
		}
	}
	if strings.Contains(page, "slipway_agent_last_read_timestamp_seconds 0\n") {
		t.Error("a successful poll did not change slipway_agent_last_read_timestamp_seconds")
	}
}
