package top

import (
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestNothingIsCutBesideABar(t *testing.T) {
	s := BuildState(newSceneFacts())
	barAt := 0
	for width := 40; width <= 200; width++ {
		on := newScreen(width, 60)
		c := on.layOutColumns(s)
		var all string
		for _, g := range s.Groups {
			for _, n := range g.Nodes {
				all += on.renderCells(n, c) + "\n"
			}
		}
		bar, cut := strings.ContainsAny(all, "█░"), strings.Contains(all, "…") || strings.Contains(all, "..")
		if bar && cut {
			t.Errorf("width %d has bars and cut texts:\n%s", width, all)
		}
		if bar && barAt == 0 {
			barAt = width
		}
		if strings.Contains(all, "Standard_D16s_v5") != (c.instanceType > 0) {
			t.Errorf("width %d: the type is shown in part:\n%s", width, all)
		}
	}
	if barAt == 0 || barAt > 200 {
		t.Error("no width has bars")
	}
}

func TestColumnsFitEveryWidthFrom40To200(t *testing.T) {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab-é漢字…")), 0, 40, -1)
	rapid.Check(t, func(t *rapid.T) {
		s := BuildState(newSceneFacts())
		for i := range s.Groups {
			for j := range s.Groups[i].Nodes {
				n := &s.Groups[i].Nodes[j]
				n.InstanceType, n.Zone, n.Activity.Detail = text.Draw(t, "type"), text.Draw(t, "zone"), text.Draw(t, "detail")
			}
		}
		on := newScreen(rapid.IntRange(40, 200).Draw(t, "width"), 60)
		on.Sort = rapid.SampledFrom([]Sort{{}, {SortByCPU, true}, {SortByName, false}, {SortByActivity, true}}).Draw(t, "sort")
		c := on.layOutColumns(s)
		for _, g := range s.Groups {
			for _, n := range g.Nodes {
				if w := ansi.StringWidth("> " + on.renderCells(n, c)); w > on.Width {
					t.Errorf("%d cells on a screen of %d", w, on.Width)
				}
				if !strings.HasSuffix(on.renderCells(n, c), screenText(n, on, c)) {
					t.Errorf("%q lacks its state", on.renderCells(n, c))
				}
			}
		}
		if w := ansi.StringWidth(strings.TrimRight(on.renderColumnTitles(c), " ")); w > on.Width {
			t.Errorf("the titles have %d cells on a screen of %d", w, on.Width)
		}
	})
}

func screenText(n Node, on Screen, c columns) string {
	return ansi.Truncate(strings.TrimRight(n.Activity.Describe(on.Now), " "), c.doing, "…")
}

func listNames(s State) (names []string) {
	for _, g := range s.Groups {
		for i := range g.Nodes {
			names = append(names, g.Nodes[i].Name)
		}
	}
	return names
}

func TestSortOrdersNodesInTheirGroups(t *testing.T) {
	s := BuildState(newSceneFacts())
	byName := listNames(s)
	for _, tt := range []struct {
		order Sort
		first string // of the group runners
		last  string
	}{
		{Sort{SortByCPU, true}, pool + "4", "aks-runners-12345678-vmss_9"},
		{Sort{SortByCPU, false}, pool + "3", "aks-runners-12345678-vmss_9"},
		{Sort{SortByMemory, true}, pool + "4", "aks-runners-12345678-vmss_9"},
		{Sort{SortByAge, false}, pool + "0", "aks-runners-12345678-vmss_9"},
		{Sort{SortByAge, true}, pool + "5", "aks-runners-12345678-vmss_9"},
		{Sort{SortByActivity, true}, pool + "2", pool + "0"},
		{Sort{SortByName, true}, "aks-runners-12345678-vmss_9", "(2 more)"},
	} {
		got := listNames(s.filterAndSort("", tt.order, noon))
		runners := got[:len(s.Groups[0].Nodes)]
		if runners[0] != tt.first || runners[len(runners)-1] != tt.last {
			t.Errorf("%v: %q", tt.order, runners)
		}
	}
	check.Equal(t, byName, listNames(s)) // the State itself is unchanged
}

func TestPriceHasAColumnOnlyIfKnown(t *testing.T) {
	f := newSceneFacts()
	wide := newScreen(200, 40)
	if text := RenderState(BuildState(f), wide); strings.Contains(text, "PRICE") {
		t.Errorf("no price is known:\n%s", ansi.Strip(text))
	}
	f.Nodes[3].Labels[priceLabel] = "1234.5"
	f.Groups[1].Status.Provisioning.Learned = []v1alpha1.LearnedTemplate{{Name: "standard_d16s_V5", Cost: "0.76800001"}}
	term := newTerminal(t, BuildState(f))
	term.press("R")
	for _, tt := range []struct {
		width int
		shown bool
	}{{80, false}, {200, true}} {
		term.send(tea.WindowSizeMsg{Width: tt.width, Height: 40})
		text := ansi.Strip(term.ui.RenderScreen())
		if got := strings.Contains(text, "PRICE↓"); got != tt.shown {
			t.Errorf("%d cells: the column is shown: %t, want %t:\n%s", tt.width, got, tt.shown, text)
		}
	}
	term.checkScreen("60m 0.768 12", "10h 1234 0") // age, price, pods
	if first := listNames(term.ui.state)[0]; first != pool+"3" {
		t.Errorf("the first node is %s, want the one with the highest price", first)
	}
}

func TestFilterHidesNodesAndKeepsCounts(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.press("/", "N", "O", "T", " ", "r", "q")
	term.checkScreen("/NOT rq_", "no node matches the filter NOT rq", "10 nodes, 2 retiring")
	term.press("backspace", "e", "enter")
	if got := listNames(term.ui.state); !slices.Equal(got, []string{"spot-1"}) || term.ui.selected != "spot-1" {
		t.Errorf("shown %q, selected %s", got, term.ui.selected)
	}
	term.checkScreen("filter NOT re", "10 nodes, 2 retiring", "spot: 3 nodes (1 to 6)")
	term.press("esc")
	if got := len(listNames(term.ui.state)); got != len(listNames(term.ui.whole)) {
		t.Errorf("%d nodes after Esc", got)
	}
	term.press("/", "!", "r", "u", "n", "n", "enter")
	if got := listNames(term.ui.state); !slices.Equal(got, []string{"spot-0", "spot-1", "spot-2", "system-0"}) {
		t.Errorf("shown %q", got)
	}
	term.checkCalls()
}

func TestSortKeyReversesOnSecondPress(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.press("C")
	term.checkScreen("CPU↓")
	term.press("C")
	term.checkScreen("CPU↑")
	term.press("N", "home")
	term.checkScreen("NODE↑")
	if term.ui.selected != "(2 more)" {
		t.Errorf("the first line is %s", term.ui.selected)
	}
}

func TestMemoryStaysBoundedAt5000Nodes(t *testing.T) {
	f := newSceneFacts()
	scene := f.Nodes
	f.Nodes = nil
	for i := range 5000 {
		n := *scene[i%len(scene)].DeepCopy()
		n.Name += "-" + time.Duration(i).String()
		f.Nodes = append(f.Nodes, n)
	}
	s := BuildState(f)
	term := newTerminal(t, s)
	term.send(tall)
	show := func() {
		for range 10 {
			term.send(s)
			term.press("down", "C", "e", "e", "/", "s", "esc", "enter", "enter")
			_ = term.ui.RenderScreen()
		}
	}
	show()
	before := heapSize()
	show()
	if grown := heapSize() - before; grown > 2<<20 {
		t.Errorf("the view grew by %d bytes", grown)
	}
}
