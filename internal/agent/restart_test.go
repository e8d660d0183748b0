package agent

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// uncordon uncordons the node, as a user would.
func (m *testNode) uncordon() {
	_, _ = m.updateNode("", func(n *kubeapi.Node) { n.Spec.Unschedulable = false })
}

// isRestored reports that the node is schedulable and has nothing from the agent.
func (m *testNode) isRestored() bool {
	n := m.currentNode()
	return !n.Spec.Unschedulable && len(n.Annotations)+len(n.Labels)+len(n.Status.Conditions) == 0
}

// reachPhase brings a notice to a phase. It returns false if notices of that type do not have the phase.
func (m *testNode) reachPhase(t *testing.T, kind notice.Type, want Phase) bool {
	t.Helper()
	n := newNotice(kind, "e", time.Hour)
	n.Resources = []string{m.name}
	approved := &fakeApprover{}
	m.startAgent(t, 0, func(o *Options) {
		drainForConditions(o)
		if want == Acknowledged {
			approved.configure(o)
		}
		if want == Cordoned {
			o.Policy.ActionByType[kind], o.Policy.ActionByCondition["e"] = Cordon, Cordon
		}
	})
	voluntary := kind == notice.Freeze || !kind.HasDeadline()
	switch want {
	case Draining:
		m.denyEvictions("web")
	case NotDrained:
		m.denyEvictions("web")
		if !voluntary {
			return false
		}
	case Acknowledged:
		if !kind.HasDeadline() {
			return false
		}
	}
	m.source.setNotices(n)
	switch want {
	case Draining, Cordoned:
		time.Sleep(time.Minute)
	case NotDrained:
		time.Sleep(61 * time.Minute)
	default:
		time.Sleep(2 * time.Minute)
	}
	if got := recordedPhase(m); got != want {
		t.Fatalf("phase %q, want %q", got, want)
	}
	return true
}

// drainForConditions configures a drain of one hour for condition e and for a Rebalance.
func drainForConditions(o *Options) {
	o.Policy.ActionByType[notice.Rebalance] = Drain
	o.Policy.ActionByCondition = map[string]Action{"e": Drain}
	o.ConditionDrainTimeout = time.Hour
}

func TestI8NoticeEndedDuringAnOutageEvictsNoPod(t *testing.T) {
	for _, kind := range notice.Types() {
		for _, last := range []Phase{Cordoned, Draining, Drained, NotDrained, Acknowledged} {
			for name, silent := range map[string]time.Duration{"answers at once": 0, "answers late": 20 * time.Second} {
				t.Run(string(kind)+" "+string(last)+", the source "+name, testNodeTest(30*time.Second, func(t *testing.T, m *testNode) {
					if kind == notice.Condition {
						m.source.name = "condition"
					}
					reached := m.reachPhase(t, kind, last)
					m.crashAgent()
					if !reached {
						return // a notice of this type never has that phase
					}
					m.source.setNotices()
					m.source.startDelay = silent
					time.Sleep(3 * time.Hour)
					m.uncordon()
					m.denyEvictions("web")
					m.replacePod()
					m.startAgent(t, 0, drainForConditions)
					for end := time.Now().Add(silent); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
						if m.currentNode().Spec.Unschedulable {
							t.Fatal("cordoned again for a notice that has ended")
						}
					}
					time.Sleep(time.Minute)
					if !m.evictionTime().IsZero() || !m.isRestored() {
						t.Errorf("a pod was evicted at %s; the node is %+v", m.evictionTime(), m.currentNode())
					}
				}))
			}
		}
	}
}

func TestRecordHasTheLatestEndOfTheWindow(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		m.startAgent(t, 0, nil)
		n := newNotice(notice.Redeploy, "e", time.Hour)
		n.Resources = []string{m.name}
		for _, length := range []time.Duration{2 * time.Hour, 4 * time.Hour} {
			n.WindowEnd = n.NotBefore.Add(length)
			m.source.setNotices(n)
			time.Sleep(time.Minute)
			node := m.currentNode()
			records, _ := cordon.ListRecords(&node)
			check.Len(t, 1, records)
			var h noticeState
			must.NoError(t, json.Unmarshal(records[0].State, &h))
			check.Equal(t, n.WindowEnd.UTC(), h.Notice.WindowEnd.UTC())
		}
		check.Is(t, 0, m.countEvents(NoticeChanged))
	})
}

