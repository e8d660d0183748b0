package agent

import (
	"fmt"
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
			h := &handling{Notice: notice.Notice{Type: tt.kind}, Seen: Seen{First: epoch}}
			if tt.notice >= 0 {
				h.Decision.Deadline = epoch.Add(tt.notice)
			}
			if tt.waits < 0 {
				if h.pressing(epoch.Add(1000 * time.Hour)) {
					t.Error("it presses")
				}
				return
			}
			if tt.waits > 0 && h.pressing(epoch.Add(tt.waits-time.Second)) {
				t.Error("it presses too early")
			}
			if !h.pressing(epoch.Add(tt.waits)) {
				t.Error("it does not press in time")
			}
		})
	}
}

func TestI7ANoticeIsOverOnlyWhenItsOwnSourceSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newCluster(), "n", time.Second)
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
		m.crash()
	})
}

func TestI3ANoticeWhoseSourceIsNoLongerListenedToIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newCluster(), "n", time.Second)
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
		m.crash()
	})
}

func TestAConditionIsNotEvenCordonedForOutOfTurn(t *testing.T) {
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
		if n := second.see(); n.Spec.Unschedulable || !second.said("WaitingForTurn") {
			t.Errorf("cordoned: %v, waiting said: %v", n.Spec.Unschedulable, second.said("WaitingForTurn"))
		}
		time.Sleep(6 * time.Minute)
		if !second.see().Spec.Unschedulable || !second.empty() {
			t.Error("it never came to its turn")
		}
		first.crash()
		second.crash()
	})
}

func TestANoticeStopsWaitingForItsTurnInTimeToDrain(t *testing.T) {
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

func TestI6ADrainThatCanWaitStopsWhenAnotherToolComes(t *testing.T) {
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
		if n := c.drains(m.name); n != 0 || !m.said("OthersAtWork") {
			t.Errorf("%d drains go on beside the other tool's; said: %v", n, m.said("OthersAtWork"))
		}
		time.Sleep(51 * time.Minute) // the other tool does not get it done
		if n := c.drains(m.name); n == 0 && !m.empty() {
			t.Error("the pods were left to die with the machine")
		}
		m.crash()
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
	what    string // reboot, freeze, condition, preempt, over, crash, start
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
				"reboot", "reboot", "redeploy", "freeze", "condition", "preempt", "over", "crash", "start",
			}).Draw(t, "what"),
		})
	}
	return s
}

// live is a machine in a season.
type live struct {
	*machine

	alive     bool
	preempted time.Time // since when a Preempt stands on it, and it has an agent
}

// voluntary reports that only notices that can wait are live. Their deadlines are hours away.
func (m *live) voluntary() bool {
	for _, n := range m.source.all() {
		if n.Type == notice.Preempt {
			return false
		}
	}
	return true
}

func (s season) play(t *testing.T) (broken []string) {
	c := newCluster()
	policy := func(o *Options) { o.Impact.Conditions = map[string]Action{"X": Drain} }
	var all []*live
	for i := range s.machines {
		m := &live{machine: newMachine(c, fmt.Sprint("node-", i), s.stops[i]), alive: true}
		m.start(t, s.limit, policy)
		all = append(all, m)
	}
	watch := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end) && len(broken) == 0; {
			time.Sleep(200 * time.Millisecond)
			drains := 0
			for _, m := range all {
				if m.alive && m.voluntary() && c.drains(m.name) > 0 && !m.empty() {
					drains++
				}
				late := m.alive && !m.preempted.IsZero() && time.Since(m.preempted) > 5*time.Second
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
		s.happen(t, all[d.machine], d.what, fmt.Sprint("event-", i), policy)
	}
	// No deadlock: whoever has an agent and a notice is drained in the end.
	for _, m := range all {
		if !m.alive {
			m.start(t, s.limit, policy)
			m.alive = true
		}
	}
	watch(time.Duration(s.machines) * 4 * time.Minute)
	for _, m := range all {
		if len(m.source.all()) > 0 && !m.empty() && len(broken) == 0 {
			broken = append(broken, m.name+": never drained")
		}
		m.crash()
	}
	return broken
}

func (s season) happen(t *testing.T, m *live, what, id string, policy func(*Options)) {
	switch {
	case what == "crash" && m.alive:
		m.crash()
		m.alive, m.preempted = false, time.Time{}
	case what == "start" && !m.alive:
		m.start(t, s.limit, policy)
		m.alive = true
		if !m.voluntary() {
			m.preempted = time.Now()
		}
	case what == "crash", what == "start":
	case what == "over":
		m.source.say()
		m.preempted = time.Time{}
		if m.empty() {
			m.replace()
		}
	default:
		kind := map[string]notice.Type{
			"reboot": notice.Reboot, "redeploy": notice.Redeploy, "freeze": notice.Freeze, "condition": notice.Condition,
			"preempt": notice.Preempt,
		}[what]
		n := announced(kind, id, 24*time.Hour)
		if kind == notice.Condition {
			n.ID, n.Source = "X", "azure" // one source is enough here
		}
		if kind == notice.Preempt {
			n.NotBefore = time.Now().Add(time.Hour)
			if m.alive && m.preempted.IsZero() {
				m.preempted = time.Now()
			}
		}
		m.source.say(append(m.source.all(), n)...)
	}
}

// The whole of it: agents with their turns, on nodes that come and go, some of which die with a slot in their hands.
func TestNeverMoreDrainsThatCanWaitThanAllowedAndAPreemptNeverWaits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawSeason(rt)
		var broken []string
		synctest.Test(t, func(t *testing.T) { broken = s.play(t) })
		if len(broken) > 0 {
			rt.Fatal(strings.Join(broken, "; "))
		}
	})
}
