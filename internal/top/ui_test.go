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

// asked is Actions that writes down what was asked for.
type asked struct {
	log  []string
	text string
	err  error
}

func (a *asked) Why(ctx context.Context, node string) (string, error) {
	a.log = append(a.log, "why "+node)
	return a.text, errors.Join(a.err, ctx.Err())
}

func (a *asked) Plan(ctx context.Context) (string, error) {
	a.log = append(a.log, "plan")
	return a.text, errors.Join(a.err, ctx.Err())
}

func (a *asked) CallOff(_ context.Context, name string, uid types.UID) error {
	a.log = append(a.log, "call off "+name+" "+string(uid))
	return a.err
}

// terminal is a UI with somebody in front of it.
type terminal struct {
	t    *testing.T
	ui   *UI
	asks *asked
	quit bool
}

func newTerminal(t *testing.T, s State) *terminal {
	t.Helper()
	asks := &asked{}
	term := &terminal{t: t, ui: NewUI(t.Context(), asks, Options{Title: "https://aks.example.com", Now: noon}), asks: asks}
	term.send(tea.WindowSizeMsg{Width: 80, Height: 24})
	term.send(s)
	return term
}

// send gives the UI a message, and carries out what it asks for.
func (term *terminal) send(msg tea.Msg) {
	term.t.Helper()
	_, cmd := term.ui.Update(msg)
	if cmd == nil {
		return
	}
	switch next := cmd().(type) {
	case tea.QuitMsg:
		term.quit = true
	default:
		term.send(next)
	}
}

var special = map[string]rune{"up": tea.KeyUp, "down": tea.KeyDown, "esc": tea.KeyEscape, "enter": tea.KeyEnter, "end": tea.KeyEnd, "home": tea.KeyHome, "pgdown": tea.KeyPgDown}

func pressed(key string) tea.KeyPressMsg {
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
		term.send(pressed(key))
	}
}

func (term *terminal) sees(texts ...string) {
	term.t.Helper()
	for _, text := range texts {
		if !strings.Contains(words(ansi.Strip(term.ui.Screen())), words(text)) {
			term.t.Errorf("%q is not on the screen:\n%s", text, ansi.Strip(term.ui.Screen()))
		}
	}
}

// words are a text however it is broken into lines.
func words(s string) string { return strings.Join(strings.Fields(s), " ") }

func (term *terminal) wantAsked(want ...string) {
	term.t.Helper()
	if !slices.Equal(term.asks.log, want) {
		term.t.Errorf("asked for %q, want %q", term.asks.log, want)
	}
}

func TestBeforeTheFirstStateTheViewSaysThatItReads(t *testing.T) {
	term := &terminal{t: t, ui: NewUI(t.Context(), &asked{}, Options{Title: "c", Now: noon})}
	term.sees("reading the cluster")
	term.press("w", "c", "down", "p", "esc", "q")
	if !term.quit {
		t.Error("q does not quit")
	}
}

