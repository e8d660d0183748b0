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

// fakeApprover records approvals. It is safe for concurrent use.
type fakeApprover struct {
	mu  sync.Mutex
	at  []time.Time
	ids []string
	// mustBeEmpty, if set, is the node that must be empty at every approval.
	mustBeEmpty *testNode
	early       []string // approvals while the node was not empty
}

func (a *fakeApprover) Approve(_ context.Context, ids ...string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at, a.ids = append(a.at, time.Now()), append(a.ids, ids...)
	if a.mustBeEmpty != nil && !a.mustBeEmpty.isEmpty() {
		a.early = append(a.early, ids...)
	}
	return nil
}

// configure makes an agent use this approver, with provider IDs as instance names.
func (a *fakeApprover) configure(o *Options) {
	o.Approver, o.InstanceName = a, func(id string) (string, error) { return id, nil }
}

func (a *fakeApprover) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at)
}

// The policy approves a user's reboot without a drain.
func TestRebootApprovalWaitsForDrainOfAnotherNotice(t *testing.T) {
	withTestNode(t, 20*time.Second, func(t *testing.T, m *testNode) {
		approved := &fakeApprover{mustBeEmpty: m}
		m.startAgent(t, 0, func(o *Options) {
			approved.configure(o)
			o.Policy.UserInitiatedByType = map[notice.Type]Action{notice.Reboot: Acknowledge}
		})
		terminate := newNotice(notice.Terminate, "t", time.Hour)
		terminate.Resources = []string{"n", "peer"} // the peer is never drained, so this notice cannot be approved
		m.source.setNotices(terminate)
		time.Sleep(5 * time.Second)
		if m.evictionTime().IsZero() {
			t.Fatal("no pod is being evicted")
		}
		reboot := newNotice(notice.Reboot, "r", time.Hour)
		reboot.Resources, reboot.UserInitiated = []string{"n"}, true
		m.source.setNotices(terminate, reboot)
		time.Sleep(time.Minute)
		m.crashAgent()
		if len(approved.early) > 0 || !slices.Equal(approved.ids, []string{"r"}) {
			t.Errorf("approved: %v, of these during an eviction: %v; want only the reboot, after the eviction", approved.ids, approved.early)
		}
	})
}

func TestLatePodIsEvictedBeforeApproval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, approved := newTestNode(newFakeCluster(), "n", 10*time.Second), &fakeApprover{}
		m.startAgent(t, 0, approved.configure)
		reboot := newNotice(notice.Reboot, "r", time.Hour)
		reboot.Resources = []string{"n", "peer"} // the peer is never drained, so the reboot cannot be approved
		m.source.setNotices(reboot)
		time.Sleep(30 * time.Second)
		if !m.isEmpty() || recordedPhase(m) != Drained {
			t.Fatalf("empty: %t, phase %s; want a drained node", m.isEmpty(), recordedPhase(m))
		}
		m.replacePod()
		m.notifyPodHandlers()
		time.Sleep(5 * time.Second)
		if m.evictionTime().IsZero() || recordedPhase(m) != Draining {
			t.Errorf("evicted at %s, phase %s; want an eviction of the late pod", m.evictionTime(), recordedPhase(m))
		}
		time.Sleep(20 * time.Second)
		if !m.isEmpty() || recordedPhase(m) != Drained {
			t.Errorf("empty: %t, phase %s; want no late pod", m.isEmpty(), recordedPhase(m))
		}
		if n := m.countEvents(DrainBegun); n != 1 {
			t.Errorf("%d Events Draining; want 1, and none for the late pod", n)
		}
		reboot.Resources = []string{"n"} // the event no longer names the peer
		m.source.setNotices(reboot)
		time.Sleep(30 * time.Second)
		if approved.count() != 1 || recordedPhase(m) != Acknowledged {
			t.Fatalf("%d approvals, phase %s", approved.count(), recordedPhase(m))
		}
		m.replacePod() // after the approval, which does not wait for this pod
		m.notifyPodHandlers()
		time.Sleep(30 * time.Second)
		if !m.isEmpty() || recordedPhase(m) != Acknowledged || approved.count() != 1 {
			t.Errorf("empty: %t, phase %s, %d approvals", m.isEmpty(), recordedPhase(m), approved.count())
		}
		m.source.setNotices()
		time.Sleep(time.Minute)
		if n := m.cluster.runningDrains("n"); n != 0 {
			t.Errorf("%d drains watch the pods of a restored node", n)
		}
		m.crashAgent()
	})
}

func TestRestartedAgentKeepsADrainedNodeEmpty(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		m.startAgent(t, 0, nil)
		m.source.setNotices(newNotice(notice.Preempt, "p", time.Hour))
		time.Sleep(30 * time.Second)
		m.crashAgent()
		m.startAgent(t, 0, nil)
		time.Sleep(30 * time.Second)
		if n := m.countEvents(DrainDone); n != 1 {
			t.Errorf("%d Events Drained, want 1", n)
		}
		m.replacePod()
		m.notifyPodHandlers()
		time.Sleep(30 * time.Second)
		if !m.isEmpty() || m.countEvents(DrainDone) != 2 {
			t.Errorf("empty: %t, %d Events Drained, want 2", m.isEmpty(), m.countEvents(DrainDone))
		}
	})
}

