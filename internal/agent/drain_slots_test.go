package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/report"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestNoticeStopsWaitingInTimeToDrain(t *testing.T) {
	const hookWithHeartbeats = "a Terminate of a hook with heartbeats waits for nothing"
	for name, tt := range map[string]struct {
		kind   notice.Type
		notice time.Duration // from first read to the deadline
		waits  time.Duration // from first read; negative is no limit
	}{
		"a Preempt waits for nothing":                       {notice.Preempt, 30 * time.Second, 0},
		"a Terminate waits for nothing":                     {notice.Terminate, 15 * time.Minute, 0},
		"a Terminate of the longest hook waits for nothing": {notice.Terminate, 2 * time.Hour, 0},
		hookWithHeartbeats:                                  {notice.Terminate, 48 * time.Hour, 0},
		"a retirement waits until ten minutes are left":     {notice.Terminate, 24 * time.Hour, 24*time.Hour - maxDrainLead},
		"a Reboot waits for half its time":                  {notice.Reboot, 15 * time.Minute, 450 * time.Second},
		"a Redeploy waits for half its time":                {notice.Redeploy, 10 * time.Minute, 5 * time.Minute},
		"a Freeze waits for half its time":                  {notice.Freeze, 15 * time.Minute, 450 * time.Second},
		"a Reboot in days waits until ten minutes are left": {notice.Reboot, 7 * 24 * time.Hour, 7*24*time.Hour - maxDrainLead},
		"a due Reboot waits for nothing":                    {notice.Reboot, 0, 0},
		"a condition waits without limit":                   {notice.Condition, -1, -1},
	} {
		t.Run(name, func(t *testing.T) {
			h := &noticeState{Notice: notice.Notice{Type: tt.kind}, Seen: SeenTimes{First: epoch}}
			if tt.notice >= 0 {
				h.Decision.Deadline = epoch.Add(tt.notice)
				if name != hookWithHeartbeats {
					h.Notice.NotBefore = h.Decision.Deadline
				}
			}
			if tt.waits < 0 {
				check.Not(t, h.isUrgent(epoch.Add(1000*time.Hour)), "urgent, want never urgent")
				return
			}
			check.Not(t, tt.waits > 0 && h.isUrgent(epoch.Add(tt.waits-time.Second)), "urgent too early")
			check.Not(t, !h.isUrgent(epoch.Add(tt.waits)), "not urgent in time")
		})
	}
}

func TestI7OnlyItsOwnSourceEndsANotice(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		other := &fakeSource{name: "condition", changed: make(chan struct{}, 1)}
		m.startAgent(t, 0, func(o *Options) {
			o.Sources = append(o.Sources, other)
			o.Policy.ActionByCondition = map[string]Action{"shared": Cordon}
		})
		reboot := newNotice(notice.Reboot, "shared", time.Hour) // both notices have the same ID
		m.source.setNotices(reboot)
		other.setNotices(newNotice(notice.Condition, "shared", 0))
		time.Sleep(time.Minute)
		other.setNotices()
		time.Sleep(time.Minute)
		if n := m.currentNode(); !n.Spec.Unschedulable || len(n.Annotations) != 1 {
			t.Errorf("after the condition's end the node has %v, %v", n.Spec, n.Annotations)
		}
		m.source.setNotices()
		time.Sleep(time.Minute)
		if n := m.currentNode(); n.Spec.Unschedulable || len(n.Annotations) != 0 || len(n.Status.Conditions) != 0 {
			t.Errorf("after both ends the node has %v, %v, %v", n.Spec, n.Annotations, n.Status)
		}
	})
}

func TestI3NoticeOfARemovedSourceIsCleared(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		other := &fakeSource{name: "condition", changed: make(chan struct{}, 1)}
		m.startAgent(t, 0, func(o *Options) {
			o.Sources = append(o.Sources, other)
			o.Policy.ActionByCondition = map[string]Action{"KernelDeadlock": Cordon}
		})
		other.setNotices(newNotice(notice.Condition, "KernelDeadlock", 0))
		time.Sleep(time.Minute)
		m.crashAgent()
		if !m.currentNode().Spec.Unschedulable {
			t.Fatal("not cordoned")
		}
		m.startAgent(t, 0, nil)
		time.Sleep(time.Minute)
		if n := m.currentNode(); n.Spec.Unschedulable || len(n.Annotations) != 0 {
			t.Errorf("still %v, %v", n.Spec, n.Annotations)
		}
	})
}

