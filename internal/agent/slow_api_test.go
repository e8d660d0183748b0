package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

var (
	hanging = fault{hangs: true}
	slow    = fault{takes: 10 * time.Second}
)

// TestSlowNodeRequestsDelayNoPreemptDrain has pods that must be asked while three quarters of the time are left.
func TestSlowNodeRequestsDelayNoPreemptDrain(t *testing.T) {
	const window = 30 * time.Second
	start := func(t *testing.T, m *machine) {
		m.start(t, 0, func(o *Options) { o.Impact.On[notice.Freeze], o.Impact.On[notice.Redeploy] = Cordon, Acknowledge })
	}
	freeze := func() notice.Notice { return announced(notice.Freeze, "f", 15*time.Minute) }
	for name, tt := range map[string]struct {
		before   func(*machine)       // the Preempt is announced
		beside   func() notice.Notice // is announced with the Preempt
		restarts bool                 // the agent starts again as the Preempt is announced
		within   time.Duration
	}{
		"every PATCH hangs": {before: func(m *machine) {
			m.faults.set(hanging, "patch nodes", "patch nodes/status")
		}, within: window / 4},
		"every GET hangs": {before: func(m *machine) {
			m.faults.set(hanging, "get nodes")
		}, within: window / 4},
		"every Node request hangs": {before: func(m *machine) {
			m.faults.set(hanging, nodeRequests...)
		}, within: window / 4},
		"every Node request fails": {before: func(m *machine) {
			m.faults.set(fault{code: 503}, nodeRequests...)
		}, within: window / 4},
		"the answers of PATCHes are lost": {before: func(m *machine) {
			m.faults.set(fault{lost: true, hangs: true}, "patch nodes")
		}, within: window / 4},
		"a Freeze ends as it comes": {before: func(m *machine) {
			m.source.say(freeze())
			time.Sleep(time.Minute)
			m.faults.set(slow, "patch nodes", "patch nodes/status")
		}, within: window / 4},
		"a Freeze's PATCH hangs as it comes": {before: func(m *machine) {
			m.faults.set(hanging, "patch nodes")
			m.source.say(freeze())
			time.Sleep(time.Second)
		}, within: window / 4},
		"a Freeze's GET hangs as it comes": {before: func(m *machine) {
			m.faults.set(hanging, "get nodes")
			m.source.say(freeze())
			time.Sleep(time.Second)
		}, within: window / 4},
		"a Freeze's end hangs as it comes": {before: func(m *machine) {
			m.source.say(freeze())
			time.Sleep(time.Minute)
			m.faults.set(hanging, "patch nodes")
			m.source.say()
			time.Sleep(time.Second)
		}, within: window / 4},
		"conditions hang from a Freeze on": {before: func(m *machine) {
			m.faults.set(hanging, "patch nodes/status")
			m.source.say(freeze())
			time.Sleep(time.Second)
		}, within: time.Second},
		"conditions have hung for long": {before: func(m *machine) {
			m.faults.set(hanging, "patch nodes/status")
			m.source.say(freeze())
			time.Sleep(31 * time.Second)
		}, within: time.Second},
		"conditions hang as a Freeze ends": {before: func(m *machine) {
			m.source.say(freeze())
			time.Sleep(time.Minute)
			m.faults.set(hanging, "patch nodes/status")
			m.source.say()
			time.Sleep(time.Second)
		}, within: time.Second},
		"its claim fails and a Freeze's conditions hang": {before: func(m *machine) {
			m.faults.set(fault{code: 503, once: true}, "patch nodes")
			m.faults.set(hanging, "patch nodes/status")
		}, beside: freeze, within: time.Second},
		"claims are slow and a Redeploy is due before it": {before: func(m *machine) {
			m.faults.set(fault{takes: 3 * time.Second}, "patch nodes")
		}, beside: func() notice.Notice { return announced(notice.Redeploy, "r", window/2) }, within: 4 * time.Second},
		"releases are slow as a Freeze ends and the agent restarts": {before: func(m *machine) {
			m.denied("web")
			m.source.say(freeze(), announced(notice.Preempt, "p", window))
			time.Sleep(time.Second)
			m.crash()
			m.denied("")
			m.faults.set(slow, "patch nodes", "patch nodes/status")
			m.faults.set(fault{takes: 100 * time.Millisecond}, "get nodes") // so that the notices are read first
		}, restarts: true, within: time.Second},
	} {
		t.Run(name, machineTest(15*time.Second, func(t *testing.T, m *machine) {
			start(t, m)
			time.Sleep(time.Second)
			tt.before(m)
			if tt.restarts {
				start(t, m)
			}
			said := time.Now()
			notices := []notice.Notice{announced(notice.Preempt, "p", window)}
			if tt.beside != nil {
				notices = append(notices, tt.beside())
			}
			m.source.say(notices...)
			time.Sleep(window)
			if asked := m.asked(); asked.IsZero() || asked.Sub(said) > tt.within || !m.empty() {
				t.Errorf("asked at %s (%s after the notice, want %s), empty: %t", asked, asked.Sub(said), tt.within, m.empty())
			}
			m.faults.set(fault{}, nodeRequests...)
			m.source.say()
			time.Sleep(15 * time.Minute)
			if n := m.see(); n.Spec.Unschedulable || len(n.Annotations)+len(n.Labels)+len(n.Status.Conditions) != 0 {
				t.Errorf("given back, the node is %+v", n)
			}
		}))
	}
}

