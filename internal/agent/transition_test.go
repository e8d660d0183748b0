package agent

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// goes is the guard of a notice that may drain, and whose record says that its node is drained.
var goes = guard{action: Drain, recordedPhase: Drained, mayChangeNode: true, canStartDrain: true}

// guardOfWords are the guards of the table in docs/agent.md.
var guardOfWords = map[string]func(g *guard){
	"":                           func(*guard) {},
	"the action does not cordon": func(g *guard) { g.action = Acknowledge },
	"another tool removes the node, and the notice can wait": func(g *guard) { g.shouldYield = true },
	"the tools at work are not known, and there is time":     func(g *guard) { g.mayChangeNode = false },
	"a condition has put nothing on the node, and has no slot": func(g *guard) {
		g.waitsForSlot, g.waitsUncordoned = true, true
	},
	"an interruption has no slot":                  func(g *guard) { g.waitsForSlot = true },
	"the action is `cordon`":                       func(g *guard) { g.action = Cordon },
	"the node still takes pods, and there is time": func(g *guard) { g.canStartDrain = false },
	"nothing speaks against the drain":             func(*guard) {},
	"acknowledged before":                          func(g *guard) { g.recordedPhase = Acknowledged },
	"the drain gave up before":                     func(g *guard) { g.recordedPhase = NotDrained },
}

// with returns the guard that the words of the table describe.
func (g guard) with(words string) guard {
	guardOfWords[words](&g)
	return g
}

// rows returns the rows of the table in a page that has these columns, each cell without its blanks.
func rows(t *testing.T, page string, columns ...string) (found [][]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	must.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "| "+strings.Join(columns, " | ")+" |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")
	if !ok || len(lines) < 2 {
		t.Fatalf("%s has no table with the columns %v", page, columns)
	}
	for _, line := range lines[1:] {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i, cell := range cells {
			cells[i] = strings.TrimSpace(cell)
		}
		found = append(found, cells)
	}
	return found
}

// phaseNames are the phases by the names of their constants.
var phaseNames = map[string]Phase{
	"Noticed": Noticed, "Waiting": Waiting, "Yielded": Yielded, "Cordoned": Cordoned, "Draining": Draining, "Redraining": Redraining,
	"Drained": Drained, "NotDrained": NotDrained, "Acknowledged": Acknowledged, "Unguarded": Unguarded, "Releasing": Releasing,
}

func everyPhase() []Phase { return slices.Sorted(maps.Values(phaseNames)) }

// from returns the phases that a cell names.
func from(t *testing.T, cell string) (all []Phase) {
	t.Helper()
	if rest, ok := strings.CutPrefix(cell, "any"); ok {
		return slices.DeleteFunc(everyPhase(), func(p Phase) bool { return rest != "" && p == phaseNames[strings.TrimPrefix(rest, " but ")] })
	}
	for name := range strings.SplitSeq(cell, ", ") {
		p, ok := phaseNames[name]
		if !ok {
			t.Fatalf("%q is no phase", name)
		}
		all = append(all, p)
	}
	return all
}

// pair is a phase and an input, with the guard's words.
type pair struct {
	in, words string
	from      Phase
}

// result is what follows.
type result struct {
	to   Phase
	once effect
}

// transitionsOfPage reads the table of the page, and which guards it has for which input.
func transitionsOfPage(t *testing.T) (map[pair]result, map[input][]string) {
	t.Helper()
	effects := map[string]effect{"start clock": effectStartClock, "stop clock": effectStopClock, "tell drain": effectEmitDraining}
	all, guards := map[pair]result{}, map[input][]string{}
	for _, row := range rows(t, "../../docs/agent.md", "input", "if", "from", "to", "once") {
		in, words := row[0], row[1]
		if guardOfWords[words] == nil {
			t.Fatalf("no guard is known for %q", words)
		}
		to, ok := phaseNames[row[3]]
		if row[3] == "recorded" {
			to, ok = goes.with(words).recordedPhase, true
		}
		if !ok {
			t.Fatalf("%q is no phase", row[3])
		}
		var once effect
		for name, e := range effects {
			if strings.Contains(row[4], name) {
				once |= e
			}
		}
		for _, p := range from(t, row[2]) {
			all[pair{in, words, p}] = result{to, once}
		}
		guards[input(in)] = append(guards[input(in)], words)
	}
	return all, guards
}