// runSilentAndPartial runs a test with a source that is silent after a start, and with one that reads only a part of its
// notices.
func runSilentAndPartial(t *testing.T, name string, test func(t *testing.T, m *testNode)) {
	for suffix, isPartial := range map[string]bool{"": false, ", partly read": true} {
		t.Run(name+suffix, testNodeTest(5*time.Second, func(t *testing.T, m *testNode) {
			m.source.isPartial = isPartial
			test(t, m)
		}))
	}
}

// leftRequests is an API with the EvictionRequests of a crashed drain. Only their deletion is expected.
type leftRequests struct {
	drain.EvictionRequestAPI

	names     []string
	selectors []string // of the lists
}

func (l *leftRequests) ListEvictionRequests(_ context.Context, selector string) (all []kubeapi.EvictionRequest, err error) {
	l.selectors = append(l.selectors, selector)
	for _, name := range l.names {
		all = append(all, kubeapi.EvictionRequest{ObjectMeta: kubeapi.ObjectMeta{Name: name}})
	}
	return all, nil
}

func (l *leftRequests) DeleteEvictionRequest(_ context.Context, _, name string) error {
	l.names = slices.DeleteFunc(l.names, func(n string) bool { return n == name })
	return nil
}

// WatchEvictionRequests gets no answer, so that a drain that withdraws requests lists them.
func (*leftRequests) WatchEvictionRequests(ctx context.Context, _ string, _ kubeapi.Handler[kubeapi.EvictionRequest]) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestAgentsOfTheTwoModesShareNoEvictionRequests(t *testing.T) {
	var left leftRequests
	for _, forQueue := range []bool{false, true} {
		a := New(Options{Node: "n", ForAWSQueue: forQueue, EvictionRequests: &left})
		a.mayHaveLeftRequests = true
		a.deleteLeftRequestsOnce(t.Context())
	}
	if len(left.selectors) != 2 || left.selectors[0] == left.selectors[1] {
		t.Errorf("lists %q", left.selectors)
	}
}

func TestStoppedAgentLeavesEvictionRequestsToTheNext(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		m.denyEvictions("web")
		left := &leftRequests{names: []string{"slipway-1", "slipway-2"}}
		start := func() { m.startAgent(t, 0, func(o *Options) { o.EvictionRequests = left }) }
		m.reachPhase(t, notice.Redeploy, Draining)
		m.crashAgent()
		start()
		time.Sleep(10 * time.Second)
		m.crashAgent()
		synctest.Wait()
		check.Len(t, 2, left.names)
		start()
		time.Sleep(10 * time.Second)
		m.source.setNotices()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		check.Len(t, 0, left.names)
	})
}

func TestWaitingDrainLeavesNoEvictionRequests(t *testing.T) {
	for _, waitsFor := range []string{"another tool", "another tool, with drain slots", "a drain slot"} {
		t.Run(waitsFor, testNodeTest(30*time.Second, func(t *testing.T, m *testNode) {
			m.reachPhase(t, notice.Redeploy, Draining)
			m.crashAgent()
			limit := 0
			if waitsFor != "another tool" {
				limit = 1
			}
			if waitsFor == "a drain slot" {
				other := newTestNode(m.cluster, "other", time.Hour)
				other.startAgent(t, limit, nil)
				defer other.crashAgent()
				other.source.setNotices(newNotice(notice.Reboot, "b", 10*time.Hour))
				time.Sleep(10 * time.Second)
			} else {
				_, err := m.updateNode("", func(n *kubeapi.Node) {
					n.Spec.Taints = []kubeapi.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"}}
				})
				check.NoError(t, err)
			}
			left := &leftRequests{names: []string{"slipway-1", "slipway-2"}}
			m.startAgent(t, limit, func(o *Options) { o.EvictionRequests = left })
			time.Sleep(20 * time.Second)
			synctest.Wait()
			check.Len(t, 0, left.names)
		}))
	}
}

