package agent

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// replaceNode deletes the Node and registers another one under its name.
func (m *testNode) replaceNode() {
	_, _ = m.updateNode("", func(n *kubeapi.Node) {
		*n = kubeapi.Node{}
		n.Name, n.UID = m.name, "uid-2-"+m.name
	})
}

func TestReplacedNodeIsDrainedAgain(t *testing.T) {
	for _, last := range []Phase{Draining, Drained, Acknowledged} {
		t.Run(string(last), testNodeTest(20*time.Second, func(t *testing.T, m *testNode) {
			m.reachPhase(t, notice.Reboot, last)
			m.denyEvictions("")
			m.replaceNode()
			m.replacePod()
			m.notifyPodHandlers()
			time.Sleep(2 * time.Minute)
			want := Drained
			if last == Acknowledged {
				want = Acknowledged
			}
			if n := m.currentNode(); !m.isEmpty() || recordedPhase(m) != want || !n.Spec.Unschedulable || len(n.Annotations) != 1 {
				t.Errorf("empty: %t, phase %s, the node is %+v; want it %s", m.isEmpty(), recordedPhase(m), n, want)
			}
			m.source.setNotices()
			time.Sleep(time.Minute)
			if !m.isRestored() {
				t.Errorf("after its end the node is %+v", m.currentNode())
			}
		}))
	}
}

// The duration of a Freeze changes, so that it is ignored for a while.
func TestIgnoredNoticeRestoresNodeAndCanReturn(t *testing.T) {
	withTestNode(t, 20*time.Second, func(t *testing.T, m *testNode) {
		m.startAgent(t, 0, nil)
		long := newNotice(notice.Freeze, "e", time.Hour)
		short := long
		short.Duration = time.Second
		m.denyEvictions("web")
		m.source.setNotices(long)
		time.Sleep(10 * time.Second)
		m.source.setNotices(short)
		time.Sleep(10 * time.Second)
		if !m.isRestored() || m.hasEvent(string(NoticeOver)) || m.cluster.runningDrains("n") > 0 {
			t.Errorf("while it is ignored the node is %+v, Events %v, drains %d", m.currentNode(), m.eventReasons, m.cluster.runningDrains("n"))
		}
		m.denyEvictions("")
		m.source.setNotices(long)
		time.Sleep(time.Minute)
		if !m.isEmpty() || recordedPhase(m) != Drained {
			t.Errorf("handled again: empty %t, phase %s", m.isEmpty(), recordedPhase(m))
		}
		m.source.setNotices()
		time.Sleep(time.Minute)
		if !m.isRestored() || m.countEvents(NoticeOver) != 1 {
			t.Errorf("afterwards the node is %+v, Events %v", m.currentNode(), m.eventReasons)
		}
	})
}
