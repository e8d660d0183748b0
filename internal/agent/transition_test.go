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
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// drainGuard is the guard of a notice that may drain, with a drained node in its record.
var drainGuard = guard{action: Drain, recordedPhase: Drained, mayChangeNode: true, canStartDrain: true}

// guardChanges holds the guards of the table in docs/agent-reference.md.
var guardChanges = map[string]func(g *guard){
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

// with returns the guard for a condition of the table.
func (g guard) with(words string) guard {
	guardChanges[words](&g)
	return g
}

// readTableRows returns the rows of the page's table with these columns. It trims each cell.
func readTableRows(t *testing.T, page string, columns ...string) (found [][]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	must.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "| "+strings.Join(columns, " | ")+" |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")
	must.Not(t, !ok || len(lines) < 2, "%s has no table with the columns %v", page, columns)
	for _, line := range lines[1:] {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i, cell := range cells {
			cells[i] = strings.TrimSpace(cell)
		}
		found = append(found, cells)
	}
	return found
}

// phaseNames maps the constants' names to phases.
var phaseNames = map[string]Phase{
	"Noticed": Noticed, "Waiting": Waiting, "Yielded": Yielded, "Cordoned": Cordoned, "Draining": Draining, "Redraining": Redraining,
	"Drained": Drained, "NotDrained": NotDrained, "Acknowledged": Acknowledged, "Unguarded": Unguarded, "Releasing": Releasing,
}

func allPhases() []Phase { return slices.Sorted(maps.Values(phaseNames)) }

// parsePhases returns the phases that a cell names.
func parsePhases(t *testing.T, cell string) (all []Phase) {
	t.Helper()
	if rest, ok := strings.CutPrefix(cell, "any"); ok {
		return slices.DeleteFunc(allPhases(), func(p Phase) bool { return rest != "" && p == phaseNames[strings.TrimPrefix(rest, " but ")] })
	}
	for name := range strings.SplitSeq(cell, ", ") {
		p, ok := phaseNames[name]
		must.Not(t, !ok, "unknown phase %q", name)
		all = append(all, p)
	}
	return all
}

// transitionKey is an input in a phase, with the guard's text in the table.
type transitionKey struct {
	in, words string
	from      Phase
}

// transitionResult is the next phase and the effects.
type transitionResult struct {
	to   Phase
	once effect
}

// readTransitions reads the transitions from the page, and the guards of each input.
func readTransitions(t *testing.T) (map[transitionKey]transitionResult, map[input][]string) {
	t.Helper()
	effects := map[string]effect{"start clock": effectStartClock, "stop clock": effectStopClock, "tell drain": effectEmitDraining}
	all, guards := map[transitionKey]transitionResult{}, map[input][]string{}
	for _, row := range readTableRows(t, "../../docs/agent-reference.md", "input", "if", "from", "to", "once") {
		in, words := row[0], row[1]
		must.Not(t, guardChanges[words] == nil, "unknown guard %q", words)
		to, ok := phaseNames[row[3]]
		if row[3] == "recorded" {
			to, ok = drainGuard.with(words).recordedPhase, true
		}
		if !ok {
			t.Fatalf("unknown phase %q", row[3])
		}
		var once effect
		for name, e := range effects {
			if strings.Contains(row[4], name) {
				once |= e
			}
		}
		for _, p := range parsePhases(t, row[2]) {
			all[transitionKey{in, words, p}] = transitionResult{to, once}
		}
		guards[input(in)] = append(guards[input(in)], words)
	}
	return all, guards
}

// Pairs that are not in the table must keep their phase.
func TestTransitionsMatchTheTableInTheDocs(t *testing.T) {
	want, guards := readTransitions(t)
	for _, in := range []input{
		inputChecked, inputChanged, inputAwaited, inputEmptied, inputFailed, inputPodArrived, inputApproved, inputEnded,
		inputClaimRemoved, inputNodeReplaced, inputResumed,
	} {
		check.Not(t, len(guards[in]) == 0, "the table lacks the input %q", in)
		for _, words := range guards[in] {
			for _, p := range allPhases() {
				to, ok := want[transitionKey{string(in), words, p}]
				if !ok {
					to.to = p
				}
				if got, once := transition(p, in, drainGuard.with(words)); got != to.to || once != to.once {
					t.Errorf("%q, %s, if %q: to %q with effects %b, want %q with %b", p, in, words, got, once, to.to, to.once)
				}
			}
		}
	}
}

