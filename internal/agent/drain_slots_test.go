package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

func TestPatienceEndsInTimeToDrain(t *testing.T) {
	for name, tt := range map[string]struct {
		kind   notice.Type
		notice time.Duration // from first sight to the deadline
		waits  time.Duration // from first sight; negative is for ever
	}{
		"a Preempt waits for nothing":        {notice.Preempt, 30 * time.Second, 0},
		"a Terminate waits for nothing":      {notice.Terminate, 15 * time.Minute, 0},
		"a Reboot waits for half its time":   {notice.Reboot, 15 * time.Minute, 450 * time.Second},
		"a Redeploy too":                     {notice.Redeploy, 10 * time.Minute, 5 * time.Minute},
		"a Freeze too":                       {notice.Freeze, 15 * time.Minute, 450 * time.Second},
		"days ahead, until ten minutes left": {notice.Reboot, 7 * 24 * time.Hour, 7*24*time.Hour - longestLead},
		"what is due now waits for nothing":  {notice.Reboot, 0, 0},
		"a condition waits for ever":         {notice.Condition, -1, -1},
	} {
		t.Run(name, func(t *testing.T) {
			h := &noticeState{Notice: notice.Notice{Type: tt.kind}, Seen: Seen{First: epoch}}
			if tt.notice >= 0 {
				h.Decision.Deadline = epoch.Add(tt.notice)
			}
			if tt.waits < 0 {
				if h.isUrgent(epoch.Add(1000 * time.Hour)) {
					t.Error("it presses")
				}
				return
			}
			if tt.waits > 0 && h.isUrgent(epoch.Add(tt.waits-time.Second)) {
				t.Error("it presses too early")
			}
			if !h.isUrgent(epoch.Add(tt.waits)) {
				t.Error("it does not press in time")
			}
		})
	}
}

func TestI7OnlyItsOwnSourceEndsANotice(t *testing.T) {
	onMachine(t, time.Second, func(t *testing.T, m *machine) {
		other := &teller{name: "condition", news: make(chan struct{}, 1)}
		m.start(t, 0, func(o *Options) {
			o.Sources = append(o.Sources, other)
			o.Impact.Conditions = map[string]Action{"shared": Cordon}
		})
		reboot := announced(notice.Reboot, "shared", time.Hour) // the same ID in both
		m.source.say(reboot)
		other.say(announced(notice.Condition, "shared", 0))
		time.Sleep(time.Minute)
		other.say()
		time.Sleep(time.Minute)
		if n := m.see(); !n.Spec.Unschedulable || len(n.Annotations) != 1 {
			t.Errorf("after the condition's end the node has %v, %v", n.Spec, n.Annotations)
		}
		m.source.say()
		time.Sleep(time.Minute)
		if n := m.see(); n.Spec.Unschedulable || len(n.Annotations) != 0 || len(n.Status.Conditions) != 0 {
			t.Errorf("after both ends the node has %v, %v, %v", n.Spec, n.Annotations, n.Status)
		}
	})
}

func TestI3NoticeOfARemovedSourceIsCleared(t *testing.T) {
	onMachine(t, time.Second, func(t *testing.T, m *machine) {
		other := &teller{name: "condition", news: make(chan struct{}, 1)}
		m.start(t, 0, func(o *Options) {
			o.Sources = append(o.Sources, other)
			o.Impact.Conditions = map[string]Action{"KernelDeadlock": Cordon}
		})
		other.say(announced(notice.Condition, "KernelDeadlock", 0))
		time.Sleep(time.Minute)
		m.crash()
		if !m.see().Spec.Unschedulable {
			t.Fatal("not cordoned")
		}
		m.start(t, 0, nil)
		time.Sleep(time.Minute)
		if n := m.see(); n.Spec.Unschedulable || len(n.Annotations) != 0 {
			t.Errorf("still %v, %v", n.Spec, n.Annotations)
		}
	})
}

