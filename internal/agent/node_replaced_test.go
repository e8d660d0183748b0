package agent

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// register has the Node be deleted and another one be registered under its name.
func (m *machine) register() {
	_, _ = m.change("", func(n *kubeapi.Node) {
		*n = kubeapi.Node{}
		n.Name, n.UID = m.name, "uid-2-"+m.name
	})
}

func TestANodeThatIsReplacedIsDrainedAnew(t *testing.T) {
	for _, last := range []Phase{Draining, Drained, Acknowledged} {
		t.Run(string(last), machineTest(20*time.Second, func(t *testing.T, m *machine) {
			m.reach(t, notice.Reboot, last)
			m.denied("")
			m.register()
			m.replace()
			m.tellPods()
			time.Sleep(2 * time.Minute)
			want := Drained
			if last == Acknowledged {
				want = Acknowledged
			}
			if n := m.see(); !m.empty() || phase(m) != want || !n.Spec.Unschedulable || len(n.Annotations) != 1 {
				t.Errorf("empty: %t, phase %s, the node is %+v; want it %s", m.empty(), phase(m), n, want)
			}
			m.source.say()
			time.Sleep(time.Minute)
			if !m.isRestored() {
				t.Errorf("after its end the node is %+v", m.see())
			}
		}))
	}
}

// TestNoticeIgnoredLaterIsReleasedAndHandledAgain has the duration of a Freeze change.
func TestNoticeIgnoredLaterIsReleasedAndHandledAgain(t *testing.T) {
	onMachine(t, 20*time.Second, func(t *testing.T, m *machine) {
		m.start(t, 0, nil)
		long := announced(notice.Freeze, "e", time.Hour)
		short := long
		short.Duration = time.Second
		m.denied("web")
		m.source.say(long)
		time.Sleep(10 * time.Second)
		m.source.say(short)
		time.Sleep(10 * time.Second)
		if !m.isRestored() || m.said(string(NoticeOver)) || m.cluster.drains("n") > 0 {
			t.Errorf("while it is ignored the node is %+v, Events %v, drains %d", m.see(), m.events, m.cluster.drains("n"))
		}
		m.denied("")
		m.source.say(long)
		time.Sleep(time.Minute)
		if !m.empty() || phase(m) != Drained {
			t.Errorf("taken up again: empty %t, phase %s", m.empty(), phase(m))
		}
		m.source.say()
		time.Sleep(time.Minute)
		if !m.isRestored() || m.times(NoticeOver) != 1 {
			t.Errorf("afterwards the node is %+v, Events %v", m.see(), m.events)
		}
	})
}