// TestTransitionsMatchTheTableInTheDocs also has every pair that is not in the table keep its phase.
func TestTransitionsMatchTheTableInTheDocs(t *testing.T) {
	want, guards := transitionsOfPage(t)
	for _, in := range []input{
		inputChecked, inputChanged, inputAwaited, inputEmptied, inputFailed, inputPodArrived, inputApproved, inputEnded,
		inputClaimRemoved, inputNodeReplaced, inputResumed,
	} {
		if len(guards[in]) == 0 {
			t.Errorf("the table lacks the input %q", in)
		}
		for _, words := range guards[in] {
			for _, p := range everyPhase() {
				to, ok := want[pair{string(in), words, p}]
				if !ok {
					to.to = p
				}
				if got, once := transition(p, in, goes.with(words)); got != to.to || once != to.once {
					t.Errorf("%q, %s, if %q: to %q with effects %b, want %q with %b", p, in, words, got, once, to.to, to.once)
				}
			}
		}
	}
}

// everyGuard calls do with all guards that there are.
func everyGuard(do func(g guard)) {
	for _, action := range Actions() {
		for _, recorded := range []Phase{Noticed, Cordoned, Draining, Drained, NotDrained, Acknowledged} {
			for bits := range 1 << 5 {
				bit := func(n int) bool { return bits>>n&1 == 1 }
				do(guard{action, recorded, bit(0), bit(1), bit(2), bit(3), bit(4)})
			}
		}
	}
}

func TestTransitionsKeepTheirPromises(t *testing.T) {
	everyGuard(func(g guard) {
		for _, p := range everyPhase() {
			next, _ := transition(p, inputChecked, g)
			if again, once := transition(next, inputChecked, g); again != next || once != 0 {
				t.Errorf("%q with %+v: checked twice %q becomes %q, effects %b", p, g, next, again, once)
			}
			if next.isDraining() && !p.isDraining() && (!g.action.includesDrain() || g.shouldYield || g.waitsForSlot || !g.mayChangeNode || !g.canStartDrain) {
				t.Errorf("%q with %+v: drains", p, g)
			}
			if p.isDrained() && next != p {
				t.Errorf("%q with %+v: a drained node becomes %q by a look", p, g, next)
			}
			if r := p.toRecorded(g.recordedPhase); !slices.Contains([]Phase{Noticed, Cordoned, Draining, Drained, NotDrained, Acknowledged}, r) {
				t.Errorf("%q is recorded as %q, which no other version knows", p, r)
			}
		}
	})
}

// TestI8RecordsOfTheLastReleaseContinue has a Freeze be in each phase that its agent recorded.
func TestI8RecordsOfTheLastReleaseContinue(t *testing.T) {
	for last, want := range map[Phase]Phase{
		Cordoned: Draining, Draining: Draining, Drained: Redraining, NotDrained: Draining, Acknowledged: Acknowledged,
	} {
		t.Run(string(last), virtual.Time(func(t *testing.T) {
			record, err := os.ReadFile(filepath.Join("testdata", "records", string(last)+".json"))
			must.NoError(t, err)
			var r cordon.Record
			var h noticeState
			must.NoError(t, json.Unmarshal(record, &r))
			must.NoError(t, json.Unmarshal(r.State, &h))
			m := newMachine(newCluster(), "n", 30*time.Second)
			m.denied("web")
			_, _ = m.change("", func(n *kubeapi.Node) {
				n.Spec.Unschedulable = true
				n.Annotations = map[string]string{cordon.AnnotationKey(r.Owner): string(record)}
			})
			m.source.say(h.Notice)
			m.start(t, 0, nil)
			time.Sleep(time.Minute)
			state := make(chan noticeState, 1)
			m.agent.updates <- func(context.Context) { state <- *m.agent.notices[r.Owner] }
			if got := <-state; got.Phase != want || got.Seen != h.Seen || got.Began.IsZero() {
				t.Errorf("phase %q, first seen %s, began %s; want %q", got.Phase, got.Seen.First, got.Began, want)
			}
			m.source.say()
			time.Sleep(time.Minute)
			if !m.isRestored() {
				t.Errorf("after its end the node is %+v", m.see())
			}
			m.crash()
		}))
	}
}

func TestDryRunLeavesEarlierRecordsUnchanged(t *testing.T) {
	onMachine(t, 30*time.Second, func(t *testing.T, m *machine) {
		m.denied("web")
		m.start(t, 0, nil)
		m.source.say(announced(notice.Reboot, "e", time.Hour))
		time.Sleep(time.Minute)
		m.crash()
		before := m.see()
		m.source.say(announced(notice.Reboot, "e", 2*time.Hour))
		m.start(t, 0, func(o *Options) { o.DryRun = true })
		time.Sleep(time.Minute)
		m.source.say()
		time.Sleep(time.Minute)
		if after := m.see(); after.ResourceVersion != before.ResourceVersion {
			t.Errorf("the node is %+v, want %+v", after, before)
		}
	})
}