func TestConditionWithoutADrainSlotIsNotCordoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		first, second := newMachine(c, "first", 10*time.Minute), newMachine(c, "second", time.Second)
		for _, m := range []*machine{first, second} {
			m.source.name = "condition"
			m.start(t, 1, func(o *Options) { o.Impact.Conditions = map[string]Action{"X": Drain} })
		}
		first.source.say(announced(notice.Condition, "X", 0))
		time.Sleep(10 * time.Second)
		second.source.say(announced(notice.Condition, "X", 0))
		time.Sleep(5 * time.Minute)
		if n := second.see(); n.Spec.Unschedulable || !second.said("WaitingForDrainSlot") {
			t.Errorf("cordoned: %v, waiting said: %v", n.Spec.Unschedulable, second.said("WaitingForDrainSlot"))
		}
		time.Sleep(6 * time.Minute)
		if !second.see().Spec.Unschedulable || !second.empty() {
			t.Error("it never came to its turn")
		}
		first.crash()
		second.crash()
	})
}

func TestNoticeStopsWaitingForASlotInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		first, second := newMachine(c, "first", time.Hour), newMachine(c, "second", time.Second)
		first.start(t, 1, nil)
		second.start(t, 1, nil)
		first.source.say(announced(notice.Reboot, "a", 10*time.Hour))
		time.Sleep(10 * time.Second)
		began := time.Now()
		second.source.say(announced(notice.Reboot, "b", 15*time.Minute))
		time.Sleep(14 * time.Minute)
		if waited := second.asked().Sub(began); waited < 7*time.Minute || waited > 8*time.Minute {
			t.Errorf("it waited %s", waited)
		}
		first.crash()
		second.crash()
	})
}

func TestI6VoluntaryDrainStopsForAnotherTool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		m := newMachine(c, "n", 10*time.Minute)
		m.start(t, 0, nil)
		m.source.say(announced(notice.Reboot, "a", time.Hour))
		time.Sleep(10 * time.Second)
		_, _ = m.change("", func(n *kubeapi.Node) {
			n.Spec.Taints = []kubeapi.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"}}
		})
		time.Sleep(10 * time.Second)
		if n := c.drains(m.name); n != 0 || !m.said("OtherToolActive") {
			t.Errorf("%d drains go on beside the other tool's; said: %v", n, m.said("OtherToolActive"))
		}
		time.Sleep(51 * time.Minute) // the other tool does not get it done
		if n := c.drains(m.name); n == 0 && !m.empty() {
			t.Error("the pods were left to die with the machine")
		}
		m.crash()
	})
}

