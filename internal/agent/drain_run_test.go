package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

// drainMessage is that of the node's condition DrainInProgress; empty without one.
func (m *machine) drainMessage() string {
	for _, c := range m.see().Status.Conditions {
		if c.Type == cordon.DrainInProgress {
			return c.Message
		}
	}
	return ""
}

func TestConditionNamesTheDrainsBlockersWithoutExtraWrites(t *testing.T) {
	onMachine(t, time.Minute, func(t *testing.T, m *machine) {
		m.denied("web")
		m.start(t, 0, nil)
		time.Sleep(time.Second)
		m.source.say(announced(notice.Redeploy, "a", time.Hour))
		time.Sleep(10 * time.Second)
		if got, want := m.drainMessage(), "azure Redeploy (a): 0 of 1 gone, 1 waiting (disruption-budget shop/web: 1)"; got != want {
			t.Errorf("while it is blocked: %q, want %q", got, want)
		}
		writes := m.conditionWrites()
		time.Sleep(20 * time.Minute)
		if more := m.conditionWrites() - writes; more > 0 {
			t.Errorf("the conditions were written %d times more while nothing changed", more)
		}
		m.denied("")
		for m.asked().IsZero() {
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		if got, want := m.drainMessage(), "azure Redeploy (a)"; got != want {
			t.Errorf("when it is blocked no more: %q, want %q", got, want)
		}
		time.Sleep(2 * time.Minute)
		if got := conditionsOf(m.see()); len(got) != 2 || got[0] != cordon.DrainedCondition {
			t.Errorf("at the end: %v", got)
		}
	})
}

func TestUnblockedDrainWritesConditionsOnlyTwice(t *testing.T) {
	onMachine(t, time.Minute, func(t *testing.T, m *machine) {
		m.start(t, 0, nil)
		time.Sleep(time.Second)
		m.source.say(announced(notice.Redeploy, "a", time.Hour))
		time.Sleep(30 * time.Second)
		if got, want := m.drainMessage(), "azure Redeploy (a)"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(2 * time.Minute)
		if n := m.conditionWrites(); n != 2 || !m.empty() {
			t.Errorf("the conditions were written %d times, want 2; the pod has left: %t", n, m.empty())
		}
	})
}

func TestForcedDeletionFollowsTheTimeOfTheNotice(t *testing.T) {
	for name, tt := range map[string]struct{ at, moved time.Duration }{
		"sooner": {2 * time.Hour, time.Hour}, "later": {time.Hour, 2 * time.Hour},
	} {
		t.Run(name, machineTest(time.Second, func(t *testing.T, m *machine) {
			m.denied("web")
			m.start(t, 0, nil)
			m.source.say(announced(notice.Redeploy, "a", tt.at))
			time.Sleep(10 * time.Second)
			moved := announced(notice.Redeploy, "a", tt.moved)
			m.source.say(moved)
			time.Sleep(tt.moved)
			// The pod's own time and the agent's margin are what it keeps before the end.
			if left := moved.NotBefore.Sub(m.asked()); left < 10*time.Minute || left > 11*time.Minute || !m.said("NoticeChanged") {
				t.Errorf("deleted %s before the machine is due, want between 10 and 11 minutes; said that it changed: %t", left, m.said("NoticeChanged"))
			}
		}))
	}
}

func TestI2ForcedDeletionsAreReportedWhenADrainStops(t *testing.T) {
	for name, stop := range map[string]func(*machine){
		"its notice is withdrawn": func(m *machine) { m.source.say() },
		"the agent is to end":     (*machine).crash,
	} {
		t.Run(name, machineTest(5*time.Minute, func(t *testing.T, m *machine) {
			m.denied("web")
			registry := observe.NewRegistry()
			m.start(t, 0, func(o *Options) { o.Metrics = NewMetrics(registry) })
			m.source.say(announced(notice.Preempt, "p", 20*time.Minute))
			for m.asked().IsZero() {
				time.Sleep(time.Second)
			}
			time.Sleep(time.Minute)
			stop(m)
			time.Sleep(10 * time.Minute)
			page := scrape(t, registry)
			for _, want := range []string{`slipway_drain_forced_pods_total 1`, `slipway_drains_total{outcome="cancelled"} 1`} {
				if !strings.Contains(page, want+"\n") {
					t.Errorf("no %s in\n%s", want, page)
				}
			}
			if m.times(DrainStopped) != 1 {
				t.Errorf("Events %v", m.events)
			}
		}))
	}
}

func TestADrainThatEndsIsCountedOnce(t *testing.T) {
	onMachine(t, 10*time.Second, func(t *testing.T, m *machine) {
		registry := observe.NewRegistry()
		m.start(t, 0, func(o *Options) { o.Metrics = NewMetrics(registry) })
		m.source.say(announced(notice.Reboot, "r", time.Hour))
		time.Sleep(time.Minute)
		m.source.say()
		time.Sleep(time.Minute)
		m.crash()
		page := scrape(t, registry)
		for _, want := range []string{`slipway_drains_total{outcome="drained"} 1`, `slipway_drains_total{outcome="cancelled"} 0`} {
			if !strings.Contains(page, want+"\n") {
				t.Errorf("no %s in\n%s", want, page)
			}
		}
		if m.said(string(DrainStopped)) {
			t.Errorf("Events %v", m.events)
		}
	})
}
