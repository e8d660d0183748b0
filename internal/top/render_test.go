package top

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/screen"
	"github.com/slipway-dev/slipway/internal/testing/golden"
)

// trimTrailingSpace returns a screen without colors and trailing spaces.
func trimTrailingSpace(s string) string {
	lines := strings.Split(ansi.Strip(s), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

func newScreen(width, height int) Screen {
	return Screen{Width: width, Height: height, Now: noon, Title: "https://aks.example.com", Selected: pool + "2", Footer: []string{formatKeyHints(keyHints, width)}}
}

func TestScreensMatchGoldenFiles(t *testing.T) {
	ascii := newScreen(80, 24)
	ascii.ASCII = true
	refused := newSceneFacts()
	refused.Loads, refused.Decisions = nil, nil
	refused.Problems = []string{"you may not list and watch pods: bind ClusterRole slipway-top (deploy/viewer)"}
	for name, tt := range map[string]struct {
		facts Facts
		on    Screen
	}{
		"80x24.txt":         {newSceneFacts(), newScreen(80, 24)},
		"200x50.txt":        {newSceneFacts(), newScreen(200, 50)},
		"80x24-ascii.txt":   {newSceneFacts(), ascii},
		"80x24-refused.txt": {refused, newScreen(80, 24)},
		"40x12.txt":         {newSceneFacts(), newScreen(40, 12)},
		"80x24-empty.txt":   {Facts{Now: noon}, newScreen(80, 24)},
	} {
		t.Run(name, func(t *testing.T) {
			golden.Check(t, filepath.Join("testdata", name), trimTrailingSpace(RenderState(BuildState(tt.facts), tt.on)))
		})
	}
}

func TestDocumentationShowsScreen(t *testing.T) {
	const fence = "```\n"
	file := filepath.Join("..", "..", "docs", "top.md")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, opened := strings.Cut(string(page), fence)
	_, after, closed := strings.Cut(rest, fence)
	if !opened || !closed {
		t.Fatalf("%s has no screen between two lines %q", file, fence)
	}
	want := trimTrailingSpace(RenderState(BuildState(newSceneFacts()), newScreen(80, 23)))
	golden.Check(t, file, before+fence+want+fence+after)
}

func TestColorsDoNotChangeText(t *testing.T) {
	s := RenderState(BuildState(newSceneFacts()), newScreen(80, 40))
	if !strings.Contains(s, "\x1b[") {
		t.Fatal("the screen has no colors")
	}
	for _, phrase := range []string{"> aks-ru..", "due in 0:24", "waiting for PDB shop/web", "not Ready 1:30", "protected", "! next launch"} {
		if !strings.Contains(ansi.Strip(s), phrase) {
			t.Errorf("%q is missing without colors:\n%s", phrase, ansi.Strip(s))
		}
	}
}

func TestAnyStateFitsAnyScreen(t *testing.T) {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab-é漢字\x1b[2J\n\t\u009b…")), 0, 60, -1)
	rapid.Check(t, func(t *rapid.T) {
		on := Screen{
			Width: rapid.IntRange(1, 220).Draw(t, "width"), Height: rapid.IntRange(1, 60).Draw(t, "height"),
			Now: noon, Title: text.Draw(t, "title"), ASCII: rapid.Bool().Draw(t, "ascii"), Footer: []string{text.Draw(t, "footer")},
		}
		on.Pane = Pane{
			Title: text.Draw(t, "pane"), FirstLine: rapid.IntRange(-1, 80).Draw(t, "first line of the pane"),
			Lines: slices.Repeat([]PaneLine{{Normal, text.Draw(t, "line of the pane")}}, rapid.IntRange(0, 60).Draw(t, "lines of the pane")),
		}
		s := BuildState(newSceneFacts())
		s.Problems = rapid.SliceOfN(text, 0, 30).Draw(t, "problems")
		for i := range s.Groups {
			s.Groups[i].Name = text.Draw(t, "group")
			for j := range s.Groups[i].Nodes {
				s.Groups[i].Nodes[j].Name = text.Draw(t, "node")
				s.Groups[i].Nodes[j].Activity.Detail = text.Draw(t, "detail")
			}
		}
		lines := strings.Split(RenderState(s, on), "\n")
		if len(lines) != on.Height {
			t.Errorf("%d lines on a screen of %d", len(lines), on.Height)
		}
		for _, line := range lines {
			plain := ansi.Strip(line)
			if w := ansi.StringWidth(plain); w > on.Width {
				t.Errorf("%d cells on a screen of %d: %q", w, on.Width, line)
			}
			if strings.ContainsAny(plain, "\x1b\t\u009b") {
				t.Errorf("%q would be obeyed by the terminal", line)
			}
		}
	})
}

func TestSelectedNodeIsAlwaysVisible(t *testing.T) {
	s := BuildState(newSceneFacts())
	for _, g := range s.Groups {
		for _, n := range g.Nodes {
			on := newScreen(80, 14)
			on.Selected = n.Name
			if text := trimTrailingSpace(RenderState(s, on)); !strings.Contains(text, "\n> "+strings.TrimRight(screen.ShortenName(n.Name, on.layOutColumns(s).name), " ")) {
				t.Errorf("%s is not to be seen:\n%s", n.Name, text)
			}
		}
	}
}

func TestDurationsAreFormatted(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0:00", 0: "0:00", 7 * time.Second: "0:07", 192 * time.Second: "3:12", 59*time.Minute + 59*time.Second: "59:59",
		time.Hour + 2*time.Minute + 3*time.Second: "1:02:03", 47 * time.Hour: "47:00:00", 53 * time.Hour: "2d5h",
	} {
		if got := screen.FormatDuration(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