func TestConditionWithoutADrainSlotIsNotCordoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster()
		first, second := newTestNode(c, "first", 10*time.Minute), newTestNode(c, "second", time.Second)
		for _, m := range []*testNode{first, second} {
			m.source.name = "condition"
			m.startAgent(t, 1, func(o *Options) { o.Policy.ActionByCondition = map[string]Action{"X": Drain} })
		}
		first.source.setNotices(newNotice(notice.Condition, "X", 0))
		time.Sleep(10 * time.Second)
		second.source.setNotices(newNotice(notice.Condition, "X", 0))
		time.Sleep(5 * time.Minute)
		if n := second.currentNode(); n.Spec.Unschedulable || !second.hasEvent("WaitingForDrainSlot") {
			t.Errorf("cordoned: %v, Event WaitingForDrainSlot: %v", n.Spec.Unschedulable, second.hasEvent("WaitingForDrainSlot"))
		}
		time.Sleep(6 * time.Minute)
		check.Not(t, !second.currentNode().Spec.Unschedulable || !second.isEmpty(), "not drained after the slot was released")
		first.crashAgent()
		second.crashAgent()
	})
}

func TestDrainStartsInTimeWithoutASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster()
		first, second := newTestNode(c, "first", time.Hour), newTestNode(c, "second", time.Second)
		first.startAgent(t, 1, nil)
		second.startAgent(t, 1, nil)
		first.source.setNotices(newNotice(notice.Reboot, "a", 10*time.Hour))
		time.Sleep(10 * time.Second)
		began := time.Now()
		second.source.setNotices(newNotice(notice.Reboot, "b", 15*time.Minute))
		time.Sleep(14 * time.Minute)
		if waited := second.evictionTime().Sub(began); waited < 7*time.Minute || waited > 8*time.Minute {
			t.Errorf("it waited %s", waited)
		}
		first.crashAgent()
		second.crashAgent()
	})
}

func TestI6VoluntaryDrainStopsForAnotherTool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster()
		m := newTestNode(c, "n", 10*time.Minute)
		m.startAgent(t, 0, nil)
		m.source.setNotices(newNotice(notice.Reboot, "a", time.Hour))
		time.Sleep(10 * time.Second)
		_, _ = m.updateNode("", func(n *kubeapi.Node) {
			n.Spec.Taints = []kubeapi.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"}}
		})
		time.Sleep(10 * time.Second)
		if n := c.runningDrains(m.name); n != 0 || !m.hasEvent("OtherToolActive") {
			t.Errorf("%d drains run beside the other tool's; Event OtherToolActive: %v", n, m.hasEvent("OtherToolActive"))
		}
		time.Sleep(51 * time.Minute) // the other tool does not finish in time
		if n := c.runningDrains(m.name); n == 0 && !m.isEmpty() {
			t.Error("the pods were not evicted before the deadline")
		}
		m.crashAgent()
	})
}