func TestNoticeEndedDuringOutageDeletesEvictionRequests(t *testing.T) {
	for _, last := range []Phase{Cordoned, Draining} {
		t.Run(string(last), testNodeTest(30*time.Second, func(t *testing.T, m *testNode) {
			m.reachPhase(t, notice.Freeze, last)
			m.crashAgent()
			m.source.setNotices()
			left := &leftRequests{names: []string{"slipway-1", "slipway-2"}}
			m.startAgent(t, 0, func(o *Options) { o.EvictionRequests = left })
			time.Sleep(time.Minute)
			check.Is(t, true, m.isRestored())
			want := 0
			if last == Cordoned { // no drain had started, so nothing is asked
				want = 2
			}
			check.Len(t, want, left.names)
		}))
	}
}

// The metadata service does not answer until the instance is gone.
func TestRecordedPreemptIsEnoughUntilItsDeadline(t *testing.T) {
	for _, tt := range []struct {
		kind notice.Type
		away time.Duration
		asks bool
	}{
		{notice.Preempt, 10 * time.Second, true},
		{notice.Terminate, 10 * time.Second, true},
		{notice.Preempt, 2 * time.Minute, false},
		{notice.Terminate, 2 * time.Minute, false},
		{notice.Redeploy, 10 * time.Second, false},
		{notice.Reboot, 10 * time.Second, false},
		{notice.Freeze, 10 * time.Second, false},
	} {
		runSilentAndPartial(t, string(tt.kind)+" after "+tt.away.String(), func(t *testing.T, m *testNode) {
			m.denyEvictions("web")
			m.startAgent(t, 0, nil)
			n := newNotice(tt.kind, "e", 2*time.Minute)
			m.source.setNotices(n)
			time.Sleep(5 * time.Second)
			m.crashAgent()
			m.source.startDelay = 24 * time.Hour
			time.Sleep(tt.away)
			m.denyEvictions("")
			m.replacePod()
			m.startAgent(t, 0, nil)
			time.Sleep(10 * time.Second)
			check.Is(t, tt.asks, !m.evictionTime().IsZero())
			time.Sleep(5 * time.Minute)
			m.replacePod() // past its deadline
			m.notifyPodHandlers()
			time.Sleep(time.Minute)
			if !m.evictionTime().IsZero() || m.cluster.runningDrains("n") > 0 {
				t.Errorf("a pod was evicted at %s, past the deadline, without reading the source", m.evictionTime())
			}
		})
	}
}

func TestNoticeStillListedAfterARestartContinues(t *testing.T) {
	for _, kind := range notice.Types() {
		runSilentAndPartial(t, string(kind), func(t *testing.T, m *testNode) {
			if kind == notice.Condition {
				m.source.name = "condition"
			}
			m.denyEvictions("web")
			m.startAgent(t, 0, drainForConditions)
			m.source.setNotices(newNotice(kind, "e", 10*time.Minute))
			time.Sleep(time.Minute)
			m.crashAgent()
			m.denyEvictions("")
			m.source.startDelay = 20 * time.Minute // past the deadline, which the instance outlives
			m.startAgent(t, 0, drainForConditions)
			time.Sleep(20*time.Minute + 10*time.Second)
			if m.evictionTime().IsZero() && kind != notice.Freeze { // its deadline has passed
				t.Error("no pod was evicted after the source was read")
			}
		})
	}
}