// forEachGuard calls do with every possible guard.
func forEachGuard(do func(g guard)) {
	for _, action := range Actions() {
		for _, recorded := range []Phase{Noticed, Cordoned, Draining, Drained, NotDrained, Acknowledged} {
			for bits := range 1 << 5 {
				bit := func(n int) bool { return bits>>n&1 == 1 }
				do(guard{action, recorded, bit(0), bit(1), bit(2), bit(3), bit(4)})
			}
		}
	}
}

func TestTransitionsKeepInvariants(t *testing.T) {
	forEachGuard(func(g guard) {
		for _, p := range allPhases() {
			next, _ := transition(p, inputChecked, g)
			if again, once := transition(next, inputChecked, g); again != next || once != 0 {
				t.Errorf("%q with %+v: checked twice %q becomes %q, effects %b", p, g, next, again, once)
			}
			if next.isDraining() && !p.isDraining() && (!g.action.includesDrain() || g.shouldYield || g.waitsForSlot || !g.mayChangeNode || !g.canStartDrain) {
				t.Errorf("%q with %+v: drains", p, g)
			}
			check.Not(t, p.isDrained() && next != p, "%q with %+v: a check moves a drained node to %q", p, g, next)
			if r := p.toRecordedPhase(g.recordedPhase); !slices.Contains([]Phase{Noticed, Cordoned, Draining, Drained, NotDrained, Acknowledged}, r) {
				t.Errorf("%q is recorded as %q, which other versions do not know", p, r)
			}
		}
	})
}

// The records hold a Freeze in each phase that an agent of the last release could record.
func TestI8RecordsOfTheLastReleaseContinue(t *testing.T) {
	for last, want := range map[Phase]Phase{
		Cordoned: Draining, Draining: Draining, Drained: Redraining, NotDrained: Draining, Acknowledged: Acknowledged,
	} {
		t.Run(string(last), virtual.InVirtualTime(func(t *testing.T) {
			record, err := os.ReadFile(filepath.Join("testdata", "records", string(last)+".json"))
			must.NoError(t, err)
			var r cordon.Record
			var h noticeState
			must.NoError(t, json.Unmarshal(record, &r))
			must.NoError(t, json.Unmarshal(r.State, &h))
			m := newTestNode(newFakeCluster(), "n", 30*time.Second)
			m.denyEvictions("web")
			_, _ = m.updateNode("", func(n *kubeapi.Node) {
				n.Spec.Unschedulable = true
				n.Annotations = map[string]string{cordon.AnnotationKey(r.Owner): string(record)}
			})
			m.source.setNotices(h.Notice)
			m.startAgent(t, 0, nil)
			time.Sleep(time.Minute)
			state := make(chan noticeState, 1)
			m.agent.updates <- func(context.Context) { state <- *m.agent.notices[r.Owner] }
			if got := <-state; got.Phase != want || got.Seen != h.Seen || got.DrainStarted.IsZero() {
				t.Errorf("phase %q, first seen %s, began %s; want %q", got.Phase, got.Seen.First, got.DrainStarted, want)
			}
			m.source.setNotices()
			time.Sleep(time.Minute)
			if !m.isRestored() {
				t.Errorf("after its end the node is %+v", m.currentNode())
			}
			m.crashAgent()
		}))
	}
}

func TestDryRunLeavesEarlierRecordsUnchanged(t *testing.T) {
	withTestNode(t, 30*time.Second, func(t *testing.T, m *testNode) {
		m.denyEvictions("web")
		m.startAgent(t, 0, nil)
		m.source.setNotices(newNotice(notice.Reboot, "e", time.Hour))
		time.Sleep(time.Minute)
		m.crashAgent()
		before := m.currentNode()
		m.source.setNotices(newNotice(notice.Reboot, "e", 2*time.Hour))
		m.startAgent(t, 0, func(o *Options) { o.DryRun = true })
		time.Sleep(time.Minute)
		m.source.setNotices()
		time.Sleep(time.Minute)
		if after := m.currentNode(); after.ResourceVersion != before.ResourceVersion {
			t.Errorf("the node is %+v, want %+v", after, before)
		}
	})
}
