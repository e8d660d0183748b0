package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

// drainConditionMessage returns the message of the condition DrainInProgress, or "" without the condition.
func (m *testNode) drainConditionMessage() string {
	for _, c := range m.currentNode().Status.Conditions {
		if c.Type == cordon.DrainInProgress {
			return c.Message
		}
	}
	return ""
}

func TestConditionNamesTheDrainsBlockersWithoutExtraWrites(t *testing.T) {
	withTestNode(t, time.Minute, func(t *testing.T, m *testNode) {
		m.denyEvictions("web")
		m.startAgent(t, 0, nil)
		time.Sleep(time.Second)
		m.source.setNotices(newNotice(notice.Redeploy, "a", time.Hour))
		time.Sleep(10 * time.Second)
		if got, want := m.drainConditionMessage(), "azure Redeploy (a): 0 of 1 gone, 1 waiting (disruption-budget shop/web: 1)"; got != want {
			t.Errorf("while it is blocked: %q, want %q", got, want)
		}
		writes := m.conditionWrites()
		time.Sleep(20 * time.Minute)
		if more := m.conditionWrites() - writes; more > 0 {
			t.Errorf("the conditions were written %d more times without a change", more)
		}
		m.denyEvictions("")
		for m.evictionTime().IsZero() {
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		if got, want := m.drainConditionMessage(), "azure Redeploy (a)"; got != want {
			t.Errorf("after it was unblocked: %q, want %q", got, want)
		}
		time.Sleep(2 * time.Minute)
		if got := conditionTypes(m.currentNode()); len(got) != 2 || got[0] != cordon.DrainedCondition {
			t.Errorf("at the end: %v", got)
		}
	})
}

func TestUnblockedDrainWritesConditionsOnlyTwice(t *testing.T) {
	withTestNode(t, time.Minute, func(t *testing.T, m *testNode) {
		m.startAgent(t, 0, nil)
		time.Sleep(time.Second)
		m.source.setNotices(newNotice(notice.Redeploy, "a", time.Hour))
		time.Sleep(30 * time.Second)
		if got, want := m.drainConditionMessage(), "azure Redeploy (a)"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(2 * time.Minute)
		if n := m.conditionWrites(); n != 2 || !m.isEmpty() {
			t.Errorf("the conditions were written %d times, want 2; the pod has left: %t", n, m.isEmpty())
		}
	})
}

func TestForcedDeletionFollowsTheTimeOfTheNotice(t *testing.T) {
	for name, tt := range map[string]struct{ at, moved time.Duration }{
		"sooner": {2 * time.Hour, time.Hour}, "later": {time.Hour, 2 * time.Hour},
	} {
		t.Run(name, testNodeTest(time.Second, func(t *testing.T, m *testNode) {
			m.denyEvictions("web")
			m.startAgent(t, 0, nil)
			m.source.setNotices(newNotice(notice.Redeploy, "a", tt.at))
			time.Sleep(10 * time.Second)
			moved := newNotice(notice.Redeploy, "a", tt.moved)
			m.source.setNotices(moved)
			time.Sleep(tt.moved)
			// The drain keeps the pod's grace period and the agent's margin before the deadline.
			if left := moved.NotBefore.Sub(m.evictionTime()); left < 10*time.Minute || left > 11*time.Minute || !m.hasEvent("NoticeChanged") {
				t.Errorf("deleted %s before the deadline, want between 10 and 11 minutes; Event NoticeChanged: %t", left, m.hasEvent("NoticeChanged"))
			}
		}))
	}
}

func TestI2ForcedDeletionsAreReportedWhenADrainStops(t *testing.T) {
	for name, stop := range map[string]func(*testNode){
		"its notice ends":     func(m *testNode) { m.source.setNotices() },
		"the agent is to end": (*testNode).crashAgent,
	} {
		t.Run(name, testNodeTest(5*time.Minute, func(t *testing.T, m *testNode) {
			m.denyEvictions("web")
			registry := observe.NewRegistry()
			m.startAgent(t, 0, func(o *Options) { o.Metrics = NewMetrics(registry) })
			m.source.setNotices(newNotice(notice.Preempt, "p", 20*time.Minute))
			for m.evictionTime().IsZero() {
				time.Sleep(time.Second)
			}
			time.Sleep(time.Minute)
			stop(m)
			time.Sleep(10 * time.Minute)
			page := scrape(t, registry)
			for _, want := range []string{`slipway_drain_forced_pods_total 1`, `slipway_drains_total{outcome="cancelled"} 1`} {
				if !strings.Contains(page, want+"\n") {
					t.Errorf("missing metric %s in\n%s", want, page)
				}
			}
			if m.countEvents(DrainStopped) != 1 {
				t.Errorf("Events %v", m.eventReasons)
			}
		}))
	}
}

func TestFinishedDrainIsCountedOnce(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		registry := observe.NewRegistry()
		m.startAgent(t, 0, func(o *Options) { o.Metrics = NewMetrics(registry) })
		m.source.setNotices(newNotice(notice.Reboot, "r", time.Hour))
		time.Sleep(time.Minute)
		m.source.setNotices()
		time.Sleep(time.Minute)
		m.crashAgent()
		page := scrape(t, registry)
		for _, want := range []string{`slipway_drains_total{outcome="drained"} 1`, `slipway_drains_total{outcome="cancelled"} 0`} {
			if !strings.Contains(page, want+"\n") {
				t.Errorf("missing metric %s in\n%s", want, page)
			}
		}
		if m.hasEvent(string(DrainStopped)) {
			t.Errorf("Events %v", m.eventReasons)
		}
	})
}