// The other instance of the event is drained during the outage.
func TestPodFromAgentOutageIsEvictedBeforeApproval(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		approved := &fakeApprover{mustBeEmpty: m}
		m.startAgent(t, 0, approved.configure)
		reboot := newNotice(notice.Reboot, "r", time.Hour)
		reboot.Resources = []string{"n", "peer"}
		m.source.setNotices(reboot)
		time.Sleep(30 * time.Second)
		m.crashAgent()
		m.replacePod()
		m.addDrainedPeer("peer")
		m.startAgent(t, 0, approved.configure)
		time.Sleep(5 * time.Second)
		if got := m.currentNode().Labels[cordon.LabelKey("azure-r")]; m.evictionTime().IsZero() || got != string(cordon.Draining) {
			t.Errorf("evicted at %s, label %q; want an eviction and the label draining", m.evictionTime(), got)
		}
		time.Sleep(25 * time.Second)
		last := recordedPhase(m)
		m.crashAgent()
		if len(approved.early) > 0 || approved.count() != 1 || last != Acknowledged {
			t.Errorf("%d approvals, %v of them while the pod was there, phase %s", approved.count(), approved.early, last)
		}
	})
}

func TestRestartedAgentApprovesForEmptyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, approved := newTestNode(newFakeCluster(), "n", 10*time.Second), &fakeApprover{}
		m.startAgent(t, 0, approved.configure)
		reboot := newNotice(notice.Reboot, "r", time.Hour)
		reboot.Resources = []string{"n", "peer"}
		m.source.setNotices(reboot)
		time.Sleep(30 * time.Second)
		m.crashAgent()
		m.addDrainedPeer("peer")
		m.startAgent(t, 0, approved.configure)
		time.Sleep(time.Second)
		if approved.count() != 1 || recordedPhase(m) != Acknowledged {
			t.Errorf("%d approvals, phase %s", approved.count(), recordedPhase(m))
		}
		m.crashAgent()
	})
}

func TestSecondDrainDelaysFirstApproval(t *testing.T) {
	withTestNode(t, 20*time.Second, func(t *testing.T, m *testNode) {
		m.pod.OwnerReferences = nil // a Reboot keeps unmanaged pods
		approved := &fakeApprover{mustBeEmpty: m}
		m.startAgent(t, 0, approved.configure)
		reboot := newNotice(notice.Reboot, "r", time.Hour)
		reboot.Resources = []string{"n", "peer"}
		m.source.setNotices(reboot)
		time.Sleep(30 * time.Second)
		if m.isEmpty() || recordedPhase(m) != Drained {
			t.Fatalf("empty: %t, phase %s; want it drained except for the unmanaged pod", m.isEmpty(), recordedPhase(m))
		}
		terminate := newNotice(notice.Terminate, "t", 2*time.Hour)
		terminate.Resources = []string{"n"}
		time.Sleep(time.Second) // so that the notice is handled before the peer is drained
		m.addDrainedPeer("peer")
		m.source.setNotices(reboot, terminate)
		time.Sleep(10 * time.Second)
		if got := m.currentNode().Labels[cordon.LabelKey("azure-r")]; m.evictionTime().IsZero() || got != string(cordon.Draining) {
			t.Errorf("evicted at %s, label of the first notice %q; want an eviction and the label draining", m.evictionTime(), got)
		}
		time.Sleep(20 * time.Second)
		m.crashAgent()
		if len(approved.early) > 0 || approved.count() != 2 {
			t.Errorf("approved: %v, of these before the pod left: %v; want both, and none", approved.ids, approved.early)
		}
	})
}

// A pod arrives, or the agent restarts, after the time limit of the condition's drain.
func TestNodeDrainedForAConditionStaysEmpty(t *testing.T) {
	for name, restarted := range map[string]bool{"after a restart": true, "without a restart": false} {
		t.Run(name, testNodeTest(10*time.Second, func(t *testing.T, m *testNode) {
			m.source.name = "condition"
			start := func() {
				m.startAgent(t, 0, func(o *Options) {
					o.Policy.ActionByCondition = map[string]Action{"X": Drain}
					o.ConditionDrainTimeout = 30 * time.Minute
				})
			}
			start()
			m.source.setNotices(newNotice(notice.Condition, "X", 0))
			time.Sleep(31 * time.Minute)
			if restarted {
				m.crashAgent()
				start()
				time.Sleep(10 * time.Second)
			}
			m.replacePod()
			m.notifyPodHandlers()
			time.Sleep(30 * time.Second)
			if !m.isEmpty() || recordedPhase(m) != Drained || m.hasEvent(string(DrainFailed)) {
				t.Errorf("empty: %t, phase %s, Events %v", m.isEmpty(), recordedPhase(m), m.eventReasons)
			}
			m.denyEvictions("web") // its time limit starts again
			m.replacePod()
			m.notifyPodHandlers()
			time.Sleep(29 * time.Minute)
			if recordedPhase(m) != Draining {
				t.Errorf("phase %s within the time limit of the last pod", recordedPhase(m))
			}
			time.Sleep(2 * time.Minute)
			if recordedPhase(m) != NotDrained || m.countEvents(DrainFailed) != 1 {
				t.Errorf("phase %s after its time limit, Events %v", recordedPhase(m), m.eventReasons)
			}
		}))
	}
}

// recordedPhase returns the recorded phase of the node's only notice.
func recordedPhase(m *testNode) Phase {
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

func (m *testNode) countEvents(reason EventReason) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, e := range m.eventReasons {
		if e == string(reason) {
			n++
		}
	}
	return n
}
