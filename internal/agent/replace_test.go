package agent

import (
	"maps"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// TestNodeStaysCordonedWhenOneEventReplacesAnother has Azure end an event as it announces that another has started, under another ID
// (https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events). It did so in Azure's own sample server.
func TestNodeStaysCordonedWhenOneEventReplacesAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		fault

		of []string
	}{
		"all is well":            {},
		"the API server is slow": {fault{takes: 3 * time.Second}, nodeRequests},
		"answers are lost":       {fault{lost: true}, nodeRequests},
		"it hangs":               {hanging, nodeRequests},
		"its claim fails":        {fault{code: 503, once: true}, []string{"patch nodes"}},
	} {
		t.Run(name, machineTest(time.Second, func(t *testing.T, m *machine) {
			m.start(t, 0, nil)
			m.source.say(announced(notice.Redeploy, "scheduled", time.Hour))
			time.Sleep(time.Minute)
			if !m.empty() {
				t.Fatal("not drained")
			}
			m.faults.set(tt.fault, tt.of...)
			started := announced(notice.Redeploy, "started", 0)
			started.Status, started.NotBefore = notice.Started, time.Time{}
			m.source.say(started)
			time.Sleep(30 * time.Second)
			if m.claims > 0 {
				t.Error("the node had a claim for both, want one patch to replace the one with the other")
			}
			m.faults.set(fault{}, nodeRequests...)
			time.Sleep(time.Minute)
			if n := m.see(); !n.Spec.Unschedulable || len(n.Annotations) != 1 || len(m.opened) > 0 || m.times(NoticeOver) != 1 {
				t.Errorf("took pods again at %v; the node is %+v, Events %v", m.opened, n, m.events)
			}
			m.source.say()
			time.Sleep(time.Minute)
			if !m.isRestored() {
				t.Errorf("afterwards the node is %+v", m.see())
			}
		}))
	}
}

// TestClaimIsMadeAgainAfterAnUnansweredRemoval has a notice come back while it is not known whether its claim is on the node.
func TestClaimIsMadeAgainAfterAnUnansweredRemoval(t *testing.T) {
	redeploy := func(id string) notice.Notice { return announced(notice.Redeploy, id, time.Hour) }
	for name, tt := range map[string]struct {
		action Action
		goes   func(*machine) // the notice "a"
	}{
		"it was acknowledged without a drain": {Acknowledge, func(m *machine) { m.source.say() }},
		"it was cordoned for":                 {Cordon, func(m *machine) { m.source.say() }},
		"another had replaced it":             {Cordon, func(m *machine) { m.source.say(redeploy("b")) }},
	} {
		t.Run(name, machineTest(time.Second, func(t *testing.T, m *machine) {
			m.start(t, 0, func(o *Options) { o.Impact.On[notice.Redeploy] = tt.action })
			a := redeploy("a")
			m.source.say(a)
			time.Sleep(10 * time.Second)
			before := m.see()
			m.faults.set(fault{lost: true, hangs: true}, "patch nodes")
			tt.goes(m)
			time.Sleep(5 * time.Second)
			opened := m.openings()
			m.faults.set(fault{}, "patch nodes")
			m.source.say(a)
			time.Sleep(2 * time.Minute)
			after := m.see()
			if after.Spec.Unschedulable != before.Spec.Unschedulable || !maps.Equal(after.Labels, before.Labels) || len(after.Annotations) != 1 {
				t.Errorf("the node is %+v, want %+v", after, before)
			}
			if again := m.openings(); again > opened || m.said(string(CordonedAgain)) {
				t.Errorf("took pods again %d times, Events %v", again-opened, m.events)
			}
		}))
	}
}

// openings is how often the node began to take pods again.
func (m *machine) openings() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.opened)
}

func TestPreemptUnderANewIDKeepsItsDeadline(t *testing.T) {
	onMachine(t, time.Second, func(t *testing.T, m *machine) {
		m.faults.set(fault{hangs: true}, "get nodes", "patch nodes")
		m.start(t, 0, func(o *Options) {
			found := m.see()
			o.Found = &found
		})
		preempt := announced(notice.Preempt, "a", 4*time.Minute)
		m.source.say(preempt)
		time.Sleep(50 * time.Second)
		preempt.ID = "b"
		m.source.say(preempt)
		time.Sleep(11 * time.Second)
		if m.asked().IsZero() {
			t.Error("after a quarter of its time no pod was asked to leave")
		}
	})
}

// TestReplacedEventKeepsTheCordonBesideAnotherTool has the cordon of the next event be left to the other tool.
func TestReplacedEventKeepsTheCordonBesideAnotherTool(t *testing.T) {
	onMachine(t, time.Second, func(t *testing.T, m *machine) {
		m.start(t, 0, nil)
		m.source.say(announced(notice.Redeploy, "scheduled", time.Hour))
		time.Sleep(time.Minute)
		_, _ = m.change("", func(n *kubeapi.Node) {
			n.Spec.Taints = []kubeapi.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"}}
		})
		time.Sleep(time.Second)
		started := announced(notice.Redeploy, "started", 0)
		started.Status, started.NotBefore = notice.Started, time.Time{}
		m.source.say(started)
		time.Sleep(time.Minute)
		if n := m.see(); m.openings() > 0 || !n.Spec.Unschedulable || len(n.Annotations) != 1 {
			t.Errorf("took pods again %d times; the node is %+v", m.openings(), n)
		}
		m.source.say()
		time.Sleep(time.Minute)
		if !m.isRestored() {
			t.Errorf("afterwards the node is %+v", m.see())
		}
	})
}
