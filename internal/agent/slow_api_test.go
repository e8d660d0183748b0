package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

var (
	hanging = fault{hangs: true}
	slow    = fault{delay: 10 * time.Second}
)

// The pods must be evicted within a quarter of the notice period.
func TestSlowNodeRequestsDelayNoPreemptDrain(t *testing.T) {
	const window = 30 * time.Second
	start := func(t *testing.T, m *testNode) {
		m.startAgent(t, 0, func(o *Options) {
			o.Policy.ActionByType[notice.Freeze], o.Policy.ActionByType[notice.Redeploy] = Cordon, Acknowledge
		})
	}
	freeze := func() notice.Notice { return newNotice(notice.Freeze, "f", 15*time.Minute) }
	for name, tt := range map[string]struct {
		before   func(*testNode)      // runs before the Preempt is announced
		beside   func() notice.Notice // returns another notice, announced with the Preempt
		restarts bool                 // restarts the agent when the Preempt is announced
		within   time.Duration
	}{
		"every PATCH hangs": {before: func(m *testNode) {
			m.faults.set(hanging, "patch nodes", "patch nodes/status")
		}, within: window / 4},
		"every GET hangs": {before: func(m *testNode) {
			m.faults.set(hanging, "get nodes")
		}, within: window / 4},
		"every Node request hangs": {before: func(m *testNode) {
			m.faults.set(hanging, nodeRequests...)
		}, within: window / 4},
		"every Node request fails": {before: func(m *testNode) {
			m.faults.set(fault{code: 503}, nodeRequests...)
		}, within: window / 4},
		"the responses of PATCHes are lost": {before: func(m *testNode) {
			m.faults.set(fault{responseLost: true, hangs: true}, "patch nodes")
		}, within: window / 4},
		"a Freeze ends as the Preempt comes": {before: func(m *testNode) {
			m.source.setNotices(freeze())
			time.Sleep(time.Minute)
			m.faults.set(slow, "patch nodes", "patch nodes/status")
		}, within: window / 4},
		"a Freeze's PATCH hangs as the Preempt comes": {before: func(m *testNode) {
			m.faults.set(hanging, "patch nodes")
			m.source.setNotices(freeze())
			time.Sleep(time.Second)
		}, within: window / 4},
		"a Freeze's GET hangs as the Preempt comes": {before: func(m *testNode) {
			m.faults.set(hanging, "get nodes")
			m.source.setNotices(freeze())
			time.Sleep(time.Second)
		}, within: window / 4},
		"a Freeze's end hangs as the Preempt comes": {before: func(m *testNode) {
			m.source.setNotices(freeze())
			time.Sleep(time.Minute)
			m.faults.set(hanging, "patch nodes")
			m.source.setNotices()
			time.Sleep(time.Second)
		}, within: window / 4},
		"conditions hang from a Freeze on": {before: func(m *testNode) {
			m.faults.set(hanging, "patch nodes/status")
			m.source.setNotices(freeze())
			time.Sleep(time.Second)
		}, within: time.Second},
		"conditions have hung for long": {before: func(m *testNode) {
			m.faults.set(hanging, "patch nodes/status")
			m.source.setNotices(freeze())
			time.Sleep(31 * time.Second)
		}, within: time.Second},
		"conditions hang as a Freeze ends": {before: func(m *testNode) {
			m.source.setNotices(freeze())
			time.Sleep(time.Minute)
			m.faults.set(hanging, "patch nodes/status")
			m.source.setNotices()
			time.Sleep(time.Second)
		}, within: time.Second},
		"its claim fails and a Freeze's conditions hang": {before: func(m *testNode) {
			m.faults.set(fault{code: 503, once: true}, "patch nodes")
			m.faults.set(hanging, "patch nodes/status")
		}, beside: freeze, within: time.Second},
		"claims are slow and a Redeploy is due first": {before: func(m *testNode) {
			m.faults.set(fault{delay: 3 * time.Second}, "patch nodes")
		}, beside: func() notice.Notice { return newNotice(notice.Redeploy, "r", window/2) }, within: 4 * time.Second},
		"claim removals are slow as a Freeze ends and the agent restarts": {before: func(m *testNode) {
			m.denyEvictions("web")
			m.source.setNotices(freeze(), newNotice(notice.Preempt, "p", window))
			time.Sleep(time.Second)
			m.crashAgent()
			m.denyEvictions("")
			m.faults.set(slow, "patch nodes", "patch nodes/status")
			m.faults.set(fault{delay: 100 * time.Millisecond}, "get nodes") // so the notices are read first
		}, restarts: true, within: time.Second},
	} {
		t.Run(name, testNodeTest(15*time.Second, func(t *testing.T, m *testNode) {
			start(t, m)
			time.Sleep(time.Second)
			tt.before(m)
			if tt.restarts {
				start(t, m)
			}
			said := time.Now()
			notices := []notice.Notice{newNotice(notice.Preempt, "p", window)}
			if tt.beside != nil {
				notices = append(notices, tt.beside())
			}
			m.source.setNotices(notices...)
			time.Sleep(window)
			if asked := m.evictionTime(); asked.IsZero() || asked.Sub(said) > tt.within || !m.isEmpty() {
				t.Errorf("evicted at %s (%s after the notice, want %s), empty: %t", asked, asked.Sub(said), tt.within, m.isEmpty())
			}
			m.faults.set(fault{}, nodeRequests...)
			m.source.setNotices()
			time.Sleep(15 * time.Minute)
			if n := m.currentNode(); n.Spec.Unschedulable || len(n.Annotations)+len(n.Labels)+len(n.Status.Conditions) != 0 {
				t.Errorf("after the notice ended the node is %+v", n)
			}
		}))
	}
}

