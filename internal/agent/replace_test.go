package agent

import (
	"maps"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// Azure ends an event and announces at the same time that another event, with a new ID, has started
// (https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events#event-properties).
func TestNodeStaysCordonedWhenOneEventReplacesAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		fault

		of []string
	}{
		"no fault":               {},
		"the API server is slow": {fault{delay: 3 * time.Second}, nodeRequests},
		"answers are lost":       {fault{responseLost: true}, nodeRequests},
		"requests hang":          {hanging, nodeRequests},
		"its claim fails":        {fault{code: 503, once: true}, []string{"patch nodes"}},
	} {
		t.Run(name, testNodeTest(time.Second, func(t *testing.T, m *testNode) {
			m.startAgent(t, 0, nil)
			m.source.setNotices(newNotice(notice.Redeploy, "scheduled", time.Hour))
			time.Sleep(time.Minute)
			if !m.isEmpty() {
				t.Fatal("not drained")
			}
			m.faults.set(tt.fault, tt.of...)
			started := newNotice(notice.Redeploy, "started", 0)
			started.Status, started.NotBefore = notice.Started, time.Time{}
			m.source.setNotices(started)
			time.Sleep(30 * time.Second)
			if m.doubleClaims > 0 {
				t.Error("the node had both claims, want one patch that replaces the first")
			}
			m.faults.set(fault{}, nodeRequests...)
			time.Sleep(time.Minute)
			if n := m.currentNode(); !n.Spec.Unschedulable || len(n.Annotations) != 1 || len(m.uncordonedAt) > 0 || m.countEvents(NoticeOver) != 1 {
				t.Errorf("uncordoned at %v; the node is %+v, Events %v", m.uncordonedAt, n, m.eventReasons)
			}
			m.source.setNotices()
			time.Sleep(time.Minute)
			if !m.isRestored() {
				t.Errorf("afterwards the node is %+v", m.currentNode())
			}
		}))
	}
}

// The notice comes back while it is unknown whether its claim is on the node.
func TestClaimIsWrittenAgainAfterUnansweredRemoval(t *testing.T) {
	redeploy := func(id string) notice.Notice { return newNotice(notice.Redeploy, id, time.Hour) }
	for name, tt := range map[string]struct {
		action Action
		goes   func(*testNode) // ends the notice "a"
	}{
		"an acknowledged notice ends": {Acknowledge, func(m *testNode) { m.source.setNotices() }},
		"a cordoned notice ends":      {Cordon, func(m *testNode) { m.source.setNotices() }},
		"another notice replaces it":  {Cordon, func(m *testNode) { m.source.setNotices(redeploy("b")) }},
	} {
		t.Run(name, testNodeTest(time.Second, func(t *testing.T, m *testNode) {
			m.startAgent(t, 0, func(o *Options) { o.Policy.ActionByType[notice.Redeploy] = tt.action })
			a := redeploy("a")
			m.source.setNotices(a)
			time.Sleep(10 * time.Second)
			before := m.currentNode()
			m.faults.set(fault{responseLost: true, hangs: true}, "patch nodes")
			tt.goes(m)
			time.Sleep(5 * time.Second)
			opened := m.uncordonCount()
			m.faults.set(fault{}, "patch nodes")
			m.source.setNotices(a)
			time.Sleep(2 * time.Minute)
			after := m.currentNode()
			if after.Spec.Unschedulable != before.Spec.Unschedulable || !maps.Equal(after.Labels, before.Labels) || len(after.Annotations) != 1 {
				t.Errorf("the node is %+v, want %+v", after, before)
			}
			if again := m.uncordonCount(); again > opened || m.hasEvent(string(CordonedAgain)) {
				t.Errorf("uncordoned %d times, Events %v", again-opened, m.eventReasons)
			}
		}))
	}
}

// uncordonCount returns how often the node became schedulable again.
func (m *testNode) uncordonCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.uncordonedAt)
}

func TestPreemptUnderANewIDKeepsItsDeadline(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		m.faults.set(fault{hangs: true}, "get nodes", "patch nodes")
		m.startAgent(t, 0, func(o *Options) {
			found := m.currentNode()
			o.InitialNode = &found
		})
		preempt := newNotice(notice.Preempt, "a", 4*time.Minute)
		m.source.setNotices(preempt)
		time.Sleep(50 * time.Second)
		preempt.ID = "b"
		m.source.setNotices(preempt)
		time.Sleep(11 * time.Second)
		if m.evictionTime().IsZero() {
			t.Error("no pod was evicted after a quarter of its time")
		}
	})
}

// The cordon of the second event is left to the other tool.
func TestReplacedEventKeepsTheCordonBesideAnotherTool(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		m.startAgent(t, 0, nil)
		m.source.setNotices(newNotice(notice.Redeploy, "scheduled", time.Hour))
		time.Sleep(time.Minute)
		_, _ = m.updateNode("", func(n *kubeapi.Node) {
			n.Spec.Taints = []kubeapi.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"}}
		})
		time.Sleep(time.Second)
		started := newNotice(notice.Redeploy, "started", 0)
		started.Status, started.NotBefore = notice.Started, time.Time{}
		m.source.setNotices(started)
		time.Sleep(time.Minute)
		if n := m.currentNode(); m.uncordonCount() > 0 || !n.Spec.Unschedulable || len(n.Annotations) != 1 {
			t.Errorf("uncordoned %d times; the node is %+v", m.uncordonCount(), n)
		}
		m.source.setNotices()
		time.Sleep(time.Minute)
		if !m.isRestored() {
			t.Errorf("afterwards the node is %+v", m.currentNode())
		}
	})
}