// TestI6NodeIsCordonedAfterTheOtherToolLeaves has the cordon of a Preempt be left to another tool.
func TestI6NodeIsCordonedAfterTheOtherToolLeaves(t *testing.T) {
	onMachine(t, 10*time.Minute, func(t *testing.T, m *machine) {
		taint := func(taints ...kubeapi.Taint) {
			_, _ = m.change("", func(n *kubeapi.Node) { n.Spec.Taints = taints })
		}
		taint(kubeapi.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"})
		m.start(t, 0, nil)
		m.source.say(announced(notice.Preempt, "p", time.Hour))
		time.Sleep(10 * time.Second)
		if n := m.see(); n.Spec.Unschedulable || len(n.Annotations) != 1 || m.asked().IsZero() {
			t.Errorf("beside the other tool the node is %+v, and pods were asked to leave at %s", n, m.asked())
		}
		taint()
		time.Sleep(10 * time.Second)
		if n := m.see(); !n.Spec.Unschedulable {
			t.Errorf("without the other tool the node is %+v", n)
		}
	})
}

// drains is how many drains follow the node's pods.
func (c *cluster) drains(node string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.draining[node]
}

// deed is one thing that happens to one of the machines.
type deed struct {
	after   time.Duration
	machine int
	what    string        // reboot, freeze, condition, preempt, over, crash, start, fault, mend, hide, show, rename, swap, uncordon
	window  time.Duration // of a Preempt
	fault   fault
	verbs   []string      // that fault is of
	silent  time.Duration // for how long the source cannot be read after a start
}

// season is a time in the life of a cluster.
type season struct {
	limit, machines int
	stops           []time.Duration
	deeds           []deed
}

func drawSeason(t *rapid.T) season {
	s := season{limit: rapid.IntRange(1, 2).Draw(t, "limit"), machines: rapid.IntRange(3, 5).Draw(t, "machines")}
	for range s.machines {
		s.stops = append(s.stops, time.Duration(rapid.IntRange(1, 90).Draw(t, "stops"))*time.Second)
	}
	for range rapid.IntRange(5, 25).Draw(t, "deeds") {
		s.deeds = append(s.deeds, deed{
			after:   time.Duration(rapid.IntRange(0, 40).Draw(t, "after")) * time.Second,
			machine: rapid.IntRange(0, s.machines-1).Draw(t, "machine"),
			what: rapid.SampledFrom([]string{
				"reboot", "reboot", "redeploy", "freeze", "condition", "preempt", "over", "crash", "start", "fault", "fault", "fault", "mend",
				"hide", "show", "rename", "swap", "uncordon",
			}).Draw(t, "what"),
			window: rapid.SampledFrom([]time.Duration{30 * time.Second, 5 * time.Minute, time.Hour}).Draw(t, "window"),
			fault:  drawFault(t),
			verbs:  rapid.SliceOfNDistinct(rapid.SampledFrom(verbs), 1, 4, rapid.ID[string]).Draw(t, "verbs"),
			silent: rapid.SampledFrom([]time.Duration{0, 0, 20 * time.Second, 10 * time.Minute}).Draw(t, "silent"),
		})
	}
	return s
}

// live is a machine in a season.
type live struct {
	*machine

	alive     bool
	readable  time.Time     // when the source of its agent can be read, or could be
	preempted time.Time     // since when its agent can read of a Preempt
	within    time.Duration // when its pods are asked to leave at the latest: a quarter of the Preempt's time and a second

	announced time.Time // since when an interruption is announced without a pause
	clear     time.Time // since when nothing is announced
	due       time.Time // of the last Preempt
	openings  int       // that were looked at
}

// tell has the machine's source list these notices from now on.
func (m *live) tell(notices ...notice.Notice) {
	m.source.say(notices...)
	switch interrupted := slices.ContainsFunc(notices, func(n notice.Notice) bool { return n.Type != notice.Condition }); {
	case !interrupted:
		m.announced = time.Time{}
	case m.announced.IsZero():
		m.announced = time.Now()
	}
	m.clear = time.Time{}
	if len(notices) == 0 {
		m.clear = time.Now()
	}
}

// wrong returns what the agent has done that its notices do not ask for.
func (m *live) wrong() (broken []string) {
	m.mu.Lock()
	opened, evicted := slices.Clone(m.opened), m.evicted
	m.mu.Unlock()
	for _, at := range opened[m.openings:] {
		if !m.announced.IsZero() && at.After(m.announced) {
			broken = append(broken, m.name+": takes pods again although an interruption is announced")
		}
	}
	m.openings = len(opened)
	if len(m.source.snapshot().Unreadable) > 0 && !m.clear.IsZero() {
		m.clear = time.Now() // the entry that cannot be understood may be any notice
	}
	if !m.clear.IsZero() && evicted.After(m.clear) && evicted.After(m.due) {
		broken = append(broken, m.name+": a pod was asked to leave although nothing is announced")
	}
	return broken
}

// canWait reports that only notices that can wait are live. Their deadlines are hours away.
func (m *live) canWait() bool {
	return !m.isPreempted() && !slices.ContainsFunc(m.source.all(), func(n notice.Notice) bool { return n.Status == notice.Started })
}

// isPreempted reports that a Preempt is announced.
func (m *live) isPreempted() bool {
	return slices.ContainsFunc(m.source.all(), func(n notice.Notice) bool { return n.Type == notice.Preempt })
}

func (s season) play(t *testing.T) (broken []string) {
	c := newCluster()
	var all []*live
	for i := range s.machines {
		m := &live{machine: newMachine(c, fmt.Sprint("node-", i), s.stops[i])}
		m.begin(t, s.limit, 0)
		all = append(all, m)
	}
	watch := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end) && len(broken) == 0; {
			time.Sleep(200 * time.Millisecond)
			drains := 0
			for _, m := range all {
				broken = append(broken, m.wrong()...)
				m.comeBack()
				if m.alive && m.canWait() && c.drains(m.name) > 0 && !m.empty() {
					drains++
				}
				late := m.alive && !m.preempted.IsZero() && time.Since(m.preempted) > m.within
				if late && !m.empty() && m.asked().IsZero() {
					broken = append(broken, m.name+": a Preempt waits")
				}
			}
			if drains > s.limit {
				broken = append(broken, fmt.Sprintf("%d drains that could wait at once, the limit is %d", drains, s.limit))
			}
		}
	}
	for i, d := range s.deeds {
		watch(d.after)
		s.happen(t, all[d.machine], d, fmt.Sprint("event-", i))
	}
	// No deadlock: whoever has an agent and a notice is drained in the end.
	for _, m := range all {
		m.faults.set(fault{}, verbs...)
		m.source.hide()
		if m.source.silent > 0 && m.alive {
			m.crash()
			m.alive = false
		}
		if !m.alive {
			m.begin(t, s.limit, 0)
		}
	}
	watch(time.Duration(s.machines) * 4 * time.Minute)
	for _, m := range all {
		if len(m.source.all()) > 0 && !m.empty() && len(broken) == 0 {
			broken = append(broken, m.name+": never drained")
		}
		m.tell()
	}
	// No trace: whatever failed, all is taken away once nothing is announced (I3).
	time.Sleep(2*dying + lastConditionRetry)
	for _, m := range all {
		if !m.isRestored() && len(broken) == 0 {
			broken = append(broken, fmt.Sprintf("%s: left on the node: %+v", m.name, m.see()))
		}
		m.crash()
	}
	return broken
}

