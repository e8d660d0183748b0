package top

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
)

// recordedActions implements Actions and records the calls.
type recordedActions struct {
	log       []string // of calls that send requests
	described []string
	pods      []PaneLine // further lines of each node
	text      string
	err       error
}

func (a *recordedActions) ExplainNode(ctx context.Context, node string) (string, error) {
	a.log = append(a.log, "why "+node)
	return a.text, errors.Join(a.err, ctx.Err())
}

func (a *recordedActions) DescribeNodePods(_ context.Context, node string) (NodePods, error) {
	a.described = append(a.described, node)
	return NodePods{Node: node, Lines: append([]PaneLine{{Trouble, "a pod of " + node}}, a.pods...)}, a.err
}

func (a *recordedActions) ExplainPlan(ctx context.Context) (string, error) {
	a.log = append(a.log, "plan")
	return a.text, errors.Join(a.err, ctx.Err())
}

func (a *recordedActions) CancelRetirement(_ context.Context, name string, uid types.UID) error {
	a.log = append(a.log, "cancel "+name+" "+string(uid))
	return a.err
}

// terminal runs a UI in a test.
type terminal struct {
	t    *testing.T
	ui   *UI
	asks *recordedActions
	quit bool
}

func newTerminal(t *testing.T, s State) *terminal {
	t.Helper()
	asks := &recordedActions{}
	term := &terminal{t: t, ui: NewUI(t.Context(), asks, Options{Title: "https://aks.example.com", Now: noon}), asks: asks}
	term.send(tea.WindowSizeMsg{Width: 80, Height: 24})
	term.send(s)
	return term
}

// send passes a message to the UI and runs the resulting commands.
func (term *terminal) send(msg tea.Msg) {
	term.t.Helper()
	_, cmd := term.ui.Update(msg)
	term.run(cmd)
}

// run runs a command and passes its result to the UI.
func (term *terminal) run(cmd tea.Cmd) {
	term.t.Helper()
	if cmd == nil {
		return
	}
	switch next := cmd().(type) {
	case tea.QuitMsg:
		term.quit = true
	case tea.BatchMsg:
		for _, cmd := range next {
			term.run(cmd)
		}
	default:
		term.send(next)
	}
}

var special = map[string]rune{"backspace": tea.KeyBackspace, "up": tea.KeyUp, "down": tea.KeyDown, "esc": tea.KeyEscape, "enter": tea.KeyEnter, "end": tea.KeyEnd, "home": tea.KeyHome, "pgdown": tea.KeyPgDown, "tab": tea.KeyTab}

func newKeyPress(key string) tea.KeyPressMsg {
	if key == "ctrl+c" {
		return tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}
	}
	if code, is := special[key]; is {
		return tea.KeyPressMsg{Code: code}
	}
	return tea.KeyPressMsg{Code: []rune(key)[0], Text: key}
}

func (term *terminal) press(keys ...string) {
	term.t.Helper()
	for _, key := range keys {
		term.send(newKeyPress(key))
	}
}

func (term *terminal) checkScreen(texts ...string) {
	term.t.Helper()
	for _, text := range texts {
		if !strings.Contains(normalizeSpace(ansi.Strip(term.ui.RenderScreen())), normalizeSpace(text)) {
			term.t.Errorf("%q is not on the screen:\n%s", text, ansi.Strip(term.ui.RenderScreen()))
		}
	}
}

// normalizeSpace makes a text independent of its line breaks.
func normalizeSpace(s string) string { return strings.Join(strings.Fields(s), " ") }

func (term *terminal) checkCalls(want ...string) {
	term.t.Helper()
	if !slices.Equal(term.asks.log, want) {
		term.t.Errorf("asked for %q, want %q", term.asks.log, want)
	}
}