func TestConditionsRetryEquallyAfterHangsAndErrors(t *testing.T) {
	onMachine(t, 15*time.Second, func(t *testing.T, m *machine) {
		m.faults.set(hanging, "patch nodes/status")
		m.start(t, 0, func(o *Options) { o.Impact.On[notice.Freeze] = Cordon })
		m.source.say(announced(notice.Freeze, "f", time.Hour))
		time.Sleep(20*time.Second + minConditionRetry/2) // the first try is over
		m.faults.set(fault{}, "patch nodes/status")
		if n := m.conditionWrites(); n != 0 {
			t.Errorf("the conditions were written %d times right after a hang", n)
		}
		time.Sleep(minConditionRetry)
		if n := m.conditionWrites(); n != 1 {
			t.Errorf("the conditions were written %d times after the back-off", n)
		}
	})
}

func TestDrainStopsInTimeWhileARequestHangs(t *testing.T) {
	for name, tt := range map[string]struct {
		kind   notice.Type
		happen func(*machine)
		within time.Duration
	}{
		"its notice ends": {notice.Preempt, func(m *machine) { m.source.say() }, time.Second},
		"its slot is lost": {notice.Reboot, func(m *machine) {
			m.faults.set(fault{code: 503}, "update leases", "list leases")
		}, 16 * time.Second},
		"its agent is to end": {notice.Reboot, func(m *machine) { m.kill() }, time.Second},
	} {
		t.Run(name, machineTest(10*time.Minute, func(t *testing.T, m *machine) {
			m.start(t, 1, func(o *Options) { o.Impact.On[notice.Freeze] = Cordon })
			drained := announced(tt.kind, "r", time.Hour)
			m.source.say(drained)
			time.Sleep(10 * time.Second)
			if m.cluster.drains("n") != 1 {
				t.Fatal("no drain is under way")
			}
			m.faults.set(hanging, "patch nodes")
			m.source.say(drained, announced(notice.Freeze, "f", time.Hour)) // whose claim hangs
			time.Sleep(10 * time.Millisecond)
			tt.happen(m)
			for end := time.Now().Add(tt.within); time.Now().Before(end) && m.cluster.drains("n") > 0; {
				time.Sleep(100 * time.Millisecond)
			}
			if m.cluster.drains("n") > 0 {
				t.Errorf("the drain goes on after %s", tt.within)
			}
		}))
	}
}

// TestHangingRequestDoesNotDelayACancelledDrain has the notice not be listed before either: nobody had read the source, or an
// entry that could not be understood might have been it.
func TestHangingRequestDoesNotDelayACancelledDrain(t *testing.T) {
	for name, tt := range map[string]struct{ hide, tell func(*testing.T, *machine) }{
		"a restarted agent reads its source": {func(t *testing.T, m *machine) {
			m.crash()
			m.source.say()
			m.source.silent = 2 * time.Second
			m.faults.set(hanging, "patch nodes")
			m.start(t, 0, nil)
		}, func(*testing.T, *machine) {}},
		"an unreadable entry goes": {func(_ *testing.T, m *machine) {
			m.source.hide(notice.Problem{Err: errors.New("Events[0]: 7: want an object")})
			m.source.say()
			m.faults.set(hanging, "patch nodes")
		}, func(_ *testing.T, m *machine) { m.source.hide() }},
	} {
		t.Run(name, machineTest(10*time.Minute, func(t *testing.T, m *machine) {
			m.start(t, 0, nil)
			m.source.say(announced(notice.Terminate, "e", time.Hour))
			time.Sleep(5 * time.Second)
			tt.hide(t, m)
			time.Sleep(time.Second)
			m.uncordon() // so that it is to be cordoned again
			time.Sleep(500 * time.Millisecond)
			if m.cluster.drains("n") != 1 {
				t.Fatal("no drain is under way")
			}
			tt.tell(t, m)
			time.Sleep(time.Second)
			if m.cluster.drains("n") > 0 {
				t.Error("the drain goes on")
			}
		}))
	}
}

// othersTurns are slots of which none is ever ours, while the other nodes take turns.
type othersTurns struct{}

func (othersTurns) Want(bool, time.Time) {}
func (othersTurns) Held() bool           { return false }
func (othersTurns) GivenBack() bool      { return true }
func (othersTurns) Holders() []string    { return []string{"another"} }

func (othersTurns) Run(ctx context.Context, changed func()) {
	for ctx.Err() == nil {
		changed()
		time.Sleep(2 * time.Second)
	}
}

func TestOtherNodesTurnsEndNoRequest(t *testing.T) {
	onMachine(t, time.Second, func(t *testing.T, m *machine) {
		m.faults.set(fault{takes: 3 * time.Second}, nodeRequests...)
		m.start(t, 0, func(o *Options) { o.Slots = othersTurns{} })
		m.source.say(announced(notice.Freeze, "f", 15*time.Minute))
		time.Sleep(time.Minute)
		if !m.see().Spec.Unschedulable {
			t.Error("not cordoned after a minute")
		}
	})
}