// The other tool keeps its own cordon during a Preempt.
func TestI6NodeIsCordonedAfterTheOtherToolLeaves(t *testing.T) {
	withTestNode(t, 10*time.Minute, func(t *testing.T, m *testNode) {
		taint := func(taints ...kubeapi.Taint) {
			_, _ = m.updateNode("", func(n *kubeapi.Node) { n.Spec.Taints = taints })
		}
		taint(kubeapi.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"})
		m.startAgent(t, 0, nil)
		m.source.setNotices(newNotice(notice.Preempt, "p", time.Hour))
		time.Sleep(10 * time.Second)
		if n := m.currentNode(); n.Spec.Unschedulable || len(n.Annotations) != 1 || m.evictionTime().IsZero() {
			t.Errorf("beside the other tool the node is %+v, evictions at %s", n, m.evictionTime())
		}
		taint()
		time.Sleep(10 * time.Second)
		if n := m.currentNode(); !n.Spec.Unschedulable {
			t.Errorf("without the other tool the node is %+v", n)
		}
	})
}

// runningDrains returns how many drains watch the node's pods.
func (c *fakeCluster) runningDrains(node string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drainCounts[node]
}

// scenarioStep is one action on one node.
type scenarioStep struct {
	after      time.Duration
	node       int
	action     string        // reboot, freeze, condition, preempt, over, crash, start, fault, mend, hide, show, rename, swap, uncordon
	window     time.Duration // notice period of a Preempt
	fault      fault
	verbs      []string      // requests with the fault
	startDelay time.Duration // how long the source is unreadable after a start
}

// scenario is a list of steps for the nodes of one cluster.
type scenario struct {
	limit, nodes int
	podStopTimes []time.Duration
	steps        []scenarioStep
}

func drawScenario(t *rapid.T) scenario {
	s := scenario{limit: rapid.IntRange(1, 2).Draw(t, "limit"), nodes: rapid.IntRange(3, 5).Draw(t, "nodes")}
	for range s.nodes {
		s.podStopTimes = append(s.podStopTimes, time.Duration(rapid.IntRange(1, 90).Draw(t, "stops"))*time.Second)
	}
	for range rapid.IntRange(5, 25).Draw(t, "steps") {
		s.steps = append(s.steps, scenarioStep{
			after: time.Duration(rapid.IntRange(0, 40).Draw(t, "after")) * time.Second,
			node:  rapid.IntRange(0, s.nodes-1).Draw(t, "node"),
			action: rapid.SampledFrom([]string{
				"reboot", "reboot", "redeploy", "freeze", "condition", "preempt", "over", "crash", "start", "fault", "fault", "fault", "mend",
				"hide", "show", "rename", "swap", "uncordon",
			}).Draw(t, "what"),
			window:     rapid.SampledFrom([]time.Duration{30 * time.Second, 5 * time.Minute, time.Hour}).Draw(t, "window"),
			fault:      drawFault(t),
			verbs:      rapid.SliceOfNDistinct(rapid.SampledFrom(allRequests), 1, 4, rapid.ID[string]).Draw(t, "verbs"),
			startDelay: rapid.SampledFrom([]time.Duration{0, 0, 20 * time.Second, 10 * time.Minute}).Draw(t, "silent"),
		})
	}
	return s
}

// scenarioNode is a node in a scenario.
type scenarioNode struct {
	*testNode

	running       bool
	readable      time.Time     // when its source becomes readable
	preempted     time.Time     // since when its agent can read a Preempt
	evictionLimit time.Duration // longest time until its pods are evicted: a quarter of the Preempt's notice period and a second

	announced        time.Time // since when an interruption is listed without a gap
	quietSince       time.Time // since when no notice is listed
	due              time.Time // deadline of the last Preempt
	checkedUncordons int       // uncordons that were checked already
}

// setNotices makes the node's source list these notices.
func (m *scenarioNode) setNotices(notices ...notice.Notice) {
	m.source.setNotices(notices...)
	switch interrupted := slices.ContainsFunc(notices, func(n notice.Notice) bool { return n.Type != notice.Condition }); {
	case !interrupted:
		m.announced = time.Time{}
	case m.announced.IsZero():
		m.announced = time.Now()
	}
	m.quietSince = time.Time{}
	if len(notices) == 0 {
		m.quietSince = time.Now()
	}
}

// findViolations returns what the agent did without a notice that needs it.
func (m *scenarioNode) findViolations() (broken []string) {
	m.mu.Lock()
	opened, evicted := slices.Clone(m.uncordonedAt), m.evictedAt
	m.mu.Unlock()
	for _, at := range opened[m.checkedUncordons:] {
		if !m.announced.IsZero() && at.After(m.announced) {
			broken = append(broken, m.name+": uncordoned although an interruption is announced")
		}
	}
	m.checkedUncordons = len(opened)
	if len(m.source.snapshot().Unreadable) > 0 && !m.quietSince.IsZero() {
		m.quietSince = time.Now() // the unreadable entry may be any notice
	}
	if !m.quietSince.IsZero() && evicted.After(m.quietSince) && evicted.After(m.due) {
		broken = append(broken, m.name+": a pod was evicted although nothing is announced")
	}
	return broken
}

// canWait reports that only notices that can wait are listed. Their deadlines are hours away.
func (m *scenarioNode) canWait() bool {
	return !m.isPreempted() && !slices.ContainsFunc(m.source.listNotices(), func(n notice.Notice) bool { return n.Status == notice.Started })
}

func (m *scenarioNode) isPreempted() bool {
	return slices.ContainsFunc(m.source.listNotices(), func(n notice.Notice) bool { return n.Type == notice.Preempt })
}

func (s scenario) run(t *testing.T) (broken []string) {
	c := newFakeCluster()
	var all []*scenarioNode
	for i := range s.nodes {
		m := &scenarioNode{testNode: newTestNode(c, fmt.Sprint("node-", i), s.podStopTimes[i])}
		m.startAgentFromNode(t, s.limit, 0)
		all = append(all, m)
	}
	watch := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end) && len(broken) == 0; {
			time.Sleep(200 * time.Millisecond)
			drains := 0
			for _, m := range all {
				broken = append(broken, m.findViolations()...)
				m.addPodIfRestored()
				if m.running && m.canWait() && c.runningDrains(m.name) > 0 && !m.isEmpty() {
					drains++
				}
				late := m.running && !m.preempted.IsZero() && time.Since(m.preempted) > m.evictionLimit
				if late && !m.isEmpty() && m.evictionTime().IsZero() {
					broken = append(broken, m.name+": a Preempt drain is late")
				}
			}
			if drains > s.limit {
				broken = append(broken, fmt.Sprintf("%d concurrent drains that can wait, the limit is %d", drains, s.limit))
			}
		}
	}
	for i, d := range s.steps {
		watch(d.after)
		s.apply(t, all[d.node], d, fmt.Sprint("event-", i))
	}
	// No deadlock: every node with an agent and a notice is drained in the end.
	for _, m := range all {
		m.faults.set(fault{}, allRequests...)
		m.source.setProblems()
		if m.source.startDelay > 0 && m.running {
			m.crashAgent()
			m.running = false
		}
		if !m.running {
			m.startAgentFromNode(t, s.limit, 0)
		}
	}
	watch(time.Duration(s.nodes) * 4 * time.Minute)
	for _, m := range all {
		if len(m.source.listNotices()) > 0 && !m.isEmpty() && len(broken) == 0 {
			broken = append(broken, m.name+": never drained")
		}
		m.setNotices()
	}
	// No remains: without notices, everything is removed from the node despite earlier failures (I3).
	time.Sleep(2*terminationTime + maxConditionRetry)
	for _, m := range all {
		if !m.isRestored() && len(broken) == 0 {
			broken = append(broken, fmt.Sprintf("%s: not restored: %+v", m.name, m.currentNode()))
		}
		m.crashAgent()
	}
	return broken
}