func TestViewShowsReadingBeforeFirstState(t *testing.T) {
	term := &terminal{t: t, ui: NewUI(t.Context(), &recordedActions{}, Options{Title: "c", Now: noon})}
	term.checkScreen("reading the cluster")
	term.press("w", "c", "down", "p", "esc", "q")
	if !term.quit {
		t.Error("q does not quit")
	}
}

func TestCursorMovesAndStopsAtEnds(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	all := term.ui.listNodeNames()
	for _, step := range []struct{ key, want string }{
		{"up", all[0]},
		{"down", all[1]},
		{"j", all[2]},
		{"k", all[1]},
		{"end", all[len(all)-1]},
		{"down", all[len(all)-1]},
		{"g", all[0]},
		{"pgdown", all[12]},
		{"home", all[0]},
		{"x", all[0]},
	} {
		if term.press(step.key); term.ui.selected != step.want {
			t.Fatalf("after %s the cursor is on %s, want %s", step.key, term.ui.selected, step.want)
		}
	}
}

func TestCursorFollowsItsNode(t *testing.T) {
	f := newSceneFacts()
	term := newTerminal(t, BuildState(f))
	term.press("down", "down", "down")
	if term.ui.selected != pool+"3" {
		t.Fatalf("the cursor is on %s", term.ui.selected)
	}
	f.Nodes = slices.Delete(slices.Clone(f.Nodes), 0, 1)
	term.send(BuildState(f))
	if term.ui.selected != pool+"3" {
		t.Errorf("another node is gone, and the cursor is on %s", term.ui.selected)
	}
	f.Nodes = slices.Delete(slices.Clone(f.Nodes), 2, 3)
	term.send(BuildState(f))
	if term.ui.selected != pool+"4" {
		t.Errorf("its node is gone, and the cursor is on %s, want that of its place", term.ui.selected)
	}
	term.send(State{})
	term.press("w", "c")
	term.checkCalls()
}

func TestWhyShowsRetirementReasonsAndPlacement(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.asks.text = "cannot be removed.\n\nBLOCKED BY   REASON"
	term.press("down", "down", "w")
	term.checkCalls("why " + pool + "2")
	term.checkScreen("why "+pool+"2", "draining 7 of 12; waiting for PDB shop/web", "requested by ann", "PodBlocked pod shop/web-1", "BLOCKED BY   REASON")
	term.press("esc")
	term.checkScreen("NODE")
}

func TestWhyOfInstanceWithoutNodeCallsNothing(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	for term.ui.selected != pool+"8" {
		term.press("down")
	}
	term.press("w")
	term.checkCalls()
	term.checkScreen("VM deleting 0:12", "is NodeDeleted")
}

func TestForbiddenAnswerNamesPermission(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.asks.err = errors.New("list pods: forbidden: ClusterRole slipway-viewer in deploy/viewer")
	term.press("p")
	term.checkCalls("plan")
	term.checkScreen("Error:  list pods: forbidden", "slipway-viewer")
}

func TestLongAnswerScrolls(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.asks.text = strings.Repeat("a line that is longer than the screen is wide, so that it goes on in the next one, indented\n", 30) + "the last"
	term.press("p")
	term.checkScreen("lines 1 to 20 of 61", "\n    in the next one, indented")
	term.press("end")
	term.checkScreen("the last", "of 61")
	term.send(tea.WindowSizeMsg{Width: 200, Height: 50})
	term.checkScreen("the last", "a line that is longer")
	term.press("q")
	if term.quit {
		t.Error("q on a page quits")
	}
}

func TestAnswerToClosedPageIsDropped(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.asks.text = "late"
	_, first := term.ui.Update(newKeyPress("p"))
	term.press("esc")
	_, second := term.ui.Update(newKeyPress("p"))
	term.send(first())
	term.checkScreen("reading the cluster")
	term.send(second())
	term.checkScreen("late")
}