// comeBack brings a pod to an empty node that takes pods and has no notice.
func (m *live) comeBack() {
	if m.empty() && len(m.source.all()) == 0 && !m.see().Spec.Unschedulable {
		m.replace()
		m.tellPods()
	}
}

// begin starts the machine's agent, which has just read the Node.
func (m *live) begin(t *testing.T, limit int, silent time.Duration) {
	m.source.silent = silent
	m.readable = time.Now().Add(silent)
	m.start(t, limit, func(o *Options) {
		o.Impact.Conditions = map[string]Action{"X": Drain}
		found := m.see()
		o.Found = &found
	})
	m.alive = true
}

func (s season) happen(t *testing.T, m *live, d deed, id string) {
	switch what := d.what; {
	case what == "fault":
		m.faults.set(d.fault, d.verbs...)
	case what == "mend":
		m.faults.set(fault{}, verbs...)
	case what == "crash" && m.alive:
		m.crash()
		m.alive, m.preempted = false, time.Time{}
	case what == "start" && !m.alive:
		m.begin(t, s.limit, d.silent)
		if m.isPreempted() {
			m.preempted = m.readable
		}
	case what == "hide":
		m.source.hide(notice.Problem{Err: errors.New("Events[0]: 7: want an object")})
	case what == "show":
		m.source.hide()
	case what == "rename": // every event but a condition goes on under another ID
		all := m.source.all()
		for i := range all {
			if all[i].Type != notice.Condition {
				all[i].ID += "-" + id
			}
		}
		m.tell(all...)
	case what == "swap" && len(m.source.all()) > 0 && !m.isPreempted(): // another interruption takes the place of all, and has begun
		n := announced(notice.Reboot, id, 0)
		n.Status, n.NotBefore = notice.Started, time.Time{}
		m.tell(n)
	case what == "uncordon":
		m.uncordon()
		m.mu.Lock()
		m.openings = len(m.opened) // it was not the agent
		m.mu.Unlock()
	case what == "crash", what == "start", what == "swap":
	case what == "over":
		m.tell()
		m.preempted = time.Time{}
	default:
		m.announce(d, id)
	}
}

// announce has a notice come beside those that are there.
func (m *live) announce(d deed, id string) {
	kind := map[string]notice.Type{
		"reboot": notice.Reboot, "redeploy": notice.Redeploy, "freeze": notice.Freeze, "condition": notice.Condition,
		"preempt": notice.Preempt,
	}[d.what]
	n := announced(kind, id, 24*time.Hour)
	if kind == notice.Condition {
		n.ID, n.Source = "X", "azure" // one source is enough here
	}
	if kind == notice.Preempt {
		n.NotBefore = time.Now().Add(d.window)
		m.due = n.NotBefore
		if m.preempted.IsZero() {
			m.within = d.window/4 + time.Second
		}
		if m.alive && m.preempted.IsZero() {
			m.preempted = time.Now()
			if m.readable.After(m.preempted) {
				m.preempted = m.readable
			}
		}
	}
	m.tell(append(m.source.all(), n)...)
}

// The whole of it: agents with their turns, on nodes that come and go, some of which die with a slot in their hands.
func TestDrainSlotsLimitOnlyDrainsThatCanWait(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawSeason(rt)
		var broken []string
		synctest.Test(t, func(t *testing.T) { broken = s.play(t) })
		if len(broken) > 0 {
			rt.Fatal(strings.Join(broken, "; "))
		}
	})
}