// addPodIfRestored adds a pod to an empty, schedulable node without a notice.
func (m *scenarioNode) addPodIfRestored() {
	if m.isEmpty() && len(m.source.listNotices()) == 0 && !m.currentNode().Spec.Unschedulable {
		m.replacePod()
		m.notifyPodHandlers()
	}
}

// startAgentFromNode starts the node's agent with the present Node.
func (m *scenarioNode) startAgentFromNode(t *testing.T, limit int, silent time.Duration) {
	m.source.startDelay = silent
	m.readable = time.Now().Add(silent)
	m.startAgent(t, limit, func(o *Options) {
		o.Policy.ActionByCondition = map[string]Action{"X": Drain}
		found := m.currentNode()
		o.InitialNode = &found
	})
	m.running = true
}

func (s scenario) apply(t *testing.T, m *scenarioNode, d scenarioStep, id string) {
	switch what := d.action; {
	case what == "fault":
		m.faults.set(d.fault, d.verbs...)
	case what == "mend":
		m.faults.set(fault{}, allRequests...)
	case what == "crash" && m.running:
		m.crashAgent()
		m.running, m.preempted = false, time.Time{}
	case what == "start" && !m.running:
		m.startAgentFromNode(t, s.limit, d.startDelay)
		if m.isPreempted() {
			m.preempted = m.readable
		}
	case what == "hide":
		m.source.setProblems(notice.Problem{Err: errors.New("Events[0]: 7: want an object")})
	case what == "show":
		m.source.setProblems()
	case what == "rename": // every event, except conditions, continues under a new ID
		all := m.source.listNotices()
		for i := range all {
			if all[i].Type != notice.Condition {
				all[i].ID += "-" + id
			}
		}
		m.setNotices(all...)
	case what == "swap" && len(m.source.listNotices()) > 0 && !m.isPreempted(): // a started interruption replaces all notices
		n := newNotice(notice.Reboot, id, 0)
		n.Status, n.NotBefore = notice.Started, time.Time{}
		m.setNotices(n)
	case what == "uncordon":
		m.uncordon()
		m.mu.Lock()
		m.checkedUncordons = len(m.uncordonedAt) // this uncordon is not the agent's
		m.mu.Unlock()
	case what == "crash", what == "start", what == "swap":
	case what == "over":
		m.setNotices()
		m.preempted = time.Time{}
	default:
		m.addNotice(d, id)
	}
}

