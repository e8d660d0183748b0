package agent_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/slipway-dev/slipway/dev/azure"
)

// TestDrainAppearsInMetricsEventsAndConditions uses a Freeze, because the agent and its metrics survive it.
func TestDrainAppearsInMetricsEventsAndConditions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "observed", 1)
	f.run(f.app("web", 3).Deployment(), f.app("collector", 1).StatefulSet())
	f.createPod(f.app("unmanaged", 1))
	was := f.marksOf(0)
	history := f.record(0)
	a := f.agent(0, shortPolls)
	began := float64(time.Now().Unix())
	// The event lasts until the test has seen the condition. A loaded host does not write a condition within a few
	// seconds.
	e := f.announce(azure.Announcement{Type: azure.Freeze, DurationSeconds: new(60), Outage: time.Hour})
	f.awaitNode(0, "in maintenance", func(n *corev1.Node) bool {
		c := condition(n, "MaintenanceInProgress")
		return c != nil && c.Status == corev1.ConditionTrue
	})
	f.check(f.Azure.FinishEvent(f.ctx, e.EventID))
	f.awaitEnd(e.EventID)
	f.awaitRestored(0, was)
	f.awaitMetric(a, `slipway_agent_notices_ended_total{type="Freeze"}`, atLeast(1))

	for series, want := range map[string]float64{
		`slipway_agent_notices_total{type="Freeze",action="drain"}`:  1,
		`slipway_agent_notices_total{type="Freeze",action="ignore"}`: 0,
		`slipway_agent_notices_total{type="Reboot",action="drain"}`:  0,
		`slipway_agent_cordons_total{type="Freeze"}`:                 1,
		`slipway_agent_acknowledgements_total{type="Freeze"}`:        1,
		`slipway_agent_active_notices{type="Freeze"}`:                0,
		`slipway_agent_deadline_timestamp_seconds`:                   0,
		`slipway_agent_failed_steps_total`:                           0,
		`slipway_agent_failed_kubernetes_events_total`:               0,
		`slipway_agent_unreadable_notices_total`:                     0,
		`slipway_drains_total{outcome="drained"}`:                    1,
		`slipway_drain_seconds_count`:                                1,
		`slipway_drain_pods{state="gone"}`:                           4,
		`slipway_drain_pods{state="stayed"}`:                         1,
		`slipway_drain_pods{state="waiting"}`:                        0,
		`slipway_drain_pod_ends_total{end="stopped"}`:                4,
		`slipway_drain_pod_ends_total{end="killed"}`:                 0,
		`slipway_drain_forced_pods_total`:                            0,
		`slipway_drain_shortened_grace_pods_total`:                   0,
	} {
		if is, ok := a.ReadMetric(f.ctx, series); !ok || is != want {
			t.Errorf("%s is %v (there: %v), want %v", series, is, ok, want)
		}
	}
	for series, least := range map[string]float64{
		`slipway_agent_polls_total{result="ok"}`:                    5,
		`slipway_agent_last_read_timestamp_seconds{source="azure"}`: began,
		`slipway_drain_seconds_sum`:                                 0.5,
		`slipway_agent_poll_seconds_bucket{le="+Inf"}`:              5,
	} {
		if is, ok := a.ReadMetric(f.ctx, series); !ok || is < least {
			t.Errorf("%s is %v (there: %v), want at least %v", series, is, ok, least)
		}
	}
	if promtool, err := exec.LookPath("promtool"); err == nil {
		cmd := exec.CommandContext(f.ctx, promtool, "check", "metrics")
		cmd.Stdin = strings.NewReader(a.ReadMetrics(f.ctx))
		if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
			t.Errorf("promtool check metrics: %v\n%s", err, out)
		}
	}
	f.awaitEvent(0, "Uncordoned")
	f.checkEvents(map[string]string{
		"NoticeReceived": "Freeze", "Cordoned": e.EventID, "Draining": e.EventID, "Drained": "4 gone",
		"Acknowledged": f.pool.ResourceName(0), "NoticeEnded": e.EventID, "Uncordoned": "schedulable again",
	})
	checkConditionOrder(t, history.States())
}

// checkEvents wants exactly one Kubernetes Event per reason on the node, with these words in its message.
func (f *fixture) checkEvents(want map[string]string) {
	f.t.Helper()
	list, err := f.Client().CoreV1().Events("").List(f.ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.name", f.node(0)).String(),
	})
	f.check(err)
	node := f.awaitNode(0, "there", func(*corev1.Node) bool { return true })
	found := map[string]int{}
	for _, e := range list.Items {
		if e.Source.Component != "slipway-agent" {
			continue
		}
		found[e.Reason]++
		if e.InvolvedObject.Kind != "Node" || e.InvolvedObject.UID != node.UID {
			f.t.Errorf("%s is about %+v", e.Reason, e.InvolvedObject)
		}
		if words, ok := want[e.Reason]; ok && !strings.Contains(e.Message, words) {
			f.t.Errorf("%s has the message %q, want %q in it", e.Reason, e.Message, words)
		}
	}
	for reason := range want {
		if found[reason] != 1 {
			f.t.Errorf("%d Events %s, want 1 (of %v)", found[reason], reason, found)
		}
	}
}

// checkConditionOrder wants the lifecycle conditions to appear and disappear in the order of the drain.
func checkConditionOrder(t *testing.T, states []*corev1.Node) {
	t.Helper()
	var seen []string
	for _, n := range states {
		var set []string
		for _, kind := range lifecycle {
			if c := condition(n, kind); c != nil && c.Status == corev1.ConditionTrue {
				set = append(set, kind)
			}
		}
		if now := strings.Join(set, "+"); len(seen) == 0 || seen[len(seen)-1] != now {
			seen = append(seen, now)
		}
	}
	position := -1
	for _, want := range []string{
		"", "DrainInProgress+MaintenancePlanned", "Drained+MaintenancePlanned", "Drained+MaintenanceInProgress", "",
	} {
		next := slices.Index(seen[position+1:], want)
		if next < 0 {
			t.Fatalf("conditions were %q: no %q after the %d. of them", seen, want, position+1)
		}
		position += next + 1
	}
}
