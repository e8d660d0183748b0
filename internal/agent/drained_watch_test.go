package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
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
		check.Is(t, 1, m.countEvents(DrainBegun))
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
		check.Is(t, 0, m.cluster.runningDrains("n"))
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
		check.Is(t, 1, m.countEvents(DrainDone))
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
			check.Is(t, Draining, recordedPhase(m))
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

// An approval covers every instance of an event. So an instance that is not known to be drained blocks the approval,
// for any reason (I7).
func TestI7OnlyInstancesKnownToBeDrainedCount(t *testing.T) {
	machine := func(id string) (string, error) {
		if id == "" {
			return "", errors.New("no provider ID")
		}
		return id, nil
	}
	node := func(id string) kubeapi.Node { return kubeapi.Node{Spec: kubeapi.NodeSpec{ProviderID: id}} }
	for name, tt := range map[string]struct {
		resources []string
		drained   []kubeapi.Node
		left      []string
	}{
		"alone":                                {[]string{"pool_1"}, nil, nil},
		"alone, in another letter case":        {[]string{"POOL_1"}, nil, nil},
		"another is not drained":               {[]string{"pool_1", "pool_2"}, nil, []string{"pool_2"}},
		"another is drained":                   {[]string{"pool_1", "pool_2"}, []kubeapi.Node{node("Pool_2")}, nil},
		"an instance without a Node":           {[]string{"pool_1", "stranger"}, []kubeapi.Node{node("pool_2")}, []string{"stranger"}},
		"a drained node without a provider ID": {[]string{"pool_1", "pool_2"}, []kubeapi.Node{node("")}, []string{"pool_2"}},
		"_1 drained is not _10 drained":        {[]string{"pool_1", "pool_10"}, []kubeapi.Node{node("pool_1")}, []string{"pool_10"}},
		"one of two others":                    {[]string{"pool_1", "pool_2", "pool_3"}, []kubeapi.Node{node("pool_3")}, []string{"pool_2"}},
	} {
		t.Run(name, func(t *testing.T) {
			check.Equal(t, tt.left, listUndrainedInstances(tt.resources, "pool_1", tt.drained, machine))
		})
	}
}

// slowEventAPI writes each Event after a delay.
type slowEventAPI struct {
	API

	delay time.Duration
}

func (s slowEventAPI) CreateEvent(ctx context.Context, _ kubeapi.Event) error {
	select {
	case <-time.After(s.delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// approvalRecorder records the times of the approvals.
type approvalRecorder struct{ at []time.Time }

func (a *approvalRecorder) Approve(context.Context, ...string) error {
	a.at = append(a.at, time.Now())
	return nil
}

func TestI2EventsAreWrittenBeforeApproval(t *testing.T) {
	for _, c := range []struct {
		name        string
		takes, want time.Duration
	}{
		{"at once if all Events are written", 0, 0},
		{"as soon as the Event is written", 300 * time.Millisecond, 300 * time.Millisecond},
		{"without the Event after a timeout", time.Minute, flushTimeout},
	} {
		t.Run(c.name, virtual.InVirtualTime(func(t *testing.T) {
			told := timeToApproval(t, c.takes)
			check.Not(t, told < c.want || told > c.want+2*shortPollInterval, "approved after %s, want %s", told, c.want)
		}))
	}
}

// timeToApproval queues an Event, approves the notice of a drained node, and returns how long that took.
func timeToApproval(t *testing.T, eventTakes time.Duration) time.Duration {
	t.Helper()
	var told approvalRecorder
	a := New(Options{
		Node: "node", ResourceName: "vmss_0", API: slowEventAPI{delay: eventTakes}, Approver: &told, DryRun: true,
		Metrics: NewMetrics(observe.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go a.events.run(ctx)
	h := &noticeState{
		Notice: notice.Notice{ID: "id", Type: notice.Preempt, Status: notice.Scheduled, Resources: []string{"vmss_0"}},
		Phase:  Drained,
	}
	a.events.queueEvent(newNormalEvent(DrainDone, "message"))
	synctest.Wait()
	began := time.Now()
	for len(told.at) == 0 {
		wait, err := a.approveWhenAllDrained(ctx, h, time.Now())
		must.NoError(t, err)
		if len(told.at) == 0 {
			time.Sleep(wait)
		}
	}
	return told.at[0].Sub(began)
}

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
			check.Not(t, m.doubleClaims > 0, "the node had both claims, want one patch that replaces the first")
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
		check.Not(t, m.evictionTime().IsZero(), "no pod was evicted after a quarter of its time")
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