// addNotice adds a notice to the listed ones.
func (m *scenarioNode) addNotice(d scenarioStep, id string) {
	kind := map[string]notice.Type{
		"reboot": notice.Reboot, "redeploy": notice.Redeploy, "freeze": notice.Freeze, "condition": notice.Condition,
		"preempt": notice.Preempt,
	}[d.action]
	n := newNotice(kind, id, 24*time.Hour)
	if kind == notice.Condition {
		n.ID, n.Source = "X", "azure" // one source is enough here
	}
	if kind == notice.Preempt {
		n.NotBefore = time.Now().Add(d.window)
		m.due = n.NotBefore
		if m.preempted.IsZero() {
			m.evictionLimit = d.window/4 + time.Second
		}
		if m.running && m.preempted.IsZero() {
			m.preempted = time.Now()
			if m.readable.After(m.preempted) {
				m.preempted = m.readable
			}
		}
	}
	m.setNotices(append(m.source.listNotices(), n)...)
}

// The scenario runs agents that share drain slots. Nodes come and go, and some die while they hold a slot.
func TestDrainSlotsLimitOnlyDrainsThatCanWait(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawScenario(rt)
		var broken []string
		synctest.Test(t, func(t *testing.T) { broken = s.run(t) })
		if len(broken) > 0 {
			rt.Fatal(strings.Join(broken, "; "))
		}
	})
}

// drainConditionMessage returns the message of the condition DrainInProgress, or "" without the condition.
func (m *testNode) drainConditionMessage() string {
	for _, c := range m.currentNode().Status.Conditions {
		if c.Type == cordon.DrainInProgress {
			return c.Message
		}
	}
	return ""
}

