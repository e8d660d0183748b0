package agent

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// uncordon is what a person does.
func (m *machine) uncordon() {
	_, _ = m.change("", func(n *kubeapi.Node) { n.Spec.Unschedulable = false })
}

// isRestored reports that the node takes pods and has nothing of ours.
func (m *machine) isRestored() bool {
	n := m.see()
	return !n.Spec.Unschedulable && len(n.Annotations)+len(n.Labels)+len(n.Status.Conditions) == 0
}

// reach leads a notice to a phase, and returns false for a phase that its type does not have.
func (m *machine) reach(t *testing.T, kind notice.Type, want Phase) bool {
	t.Helper()
	n := announced(kind, "e", time.Hour)
	n.Resources = []string{m.name}
	approved := &allowed{}
	m.start(t, 0, func(o *Options) {
		withConditions(o)
		if want == Acknowledged {
			approved.approves(o)
		}
		if want == Cordoned {
			o.Impact.On[kind], o.Impact.Conditions["e"] = Cordon, Cordon
		}
	})
	voluntary := kind == notice.Freeze || kind == notice.Condition
	switch want {
	case Draining:
		m.denied("web")
	case NotDrained:
		m.denied("web")
		if !voluntary {
			return false
		}
	case Acknowledged:
		if kind == notice.Condition {
			return false
		}
	}
	m.source.say(n)
	switch want {
	case Draining, Cordoned:
		time.Sleep(time.Minute)
	case NotDrained:
		time.Sleep(61 * time.Minute)
	default:
		time.Sleep(2 * time.Minute)
	}
	if got := phase(m); got != want {
		t.Fatalf("phase %q, want %q", got, want)
	}
	return true
}

// withConditions has conditions drain the node, for an hour.
func withConditions(o *Options) {
	o.Impact.Conditions = map[string]Action{"e": Drain}
	o.ConditionDrain = time.Hour
}

func TestI8NoticeEndedDuringAnOutageEvictsNoPod(t *testing.T) {
	for _, kind := range notice.Types() {
		for _, last := range []Phase{Cordoned, Draining, Drained, NotDrained, Acknowledged} {
			for name, silent := range map[string]time.Duration{"answers at once": 0, "answers late": 20 * time.Second} {
				t.Run(string(kind)+" "+string(last)+", the source "+name, machineTest(30*time.Second, func(t *testing.T, m *machine) {
					if kind == notice.Condition {
						m.source.name = "condition"
					}
					reached := m.reach(t, kind, last)
					m.crash()
					if !reached {
						return // a notice of this type never reaches that phase
					}
					m.source.say()
					m.source.silent = silent
					time.Sleep(3 * time.Hour)
					m.uncordon()
					m.denied("web")
					m.replace()
					m.start(t, 0, withConditions)
					for end := time.Now().Add(silent); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
						if m.see().Spec.Unschedulable {
							t.Fatal("cordoned again for a notice that has ended")
						}
					}
					time.Sleep(time.Minute)
					if !m.asked().IsZero() || !m.isRestored() {
						t.Errorf("a pod was asked to leave at %s; the node is %+v", m.asked(), m.see())
					}
				}))
			}
		}
	}
}

// TestRecordedDeadlineAheadIsEnoughForAPreempt has the metadata service be silent for as long as the machine lives.
func TestRecordedDeadlineAheadIsEnoughForAPreempt(t *testing.T) {
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
		t.Run(string(tt.kind)+" after "+tt.away.String(), machineTest(5*time.Second, func(t *testing.T, m *machine) {
			m.denied("web")
			m.start(t, 0, nil)
			n := announced(tt.kind, "e", 2*time.Minute)
			m.source.say(n)
			time.Sleep(5 * time.Second)
			m.crash()
			m.source.silent = 24 * time.Hour
			time.Sleep(tt.away)
			m.denied("")
			m.replace()
			m.start(t, 0, nil)
			time.Sleep(10 * time.Second)
			check.Is(t, tt.asks, !m.asked().IsZero())
			time.Sleep(5 * time.Minute)
			m.replace() // past its deadline
			m.tellPods()
			time.Sleep(time.Minute)
			if !m.asked().IsZero() || m.cluster.drains("n") > 0 {
				t.Errorf("asked at %s past the deadline, on account of the record alone", m.asked())
			}
		}))
	}
}