func TestConditionsRetryEquallyAfterHangsAndErrors(t *testing.T) {
	withTestNode(t, 15*time.Second, func(t *testing.T, m *testNode) {
		m.faults.set(hanging, "patch nodes/status")
		m.startAgent(t, 0, func(o *Options) { o.Policy.ActionByType[notice.Freeze] = Cordon })
		m.source.setNotices(newNotice(notice.Freeze, "f", time.Hour))
		time.Sleep(20*time.Second + minConditionRetry/2) // after the first try
		m.faults.set(fault{}, "patch nodes/status")
		check.Is(t, 0, m.conditionWrites())
		time.Sleep(minConditionRetry)
		check.Is(t, 1, m.conditionWrites())
	})
}

func TestDrainStopsInTimeWhileARequestHangs(t *testing.T) {
	for name, tt := range map[string]struct {
		kind   notice.Type
		happen func(*testNode)
		within time.Duration
	}{
		"its notice ends": {notice.Preempt, func(m *testNode) { m.source.setNotices() }, time.Second},
		"its slot is lost": {notice.Reboot, func(m *testNode) {
			m.faults.set(fault{code: 503}, "update leases", "list leases")
		}, 16 * time.Second},
		"its agent stops": {notice.Reboot, func(m *testNode) { m.stopAgent() }, time.Second},
	} {
		t.Run(name, testNodeTest(10*time.Minute, func(t *testing.T, m *testNode) {
			m.startAgent(t, 1, func(o *Options) { o.Policy.ActionByType[notice.Freeze] = Cordon })
			drained := newNotice(tt.kind, "r", time.Hour)
			m.source.setNotices(drained)
			time.Sleep(10 * time.Second)
			if m.cluster.runningDrains("n") != 1 {
				t.Fatal("no drain is running")
			}
			m.faults.set(hanging, "patch nodes")
			m.source.setNotices(drained, newNotice(notice.Freeze, "f", time.Hour)) // the request for its claim hangs
			time.Sleep(10 * time.Millisecond)
			tt.happen(m)
			for end := time.Now().Add(tt.within); time.Now().Before(end) && m.cluster.runningDrains("n") > 0; {
				time.Sleep(100 * time.Millisecond)
			}
			check.Not(t, m.cluster.runningDrains("n") > 0, "the drain still runs after %s", tt.within)
		}))
	}
}

// The notice was not listed before either. The source was unread, or an unreadable entry could have been the notice.
func TestHangingRequestDoesNotDelayACancelledDrain(t *testing.T) {
	for name, tt := range map[string]struct{ hide, tell func(*testing.T, *testNode) }{
		"a restarted agent reads its source": {func(t *testing.T, m *testNode) {
			m.crashAgent()
			m.source.setNotices()
			m.source.startDelay = 2 * time.Second
			m.faults.set(hanging, "patch nodes")
			m.startAgent(t, 0, nil)
		}, func(*testing.T, *testNode) {}},
		"an unreadable entry disappears": {func(_ *testing.T, m *testNode) {
			m.source.setProblems(notice.Problem{Err: errors.New("Events[0]: 7: want an object")})
			m.source.setNotices()
			m.faults.set(hanging, "patch nodes")
		}, func(_ *testing.T, m *testNode) { m.source.setProblems() }},
	} {
		t.Run(name, testNodeTest(10*time.Minute, func(t *testing.T, m *testNode) {
			m.startAgent(t, 0, nil)
			m.source.setNotices(newNotice(notice.Terminate, "e", time.Hour))
			time.Sleep(5 * time.Second)
			tt.hide(t, m)
			time.Sleep(time.Second)
			m.uncordon() // so the agent has to cordon it again
			time.Sleep(500 * time.Millisecond)
			if m.cluster.runningDrains("n") != 1 {
				t.Fatal("no drain is running")
			}
			tt.tell(t, m)
			time.Sleep(time.Second)
			check.Not(t, m.cluster.runningDrains("n") > 0, "the drain still runs")
		}))
	}
}