func TestConditionNamesTheDrainsBlockersWithoutExtraWrites(t *testing.T) {
	withTestNode(t, time.Minute, func(t *testing.T, m *testNode) {
		m.denyEvictions("web")
		m.startAgent(t, 0, nil)
		time.Sleep(time.Second)
		m.source.setNotices(newNotice(notice.Redeploy, "a", time.Hour))
		time.Sleep(10 * time.Second)
		if got, want := m.drainConditionMessage(), "azure Redeploy (a): 0 of 1 gone, 1 waiting (disruption-budget shop/web: 1)"; got != want {
			t.Errorf("while it is blocked: %q, want %q", got, want)
		}
		writes := m.conditionWrites()
		time.Sleep(20 * time.Minute)
		if more := m.conditionWrites() - writes; more > 0 {
			t.Errorf("the conditions were written %d more times without a change", more)
		}
		m.denyEvictions("")
		for m.evictionTime().IsZero() {
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		if got, want := m.drainConditionMessage(), "azure Redeploy (a)"; got != want {
			t.Errorf("after it was unblocked: %q, want %q", got, want)
		}
		time.Sleep(2 * time.Minute)
		if got := conditionTypes(m.currentNode()); len(got) != 2 || got[0] != cordon.DrainedCondition {
			t.Errorf("at the end: %v", got)
		}
	})
}

func TestUnblockedDrainWritesConditionsOnlyTwice(t *testing.T) {
	withTestNode(t, time.Minute, func(t *testing.T, m *testNode) {
		m.startAgent(t, 0, nil)
		time.Sleep(time.Second)
		m.source.setNotices(newNotice(notice.Redeploy, "a", time.Hour))
		time.Sleep(30 * time.Second)
		if got, want := m.drainConditionMessage(), "azure Redeploy (a)"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(2 * time.Minute)
		if n := m.conditionWrites(); n != 2 || !m.isEmpty() {
			t.Errorf("the conditions were written %d times, want 2; the pod has left: %t", n, m.isEmpty())
		}
	})
}

func TestForcedDeletionFollowsTheTimeOfTheNotice(t *testing.T) {
	for name, tt := range map[string]struct{ at, moved time.Duration }{
		"sooner": {2 * time.Hour, time.Hour}, "later": {time.Hour, 2 * time.Hour},
	} {
		t.Run(name, testNodeTest(time.Second, func(t *testing.T, m *testNode) {
			m.denyEvictions("web")
			m.startAgent(t, 0, nil)
			m.source.setNotices(newNotice(notice.Redeploy, "a", tt.at))
			time.Sleep(10 * time.Second)
			moved := newNotice(notice.Redeploy, "a", tt.moved)
			m.source.setNotices(moved)
			time.Sleep(tt.moved)
			// The drain keeps the pod's grace period and the agent's margin before the deadline.
			if left := moved.NotBefore.Sub(m.evictionTime()); left < 10*time.Minute || left > 11*time.Minute || !m.hasEvent("NoticeChanged") {
				t.Errorf("deleted %s before the deadline, want between 10 and 11 minutes; Event NoticeChanged: %t", left, m.hasEvent("NoticeChanged"))
			}
		}))
	}
}

// The source clears NotBefore, as the sources of Google Cloud do. The one for host maintenance learns of an early begin from
// another source, which may not answer after the restart.
func TestForcedDeletionFollowsAnEarlyBeginAcrossARestart(t *testing.T) {
	for name, stillKnown := range map[string]bool{"the source knows of the begin": true, "the source has forgotten the begin": false} {
		t.Run(name, testNodeTest(time.Second, func(t *testing.T, m *testNode) {
			grace := int64(60)
			m.pod.Spec.TerminationGracePeriodSeconds = &grace
			m.denyEvictions("web")
			m.startAgent(t, 0, nil)
			n := newNotice(notice.Redeploy, "a", 2*time.Hour)
			m.source.setNotices(n)
			time.Sleep(30 * time.Minute)
			begun := time.Now()
			n.NotBefore, n.HasBegun = time.Time{}, true
			m.source.setNotices(n)
			time.Sleep(time.Minute)
			m.crashAgent()
			n.HasBegun = stillKnown
			m.source.setNotices(n)
			m.startAgent(t, 0, nil)
			time.Sleep(30 * time.Minute)
			if after := m.evictionTime().Sub(begun); after < 8*time.Minute || after > 9*time.Minute {
				t.Errorf("deleted %s after the begin, want between 8 and 9 minutes: the grace period of 1 minute before 10 minutes", after)
			}
			check.Is(t, 1, m.countEvents(NoticeChanged))
		}))
	}
}

func TestI2ForcedDeletionsAreReportedWhenADrainStops(t *testing.T) {
	for name, stop := range map[string]func(*testNode){
		"its notice ends":     func(m *testNode) { m.source.setNotices() },
		"the agent is to end": (*testNode).crashAgent,
	} {
		t.Run(name, testNodeTest(5*time.Minute, func(t *testing.T, m *testNode) {
			m.denyEvictions("web")
			registry := observe.NewRegistry()
			m.startAgent(t, 0, func(o *Options) { o.Metrics = NewMetrics(registry) })
			m.source.setNotices(newNotice(notice.Preempt, "p", 20*time.Minute))
			for m.evictionTime().IsZero() {
				time.Sleep(time.Second)
			}
			time.Sleep(time.Minute)
			stop(m)
			time.Sleep(10 * time.Minute)
			page := scrape(t, registry)
			for _, want := range []string{`slipway_drain_forced_pods_total 1`, `slipway_drains_total{outcome="cancelled"} 1`} {
				check.Not(t, !strings.Contains(page, want+"\n"), "missing metric %s in\n%s", want, page)
			}
			check.Is(t, 1, m.countEvents(DrainStopped), m.eventReasons)
		}))
	}
}

// recordedDrainDelay returns what delays the drain, as people see it.
func (m *testNode) recordedDrainDelay(t *testing.T) string {
	t.Helper()
	reports, _ := report.ReadReports(m.currentNode().Annotations)
	check.Len(t, 1, reports)
	return reports[0].DrainWaitsFor
}

func TestRecordSaysWhatDelaysTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster()
		first, second := newTestNode(c, "first", 10*time.Minute), newTestNode(c, "second", 10*time.Minute)
		for _, m := range []*testNode{first, second} {
			m.startAgent(t, 1, nil)
			m.source.setNotices(newNotice(notice.Reboot, "r", 10*time.Hour))
			time.Sleep(time.Minute)
		}
		check.Is(t, "", first.recordedDrainDelay(t))
		check.Is(t, "a drain slot", second.recordedDrainDelay(t))
		time.Sleep(15 * time.Minute)
		check.Is(t, "", second.recordedDrainDelay(t), "it has the slot")
		third := newTestNode(c, "third", time.Hour)
		third.startAgent(t, 0, nil)
		third.source.setNotices(newNotice(notice.Reboot, "r", 10*time.Hour))
		time.Sleep(time.Minute)
		setTaints := func(taints ...kubeapi.Taint) {
			_, err := third.updateNode("", func(n *kubeapi.Node) { n.Spec.Taints = taints })
			check.NoError(t, err)
			time.Sleep(time.Minute)
		}
		setTaints(kubeapi.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"})
		check.Is(t, "another tool: cluster-autoscaler (taint ToBeDeletedByClusterAutoscaler:NoSchedule)", third.recordedDrainDelay(t))
		setTaints()
		check.Is(t, "", third.recordedDrainDelay(t), "the other tool has stopped")
		for _, m := range []*testNode{first, second, third} {
			m.crashAgent()
		}
	})
}

