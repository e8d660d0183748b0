package agent

import (
	"strings"
	"testing"
	"testing/synctest"
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

func TestTheConditionSaysWhatBlocksTheDrainAndIsNotWrittenForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newCluster(), "n", time.Minute)
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
		m.crash()
	})
}

func TestADrainThatNothingBlocksWritesConditionsWhenItBeginsAndWhenItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newCluster(), "n", time.Minute)
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
		m.crash()
	})
}

func TestI2WhatADrainForcedIsSaidAlsoWhenItIsStopped(t *testing.T) {
	for name, stop := range map[string]func(*machine){
		"its notice is withdrawn": func(m *machine) { m.source.say() },
		"the agent is to end":     (*machine).crash,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(newCluster(), "n", 5*time.Minute)
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
				m.crash()
			})
		})
	}
}

func TestADrainThatEndsIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newCluster(), "n", 10*time.Second)
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
