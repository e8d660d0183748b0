package agent

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// allowed counts approvals. It is safe for concurrent use.
type allowed struct {
	mu sync.Mutex
	at []time.Time
}

func (a *allowed) Approve(context.Context, ...string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = append(a.at, time.Now())
	return nil
}

func (a *allowed) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at)
}

func TestAPodThatComesToADrainedNodeLeavesBeforeTheMachineMayGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, approved := newMachine(newCluster(), "n", 10*time.Second), &allowed{}
		m.start(t, 0, func(o *Options) {
			o.Approver, o.Machine = approved, func(id string) (string, error) { return id, nil }
		})
		reboot := announced(notice.Reboot, "r", time.Hour)
		reboot.Resources = []string{"n", "peer"} // the peer is never drained, so that nothing may begin
		m.source.say(reboot)
		time.Sleep(30 * time.Second)
		if !m.empty() || phase(m) != Drained {
			t.Fatalf("empty: %t, phase %s; want a drained node", m.empty(), phase(m))
		}
		m.replace()
		m.tellPods()
		time.Sleep(5 * time.Second)
		if m.asked().IsZero() || phase(m) != Draining {
			t.Errorf("asked at %s, phase %s; want that the late pod is on its way", m.asked(), phase(m))
		}
		time.Sleep(20 * time.Second)
		if !m.empty() || phase(m) != Drained {
			t.Errorf("empty: %t, phase %s; want that the late pod is gone", m.empty(), phase(m))
		}
		reboot.Resources = []string{"n"} // the peer is spared
		m.source.say(reboot)
		time.Sleep(30 * time.Second)
		if approved.count() != 1 || phase(m) != Acknowledged {
			t.Fatalf("%d approvals, phase %s", approved.count(), phase(m))
		}
		m.replace() // and one more, that nobody has to wait for
		m.tellPods()
		time.Sleep(30 * time.Second)
		if !m.empty() || phase(m) != Acknowledged || approved.count() != 1 {
			t.Errorf("empty: %t, phase %s, %d approvals", m.empty(), phase(m), approved.count())
		}
		m.source.say()
		time.Sleep(time.Minute)
		if n := m.cluster.drains("n"); n != 0 {
			t.Errorf("%d drains follow the pods of a node that was given back", n)
		}
		m.crash()
	})
}

func TestAnAgentThatIsRestartedKeepsADrainedNodeEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newCluster(), "n", 10*time.Second)
		m.start(t, 0, nil)
		m.source.say(announced(notice.Preempt, "p", time.Hour))
		time.Sleep(30 * time.Second)
		m.crash()
		m.start(t, 0, nil)
		time.Sleep(30 * time.Second)
		if n := m.times(DrainDone); n != 1 {
			t.Errorf("the node was said to be drained %d times", n)
		}
		m.replace()
		m.tellPods()
		time.Sleep(30 * time.Second)
		if !m.empty() || m.times(DrainDone) != 2 {
			t.Errorf("empty: %t, said to be drained %d times", m.empty(), m.times(DrainDone))
		}
		m.crash()
	})
}

// phase is that of the machine's only notice.
func phase(m *machine) Phase {
	answer := make(chan Phase, 1)
	m.agent.wake <- func(context.Context) {
		for _, h := range m.agent.handled {
			answer <- h.Phase
			return
		}
		answer <- "none"
	}
	return <-answer
}

// times counts the Events of that reason.
func (m *machine) times(reason EventReason) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, e := range m.events {
		if e == string(reason) {
			n++
		}
	}
	return n
}
