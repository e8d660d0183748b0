package agent

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
)

// allowed counts approvals. It is safe for concurrent use.
type allowed struct {
	mu  sync.Mutex
	at  []time.Time
	ids []string
	// watched, if set, is the machine that must be empty whenever something is approved.
	watched *machine
	early   []string // the approvals that came when it was not
}

func (a *allowed) Approve(_ context.Context, ids ...string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at, a.ids = append(a.at, time.Now()), append(a.ids, ids...)
	if a.watched != nil && !a.watched.empty() {
		a.early = append(a.early, ids...)
	}
	return nil
}

// approves has an agent approve by a, and know the machines of other nodes by their provider ID.
func (a *allowed) approves(o *Options) {
	o.Approver, o.Machine = a, func(id string) (string, error) { return id, nil }
}

func (a *allowed) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at)
}

// TestRebootWaitsForPodsLeavingForAnotherNotice has a policy that drains nothing for a user's reboot.
func TestRebootWaitsForPodsLeavingForAnotherNotice(t *testing.T) {
	onMachine(t, 20*time.Second, func(t *testing.T, m *machine) {
		approved := &allowed{watched: m}
		m.start(t, 0, func(o *Options) {
			approved.approves(o)
			o.Impact.UserInitiated = map[notice.Type]Action{notice.Reboot: Acknowledge}
		})
		terminate := announced(notice.Terminate, "t", time.Hour)
		terminate.Resources = []string{"n", "peer"} // the peer is never drained, so that this one may not begin
		m.source.say(terminate)
		time.Sleep(5 * time.Second)
		if m.asked().IsZero() {
			t.Fatal("no pod is on its way")
		}
		reboot := announced(notice.Reboot, "r", time.Hour)
		reboot.Resources, reboot.UserInitiated = []string{"n"}, true
		m.source.say(terminate, reboot)
		time.Sleep(time.Minute)
		m.crash()
		if len(approved.early) > 0 || !slices.Equal(approved.ids, []string{"r"}) {
			t.Errorf("approved: %v, of these while a pod was on its way: %v; want the reboot, afterwards", approved.ids, approved.early)
		}
	})
}

func TestLatePodLeavesBeforeTheAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, approved := newMachine(newCluster(), "n", 10*time.Second), &allowed{}
		m.start(t, 0, approved.approves)
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
		if n := m.times(DrainBegun); n != 1 {
			t.Errorf("%d Events say that the node is drained; want 1, and none for the late pod", n)
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

func TestRestartedAgentKeepsADrainedNodeEmpty(t *testing.T) {
	onMachine(t, 10*time.Second, func(t *testing.T, m *machine) {
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
	})
}

// TestPodFromAnAgentOutageLeavesBeforeAcknowledgement has the other machine of the event be drained
// meanwhile.
func TestPodFromAnAgentOutageLeavesBeforeAcknowledgement(t *testing.T) {
	onMachine(t, 10*time.Second, func(t *testing.T, m *machine) {
		approved := &allowed{watched: m}
		m.start(t, 0, approved.approves)
		reboot := announced(notice.Reboot, "r", time.Hour)
		reboot.Resources = []string{"n", "peer"}
		m.source.say(reboot)
		time.Sleep(30 * time.Second)
		m.crash()
		m.replace()
		m.peerDrained("peer")
		m.start(t, 0, approved.approves)
		time.Sleep(5 * time.Second)
		if got := m.see().Labels[cordon.LabelKey("azure-r")]; m.asked().IsZero() || got != string(cordon.Draining) {
			t.Errorf("asked at %s, labelled %q; want the pod on its way and the other machine told", m.asked(), got)
		}
		time.Sleep(25 * time.Second)
		last := phase(m)
		m.crash()
		if len(approved.early) > 0 || approved.count() != 1 || last != Acknowledged {
			t.Errorf("%d approvals, %v of them while the pod was there, phase %s", approved.count(), approved.early, last)
		}
	})
}

func TestRestartedAgentAcknowledgesForAnEmptyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, approved := newMachine(newCluster(), "n", 10*time.Second), &allowed{}
		m.start(t, 0, approved.approves)
		reboot := announced(notice.Reboot, "r", time.Hour)
		reboot.Resources = []string{"n", "peer"}
		m.source.say(reboot)
		time.Sleep(30 * time.Second)
		m.crash()
		m.peerDrained("peer")
		m.start(t, 0, approved.approves)
		time.Sleep(time.Second)
		if approved.count() != 1 || phase(m) != Acknowledged {
			t.Errorf("%d approvals, phase %s", approved.count(), phase(m))
		}
		m.crash()
	})
}