// Meanwhile another node waits for the only slot.
func TestRestartedAgentKeepsItsSlotUntilFirstRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster()
		first, second := newTestNode(c, "first", 30*time.Minute), newTestNode(c, "second", time.Second)
		first.startAgent(t, 1, nil)
		first.source.setNotices(newNotice(notice.Reboot, "a", 10*time.Hour))
		time.Sleep(10 * time.Second)
		second.startAgent(t, 1, nil)
		second.source.setNotices(newNotice(notice.Reboot, "b", 10*time.Hour))
		time.Sleep(10 * time.Second)
		first.crashAgent()
		first.source.startDelay = 10 * time.Minute
		first.startAgent(t, 1, nil)
		time.Sleep(20 * time.Minute)
		check.Not(t, !second.evictionTime().IsZero(), "the other node was drained from %s on, during the first drain", second.evictionTime())
		first.crashAgent()
		second.crashAgent()
	})
}

func TestRecordHiddenByUnreadableEntryGetsNoExtraTime(t *testing.T) {
	for name, blur := range map[string]func(*fakeSource){
		"an entry is unreadable": func(s *fakeSource) { s.setProblems(notice.Problem{Err: errors.New("Events[0]: 7: want an object")}) },
		"another notice has no ID": func(s *fakeSource) {
			n := newNotice(notice.Freeze, "unnamed-freeze", time.Hour)
			n.HasGeneratedID, n.Duration = true, time.Second
			s.setNotices(n)
		},
	} {
		t.Run(name, testNodeTest(30*time.Second, func(t *testing.T, m *testNode) {
			m.denyEvictions("web")
			m.startAgent(t, 0, nil)
			m.source.setNotices(newNotice(notice.Redeploy, "e", 15*time.Minute))
			time.Sleep(time.Minute)
			m.crashAgent()
			m.source.setNotices()
			blur(m.source)
			time.Sleep(3 * time.Hour)
			m.startAgent(t, 0, nil)
			time.Sleep(time.Minute)
			check.Not(t, !m.evictionTime().IsZero(), "a pod was force-deleted without reading the source")
		}))
	}
}

// The clock is an hour ahead when the notice is first read.
func TestClockSetBackMovesNoDeadline(t *testing.T) {
	for name, setBack := range map[string]func(*testing.T, *testNode){
		"while the agent runs": func(_ *testing.T, m *testNode) { m.source.setClockAhead(0) },
		"while no agent runs": func(t *testing.T, m *testNode) {
			m.crashAgent()
			m.source.setClockAhead(0)
			m.startAgent(t, 0, nil)
		},
	} {
		t.Run(name, testNodeTest(time.Second, func(t *testing.T, m *testNode) {
			m.denyEvictions("web")
			grace := int64(5)
			m.pod.Spec.TerminationGracePeriodSeconds = &grace
			m.source.setClockAhead(time.Hour)
			m.source.setNotices(newNotice(notice.Preempt, "e", 30*time.Second))
			m.startAgent(t, 0, nil)
			time.Sleep(5 * time.Second)
			setBack(t, m)
			time.Sleep(24 * time.Second)
			check.Not(t, !m.isEmpty(), "the pod was not evicted before the deadline")
		}))
	}
}

// The clock is an hour ahead when a Preempt is recorded, and is set back while no agent runs.
func TestRecordFromFutureStartsNoDrain(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		m.denyEvictions("web")
		m.source.setClockAhead(time.Hour)
		m.source.setNotices(newNotice(notice.Preempt, "e", time.Minute))
		m.startAgent(t, 0, nil)
		time.Sleep(5 * time.Second)
		m.crashAgent()
		m.source.setClockAhead(0)
		m.source.setNotices()
		m.source.startDelay = 10 * time.Minute
		time.Sleep(2 * time.Minute) // past its deadline, which the record puts 58 minutes ahead
		m.denyEvictions("")
		m.uncordon()
		m.startAgent(t, 0, nil)
		time.Sleep(time.Minute)
		check.Not(t, !m.evictionTime().IsZero(), "a pod was evicted for a record from the future")
		m.crashAgent()
		m.source.startDelay = 0
		m.startAgent(t, 0, nil)
		time.Sleep(time.Minute)
		if !m.evictionTime().IsZero() || !m.isRestored() {
			t.Errorf("evicted at %s, the node is %+v", m.evictionTime(), m.currentNode())
		}
	})
}