func TestTheCursorGoesFromNodeToNodeAndStopsAtTheEnds(t *testing.T) {
	term := newTerminal(t, Build(scene()))
	all := term.ui.names()
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

func TestTheCursorStaysOnItsNodeAndGoesToTheNextOneWhenThatIsGone(t *testing.T) {
	f := scene()
	term := newTerminal(t, Build(f))
	term.press("down", "down", "down")
	if term.ui.selected != pool+"3" {
		t.Fatalf("the cursor is on %s", term.ui.selected)
	}
	f.Nodes = slices.Delete(slices.Clone(f.Nodes), 0, 1)
	term.send(Build(f))
	if term.ui.selected != pool+"3" {
		t.Errorf("another node is gone, and the cursor is on %s", term.ui.selected)
	}
	f.Nodes = slices.Delete(slices.Clone(f.Nodes), 2, 3)
	term.send(Build(f))
	if term.ui.selected != pool+"4" {
		t.Errorf("its node is gone, and the cursor is on %s, want that of its place", term.ui.selected)
	}
	term.send(State{})
	term.press("w", "c")
	term.wantAsked()
}

func TestWhyShowsWhatHoldsTheRetirementUpAndWhatPlacementSays(t *testing.T) {
	term := newTerminal(t, Build(scene()))
	term.asks.text = "cannot go.\n\nHELD BY   BECAUSE"
	term.press("down", "down", "w")
	term.wantAsked("why " + pool + "2")
	term.sees("why "+pool+"2", "draining 7 of 12; waiting for PDB shop/web", "asked for by ann", "PodBlocked pod shop/web-1", "HELD BY   BECAUSE")
	term.press("esc")
	term.sees("NODE")
}

func TestWhyOfAMachineWithoutANodeAsksNobody(t *testing.T) {
	term := newTerminal(t, Build(scene()))
	for term.ui.selected != pool+"8" {
		term.press("down")
	}
	term.press("w")
	term.wantAsked()
	term.sees("VM deleting 0:12", "is NodeDeleted")
}

func TestAnAnswerThatDoesNotComeIsSaidWithItsRight(t *testing.T) {
	term := newTerminal(t, Build(scene()))
	term.asks.err = errors.New("list pods: forbidden: ClusterRole slipway-viewer in deploy/viewer")
	term.press("p")
	term.wantAsked("plan")
	term.sees("This cannot be told: list pods: forbidden", "slipway-viewer")
}

func TestALongAnswerScrolls(t *testing.T) {
	term := newTerminal(t, Build(scene()))
	term.asks.text = strings.Repeat("a line that is longer than the screen is wide, so that it goes on in the next one, indented\n", 30) + "the last"
	term.press("p")
	term.sees("lines 1 to 20 of 61", "\n    in the next one, indented")
	term.press("end")
	term.sees("the last", "of 61")
	term.send(tea.WindowSizeMsg{Width: 200, Height: 50})
	term.sees("the last", "a line that is longer")
	term.press("q")
	if term.quit {
		t.Error("q on a page quits")
	}
}

func TestAnAnswerToAPageThatWasLeftIsNotShown(t *testing.T) {
	term := newTerminal(t, Build(scene()))
	term.asks.text = "late"
	_, first := term.ui.Update(pressed("p"))
	term.press("esc")
	_, second := term.ui.Update(pressed("p"))
	term.send(first())
	term.sees("reading the cluster")
	term.send(second())
	term.sees("late")
}

func TestCallingOffAsksFirst(t *testing.T) {
	term := newTerminal(t, Build(scene()))
	term.press("down", "down", "c")
	term.sees("Call off "+pool+"2-x2m4z (Requested, Draining)? Its node is given back.", "y yes")
	term.press("n")
	term.wantAsked()
	term.sees("not called off")
	term.press("c", "enter")
	term.wantAsked()
	term.press("c", "y")
	term.wantAsked("call off " + pool + "2-x2m4z uid-rt-" + pool + "2")
	term.sees("is called off: the node will be given back")
}

func TestCallingOffWhatTheIdleRuleWantsSaysThatItMayAskAgain(t *testing.T) {
	f := scene()
	f.Retirements[0].Spec.Reason, f.Retirements[0].Spec.RequestedBy = v1alpha1.Idle, nodegroup.RequestedBy
	term := newTerminal(t, Build(f))
	term.press("down", "down", "c")
	term.sees("The idle rule may ask for it")
}

func TestARightThatIsMissingForCallingOffIsSaid(t *testing.T) {
	term := newTerminal(t, Build(scene()))
	term.asks.err = errors.New("a right is missing: may not delete")
	term.press("down", "down", "c", "y")
	term.sees("is not called off: a right is missing")
}

func TestThereIsNoWayBackOnceTheNodeIsDeleted(t *testing.T) {
	term := newTerminal(t, Build(scene()))
	term.press("c")
	term.sees("is not being retired")
	for term.ui.selected != pool+"8" {
		term.press("down")
	}
	term.press("c")
	term.sees("no way back")
	term.press("y")
	term.wantAsked()
}

func TestSecondsCountAndSizesChange(t *testing.T) {
	term := newTerminal(t, Build(scene()))
	term.sees("idle 3:12 of 5:00", "due in 0:24")
	if _, cmd := term.ui.Update(tick(noon.Add(10 * time.Second))); cmd == nil {
		t.Error("no second comes after this one")
	}
	term.sees("idle 3:22 of 5:00", "due in 0:14")
	for _, size := range []tea.WindowSizeMsg{{Width: 200, Height: 50}, {Width: 20, Height: 3}, {}, {Width: 80, Height: 24}} {
		term.send(size)
		for _, line := range strings.Split(ansi.Strip(term.ui.Screen()), "\n") {
			if w := ansi.StringWidth(line); w > max(size.Width, 1) {
				t.Errorf("%d cells on a screen of %d: %q", w, size.Width, line)
			}
		}
	}
}

func TestCtrlCQuitsFromWherever(t *testing.T) {
	for _, before := range [][]string{nil, {"p"}, {"down", "down", "c"}} {
		term := newTerminal(t, Build(scene()))
		term.press(before...)
		if term.press("ctrl+c"); !term.quit {
			t.Errorf("after %q", before)
		}
	}
}