func TestNodeDrainedAgainDelaysTheFirstAcknowledgement(t *testing.T) {
	onMachine(t, 20*time.Second, func(t *testing.T, m *machine) {
		m.pod.OwnerReferences = nil // it stays for a Reboot
		approved := &allowed{watched: m}
		m.start(t, 0, approved.approves)
		reboot := announced(notice.Reboot, "r", time.Hour)
		reboot.Resources = []string{"n", "peer"}
		m.source.say(reboot)
		time.Sleep(30 * time.Second)
		if m.empty() || phase(m) != Drained {
			t.Fatalf("empty: %t, phase %s; want it drained but for the pod that stays", m.empty(), phase(m))
		}
		terminate := announced(notice.Terminate, "t", 2*time.Hour)
		terminate.Resources = []string{"n"}
		time.Sleep(time.Second) // so that the peer is not asked for before the notice is there
		m.peerDrained("peer")
		m.source.say(reboot, terminate)
		time.Sleep(10 * time.Second)
		if got := m.see().Labels[cordon.LabelKey("azure-r")]; m.asked().IsZero() || got != string(cordon.Draining) {
			t.Errorf("asked at %s, labelled %q for the first; want the pod on its way and the other machine told", m.asked(), got)
		}
		time.Sleep(20 * time.Second)
		m.crash()
		if len(approved.early) > 0 || approved.count() != 2 {
			t.Errorf("approved: %v, of these while the pod was there: %v; want both, and none", approved.ids, approved.early)
		}
	})
}

// TestNodeDrainedForAConditionStaysEmpty has a pod come, or the agent be restarted, when the time
// that a condition has for its drain is over.
func TestNodeDrainedForAConditionStaysEmpty(t *testing.T) {
	for name, restarted := range map[string]bool{"after a restart": true, "by the same agent": false} {
		t.Run(name, machineTest(10*time.Second, func(t *testing.T, m *machine) {
			m.source.name = "condition"
			start := func() {
				m.start(t, 0, func(o *Options) {
					o.Impact.Conditions = map[string]Action{"X": Drain}
					o.ConditionDrain = 30 * time.Minute
				})
			}
			start()
			m.source.say(announced(notice.Condition, "X", 0))
			time.Sleep(31 * time.Minute)
			if restarted {
				m.crash()
				start()
				time.Sleep(10 * time.Second)
			}
			m.replace()
			m.tellPods()
			time.Sleep(30 * time.Second)
			if !m.empty() || phase(m) != Drained || m.said(string(DrainFailed)) {
				t.Errorf("empty: %t, phase %s, Events %v", m.empty(), phase(m), m.events)
			}
			m.denied("web") // and its time is counted anew
			m.replace()
			m.tellPods()
			time.Sleep(29 * time.Minute)
			if phase(m) != Draining {
				t.Errorf("phase %s within the time of the pod that came last", phase(m))
			}
			time.Sleep(2 * time.Minute)
			if phase(m) != NotDrained || m.times(DrainFailed) != 1 {
				t.Errorf("phase %s when its time is over, Events %v", phase(m), m.events)
			}
		}))
	}
}

// phase is the recorded one of the machine's only notice.
func phase(m *machine) Phase {
	answer := make(chan Phase, 1)
	m.agent.updates <- func(context.Context) {
		for _, h := range m.agent.notices {
			answer <- h.recordedPhase
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