func TestNoticeStillListedAfterARestartContinues(t *testing.T) {
	for _, kind := range notice.Types() {
		t.Run(string(kind), machineTest(5*time.Second, func(t *testing.T, m *machine) {
			if kind == notice.Condition {
				m.source.name = "condition"
			}
			m.denied("web")
			m.start(t, 0, withConditions)
			m.source.say(announced(kind, "e", 10*time.Minute))
			time.Sleep(time.Minute)
			m.crash()
			m.denied("")
			m.source.silent = 20 * time.Minute // past the deadline, which the machine outlives
			m.start(t, 0, withConditions)
			time.Sleep(20*time.Minute + 10*time.Second)
			if m.asked().IsZero() && kind != notice.Freeze { // its time is over
				t.Error("no pod was asked to leave once the source was read")
			}
		}))
	}
}

// TestRestartedAgentKeepsItsSlotUntilFirstRead has another node wait for the only slot meanwhile.
func TestRestartedAgentKeepsItsSlotUntilFirstRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		first, second := newMachine(c, "first", 30*time.Minute), newMachine(c, "second", time.Second)
		first.start(t, 1, nil)
		first.source.say(announced(notice.Reboot, "a", 10*time.Hour))
		time.Sleep(10 * time.Second)
		second.start(t, 1, nil)
		second.source.say(announced(notice.Reboot, "b", 10*time.Hour))
		time.Sleep(10 * time.Second)
		first.crash()
		first.source.silent = 10 * time.Minute
		first.start(t, 1, nil)
		time.Sleep(20 * time.Minute)
		if !second.asked().IsZero() {
			t.Errorf("the other node was drained from %s on, while the first is", second.asked())
		}
		first.crash()
		second.crash()
	})
}

func TestRecordBehindUnreadableEntriesGetsNoExtraTime(t *testing.T) {
	for name, blur := range map[string]func(*teller){
		"an entry cannot be understood": func(s *teller) { s.hide(notice.Problem{Err: errors.New("Events[0]: 7: want an object")}) },
		"another notice has no ID": func(s *teller) {
			n := announced(notice.Freeze, "unnamed-freeze", time.Hour)
			n.Unnamed, n.Duration = true, time.Second
			s.say(n)
		},
	} {
		t.Run(name, machineTest(30*time.Second, func(t *testing.T, m *machine) {
			m.denied("web")
			m.start(t, 0, nil)
			m.source.say(announced(notice.Redeploy, "e", 15*time.Minute))
			time.Sleep(time.Minute)
			m.crash()
			m.source.say()
			blur(m.source)
			time.Sleep(3 * time.Hour)
			m.start(t, 0, nil)
			time.Sleep(time.Minute)
			if !m.asked().IsZero() {
				t.Errorf("a pod was deleted past its budget on account of the record alone")
			}
		}))
	}
}

// TestClockSetBackMovesNoDeadline has the clock be an hour ahead when a notice is first seen.
func TestClockSetBackMovesNoDeadline(t *testing.T) {
	for name, setBack := range map[string]func(*testing.T, *machine){
		"while the agent runs": func(_ *testing.T, m *machine) { m.source.clock(0) },
		"while no agent is there": func(t *testing.T, m *machine) {
			m.crash()
			m.source.clock(0)
			m.start(t, 0, nil)
		},
	} {
		t.Run(name, machineTest(time.Second, func(t *testing.T, m *machine) {
			m.denied("web")
			grace := int64(5)
			m.pod.Spec.TerminationGracePeriodSeconds = &grace
			m.source.clock(time.Hour)
			m.source.say(announced(notice.Preempt, "e", 30*time.Second))
			m.start(t, 0, nil)
			time.Sleep(5 * time.Second)
			setBack(t, m)
			time.Sleep(24 * time.Second)
			if !m.empty() {
				t.Error("a pod was left to die with the machine")
			}
		}))
	}
}

// TestRecordFromTheFutureIsNotEnough has the clock be an hour ahead when a Preempt is recorded, and set back while no agent is there.
func TestRecordFromTheFutureIsNotEnough(t *testing.T) {
	onMachine(t, time.Second, func(t *testing.T, m *machine) {
		m.denied("web")
		m.source.clock(time.Hour)
		m.source.say(announced(notice.Preempt, "e", time.Minute))
		m.start(t, 0, nil)
		time.Sleep(5 * time.Second)
		m.crash()
		m.source.clock(0)
		m.source.say()
		m.source.silent = 10 * time.Minute
		time.Sleep(2 * time.Minute) // it is past its deadline, which the record has as 58 minutes ahead
		m.denied("")
		m.uncordon()
		m.start(t, 0, nil)
		time.Sleep(time.Minute)
		if !m.asked().IsZero() {
			t.Errorf("a pod was asked to leave on account of a record from the future")
		}
		m.crash()
		m.source.silent = 0
		m.start(t, 0, nil)
		time.Sleep(time.Minute)
		if !m.asked().IsZero() || !m.isRestored() {
			t.Errorf("asked at %s, the node is %+v", m.asked(), m.see())
		}
	})
}