// The agent lacks a right, and then the API server hangs.
func TestLastingFailureIsLoggedOnceAMinute(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		var log bytes.Buffer
		m.faults.set(fault{code: 403}, "patch nodes")
		m.startAgent(t, 0, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		m.source.setNotices(newNotice(notice.Freeze, "f", 10*time.Hour))
		time.Sleep(10*time.Minute + 30*time.Second)
		m.faults.set(hanging, "patch nodes")
		time.Sleep(25 * time.Second)
		m.crashAgent()
		check.Is(t, 12, strings.Count(log.String(), "reconcile failed"), "the first failure, ten minutes, and the other failure")
	})
}

// busySlots has no free slot, while the other nodes take turns.
type busySlots struct{}

func (busySlots) SetWanted(bool, time.Time) {}
func (busySlots) IsHeld() bool              { return false }
func (busySlots) IsReleased() bool          { return true }
func (busySlots) Holders() []string         { return []string{"another"} }

func (busySlots) Run(ctx context.Context, changed func()) {
	for ctx.Err() == nil {
		changed()
		time.Sleep(2 * time.Second)
	}
}

func TestOtherNodesSlotsInterruptNoRequest(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		m.faults.set(fault{delay: 3 * time.Second}, nodeRequests...)
		m.startAgent(t, 0, func(o *Options) { o.DrainSlots = busySlots{} })
		m.source.setNotices(newNotice(notice.Freeze, "f", 15*time.Minute))
		time.Sleep(time.Minute)
		check.Not(t, !m.currentNode().Spec.Unschedulable, "not cordoned after a minute")
	})
}

// fault is an error of the requests with one verb and resource. The zero fault is none.
type fault struct {
	delay        time.Duration // until the request is answered
	hangs        bool          // the request is never answered
	code         int           // status code of the response instead of the server's
	responseLost bool          // the request is served, but the response is lost
	once         bool          // only the next request has the fault
}

// faults holds the faults of one node's requests, by verb and resource.
type faults struct {
	mu     sync.Mutex
	byVerb map[string]fault
}

// set sets the fault of requests; the zero fault removes it.
func (f *faults) set(with fault, of ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, what := range of {
		if f.byVerb == nil {
			f.byVerb = map[string]fault{}
		}
		f.byVerb[what] = with
	}
}

// next returns the fault of the next request.
func (f *faults) next(what string) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	with := f.byVerb[what]
	if with.once {
		delete(f.byVerb, what)
	}
	return with
}

// serve serves a request until its context ends or the client's timeout passes.
func (f *faults) serve(ctx context.Context, what string, do func() error) error {
	with := f.next(what)
	ctx, cancel := context.WithTimeout(ctx, kubeapi.DefaultTimeout)
	defer cancel()
	if with.hangs && !with.responseLost {
		<-ctx.Done()
	}
	if with.delay > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(with.delay):
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if with.code != 0 {
		return &kubeapi.StatusError{Code: with.code, Reason: "Injected"}
	}
	err := do()
	switch {
	case with.responseLost && with.hangs:
		<-ctx.Done()
		return ctx.Err()
	case with.responseLost:
		return &kubeapi.StatusError{Code: 504, Reason: "Timeout"}
	}
	return err
}

// nodeRequests are the agent's requests for its Node. allRequests are all requests that may fail.
var (
	nodeRequests = []string{"get nodes", "list nodes", "patch nodes", "patch nodes/status"}
	allRequests  = append([]string{"create events", "list pods", "list leases", "create leases", "update leases"}, nodeRequests...)
)

func drawFault(t *rapid.T) fault {
	return rapid.SampledFrom([]fault{
		{}, {hangs: true}, {hangs: true, responseLost: true}, {responseLost: true}, {code: 503}, {code: 429}, {code: 500}, {code: 403},
		{delay: 100 * time.Millisecond}, {delay: 3 * time.Second}, {delay: 10 * time.Second},
	}).Draw(t, "fault")
}