// TestI2FinishedDrainIsReportedIfTheAgentStopsItJustThen keeps the agent's goroutine busy when the drain ends. It then ends or stops
// the drain, so nothing has handled the report before.
func TestI2FinishedDrainIsReportedIfTheAgentStopsItJustThen(t *testing.T) {
	for name, tt := range map[string]struct {
		queued int
		stop   func(*Agent)
	}{
		"the agent ends, and the report is in its queue":   {0, (*Agent).endDrain},
		"the agent ends, and its queue is full":            {16, (*Agent).endDrain},
		"the notice ends, and the agent's queue is full":   {16, func(a *Agent) { a.stopDrain(drain.ErrNotNeeded) }},
		"another drain replaces it, and the queue is full": {16, func(a *Agent) { a.stopDrain(drain.ErrContinued) }},
	} {
		t.Run(name, testNodeTest(time.Second, func(t *testing.T, m *testNode) {
			m.denyEvictions("web")
			registry := observe.NewRegistry()
			a := New(Options{Node: m.name, API: m, Metrics: NewMetrics(registry), Log: slog.New(slog.DiscardHandler)})
			for range tt.queued {
				a.triggerReconcile()
			}
			a.startDrain(t.Context(), drainSpec{
				demands: []demand{{noticeType: notice.Preempt}}, terms: drain.TimeLimits{Deadline: time.Now().Add(30 * time.Second)},
			})
			time.Sleep(20 * time.Second)
			tt.stop(a)
			page := scrape(t, registry)
			for _, want := range []string{`slipway_drain_forced_pods_total 1`, `slipway_drains_total{outcome="drained"} 1`, `slipway_drains_total{outcome="cancelled"} 0`} {
				check.Not(t, !strings.Contains(page, want+"\n"), "missing metric %s in\n%s", want, page)
			}
		}))
	}
}

func TestFinishedDrainIsCountedOnce(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		registry := observe.NewRegistry()
		m.startAgent(t, 0, func(o *Options) { o.Metrics = NewMetrics(registry) })
		m.source.setNotices(newNotice(notice.Reboot, "r", time.Hour))
		time.Sleep(time.Minute)
		m.source.setNotices()
		time.Sleep(time.Minute)
		m.crashAgent()
		page := scrape(t, registry)
		for _, want := range []string{`slipway_drains_total{outcome="drained"} 1`, `slipway_drains_total{outcome="cancelled"} 0`} {
			check.Not(t, !strings.Contains(page, want+"\n"), "missing metric %s in\n%s", want, page)
		}
		if m.hasEvent(string(DrainStopped)) {
			t.Errorf("Events %v", m.eventReasons)
		}
	})
}