func TestCancelAsksForConfirmation(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.press("down", "down", "c")
	term.checkScreen("Cancel "+pool+"2-x2m4z (Requested, Draining)? Its node will be restored.", "y yes")
	term.press("n")
	term.checkCalls()
	term.checkScreen("not cancelled")
	term.press("c", "enter")
	term.checkCalls()
	term.press("c", "y")
	term.checkCalls("cancel " + pool + "2-x2m4z uid-rt-" + pool + "2")
	term.checkScreen("is cancelled: the node will be restored")
}

func TestCancelWarnsAboutIdleRule(t *testing.T) {
	f := newSceneFacts()
	f.Retirements[0].Spec.Reason, f.Retirements[0].Spec.RequestedBy = v1alpha1.Idle, nodegroup.IdleRequester
	term := newTerminal(t, BuildState(f))
	term.press("down", "down", "c")
	term.checkScreen("The idle rule can request it")
}

func TestForbiddenCancelNamesPermission(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.asks.err = errors.New("a right is missing: may not delete")
	term.press("down", "down", "c", "y")
	term.checkScreen("is not cancelled: a right is missing")
}

func TestRetirementCannotBeCancelledAfterNodeDeletion(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.press("c")
	term.checkScreen("has no retirement to cancel")
	for term.ui.selected != pool+"8" {
		term.press("down")
	}
	term.press("c")
	term.checkScreen("its Node is deleted or it has ended")
	term.press("y")
	term.checkCalls()
}

func TestCancelIsRefusedIfNodeIsDeletedDuringQuestion(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Facts)
		want   string
	}{
		"the Node is deleted": {func(f *Facts) { f.Retirements[0].Status.Phase = v1alpha1.NodeDeleted }, "its Node is deleted or it has ended"},
		"it has finished":     {func(f *Facts) { f.Retirements = f.Retirements[1:] }, pool + "2-x2m4z has ended or is not shown any more"},
		"a filter hides it":   {func(*Facts) {}, "is cancelled: the node will be restored"},
		"an earlier Node of the same name is still being retired": {func(f *Facts) {
			old := newRetirement(pool+"2", withPhase(v1alpha1.NodeDeleted, ""))
			old.Name, old.UID, old.Status.Captured = "old", "old", &v1alpha1.Captured{NodeUID: "earlier"}
			f.Retirements = append([]v1alpha1.NodeRetirement{old}, f.Retirements...)
		}, "is cancelled: the node will be restored"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newSceneFacts()
			term := newTerminal(t, BuildState(f))
			term.press("down", "down", "c")
			tt.change(&f)
			term.ui.filter = "system"
			term.send(BuildState(f))
			term.press("y")
			term.checkScreen(tt.want)
			if strings.Contains(tt.want, "is cancelled") {
				term.checkCalls("cancel " + pool + "2-x2m4z uid-rt-" + pool + "2")
			} else {
				term.checkCalls()
			}
		})
	}
}

func TestViewFollowsTimeAndSize(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.checkScreen("idle 3:12 of 5:00", "due in 0:24")
	if _, cmd := term.ui.Update(tick(noon.Add(10 * time.Second))); cmd == nil {
		t.Error("no second comes after this one")
	}
	term.checkScreen("idle 3:22 of 5:00", "due in 0:14")
	for _, size := range []tea.WindowSizeMsg{{Width: 200, Height: 50}, {Width: 20, Height: 3}, {}, {Width: 80, Height: 24}} {
		term.send(size)
		for _, line := range strings.Split(ansi.Strip(term.ui.RenderScreen()), "\n") {
			if w := ansi.StringWidth(line); w > max(size.Width, 1) {
				t.Errorf("%d cells on a screen of %d: %q", w, size.Width, line)
			}
		}
	}
}

func TestCtrlCQuitsEverywhere(t *testing.T) {
	for _, before := range [][]string{nil, {"p"}, {"down", "down", "c"}} {
		term := newTerminal(t, BuildState(newSceneFacts()))
		term.press(before...)
		if term.press("ctrl+c"); !term.quit {
			t.Errorf("after %q", before)
		}
	}
}
