package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// Screen is what a State is put on, and what it is looked at with.
type Screen struct {
	// Width and Height are in cells. Below some 40 by 8 little is left to see, and nothing breaks.
	Width, Height int
	// ASCII draws bars without block characters, for terminals whose character set is not known to be UTF-8.
	ASCII bool
	Now   time.Time
	// Title says which cluster it is.
	Title string
	// Selected is the node under the cursor.
	Selected string
	// Footer are the lines at the bottom, such as which keys there are.
	Footer []string
}

// wideFrom is the width from which cpu and memory have a bar each.
const wideFrom = 120

// mostNotices is how many notices are listed above the nodes; the rest is counted.
const mostNotices = 6

// Render puts a State on a screen: as many lines as the screen has, none longer than it is wide. Colours only underline
// what the text says.
func Render(s State, on Screen) string {
	head := on.head(s)
	foot := on.fitAll(on.Footer)
	room := max(on.Height-len(head)-len(foot), 1)
	body, at := on.body(s)
	body = window(body, at, room)
	lines := slices.Concat(head, body)
	for len(lines)+len(foot) < on.Height {
		lines = append(lines, "")
	}
	lines = append(lines, foot...)
	return strings.Join(lines[:min(len(lines), max(on.Height, 1))], "\n")
}

// window is the part of the lines around one of them that there is room for.
func window(lines []string, at, room int) []string {
	if len(lines) <= room {
		return lines
	}
	from := min(max(at-room/2, 0), len(lines)-room)
	return lines[from : from+room]
}

// head is all above the nodes: the title, what cannot be seen, and the notices.
func (on Screen) head(s State) []string {
	lines := []string{on.title(s)}
	for _, p := range s.Problems {
		lines = append(lines, on.painted(Trouble, "! "+p))
	}
	for i, n := range s.Notices {
		if i == mostNotices {
			lines = append(lines, on.fit(fmt.Sprintf("  and %d more notices", len(s.Notices)-i)))
			break
		}
		lines = append(lines, on.notice(n))
	}
	lines = append(lines, "", bold.Render(on.fit(on.columns())))
	// On a small screen the nodes are not pushed out: what is above them is cut to half of it.
	return lines[:min(len(lines), max(on.Height/2, 1))]
}

func (on Screen) title(s State) string {
	nodes, leaving := 0, 0
	for _, g := range s.Groups {
		for _, n := range g.Nodes {
			if n.There {
				nodes++
			}
			if n.Retirement != nil && !n.Retirement.Phase.Finished() {
				leaving++
			}
		}
	}
	left := fmt.Sprintf("slipway top  %s  %s, %d leaving, %s", oneLine(on.Title), counted(nodes, "node"), leaving,
		counted(len(s.Notices), "notice"))
	now := on.Now.UTC().Format("15:04:05Z")
	return bold.Render(on.fit(pad(left, on.Width-len(now)-1) + " " + now))
}

func (on Screen) notice(n Notice) string {
	phase := n.Phase
	if phase == "" {
		phase = "seen"
	}
	width := nameWidth(on.Width)
	text := fmt.Sprintf("* %s %s %s, %s", name(n.Node, width), pad(n.Type, 9), n.Countdown(on.Now), phase)
	if n.Description != "" {
		text += "; " + n.Description
	}
	return on.painted(Trouble, text)
}

func (on Screen) columns() string {
	first := "  " + pad("NODE", nameWidth(on.Width))
	if on.Width >= wideFrom {
		return first + " " + pad("CPU", barWide+amountCPU+1) + " " + pad("MEMORY", barWide+amountMemory+1) + " " + "PODS  DOING"
	}
	return first + " " + pad("LOAD", barNarrow+6) + " DOING"
}

// body are the groups and their nodes, and at which line the selected node is.
func (on Screen) body(s State) (lines []string, selected int) {
	for _, g := range s.Groups {
		lines = append(lines, on.group(g))
		for _, r := range g.Remarks {
			lines = append(lines, on.painted(r.Mood, "  ! "+r.Phrase(on.Now)))
		}
		for _, n := range g.Nodes {
			if n.Name == on.Selected {
				selected = len(lines)
			}
			lines = append(lines, on.node(n))
		}
	}
	if len(lines) == 0 {
		lines = append(lines, on.fit("  no nodes"))
	}
	return lines, selected
}

func (on Screen) group(g Group) string {
	if g.Name == "" {
		return bold.Render(on.fit("of no NodeGroup: " + counted(len(g.Nodes), "node")))
	}
	return bold.Render(on.fit(fmt.Sprintf("%s: %s, %s  %s", g.Name, g.size(), g.room(), g.Cloud)))
}

func (on Screen) node(n Node) string {
	marker := "  "
	if n.Name == on.Selected {
		marker = "> "
	}
	text := marker + name(n.Name, nameWidth(on.Width)) + " " + on.load(n.Load) + " " + n.Doing.Phrase(on.Now)
	line := on.painted(n.Doing.Mood, text)
	if n.Name == on.Selected {
		return reverse.Render(ansi.Strip(line))
	}
	return line
}

const (
	barNarrow, barWide      = 6, 14
	amountCPU, amountMemory = 11, 13
)

// load is how full a node is. On a narrow screen that is what is scarcer of cpu (c) and memory (m).
func (on Screen) load(l *planner.Load) string {
	wide := on.Width >= wideFrom
	if l == nil && wide {
		return pad("-", barWide+amountCPU+1) + " " + pad("-", barWide+amountMemory+1) + " " + pad("", 5)
	}
	if l == nil {
		return pad("-", barNarrow+6)
	}
	if !wide {
		share, of := l.CPUShare(), "c"
		if m := l.MemoryShare(); m > share {
			share, of = m, "m"
		}
		return on.bar(share, barNarrow) + fmt.Sprintf(" %3.0f%%%s", share, of)
	}
	cpu := fmt.Sprintf("%s/%s", cores(l.CPU), cores(l.AllocatableCPU))
	memory := fmt.Sprintf("%s/%sGi", gibi(l.Memory), gibi(l.AllocatableMemory))
	return on.bar(l.CPUShare(), barWide) + " " + pad(cpu, amountCPU) + " " + on.bar(l.MemoryShare(), barWide) + " " +
		pad(memory, amountMemory) + " " + pad(fmt.Sprint(l.Pods), 5)
}

// bar is a share in percent, drawn; more than all is drawn as all.
func (on Screen) bar(share float64, width int) string {
	full, empty := "█", "░"
	if on.ASCII {
		full, empty = "#", "."
	}
	n := min(int(share*float64(width)/100+0.5), width)
	if share > 0 {
		n = max(n, 1) // something is on it
	}
	return strings.Repeat(full, n) + strings.Repeat(empty, width-n)
}

func cores(milli int64) string { return short(float64(milli) / 1000) }
func gibi(bytes int64) string  { return short(float64(bytes) / (1 << 30)) }

// short is a number of a few digits.
func short(v float64) string {
	if v >= 10 || v == float64(int64(v)) {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

func nameWidth(screen int) int {
	if screen >= wideFrom {
		return 38
	}
	return max(min(20, screen/3), 8)
}

// name is a node's name in so many cells. Of a long one the middle is left out: what tells nodes apart is at the end.
func name(s string, width int) string {
	s = oneLine(s)
	if w := ansi.StringWidth(s); w > width {
		head := (width - 2) / 3
		s = ansi.Truncate(s, head, "") + ".." + ansi.TruncateLeft(s, w-(width-2-head), "")
	}
	return pad(s, width)
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(width-ansi.StringWidth(s), 0))
}

// fit cuts a text to one line of the screen.
func (on Screen) fit(s string) string {
	more := "…"
	if on.ASCII {
		more = "~"
	}
	return ansi.Truncate(strings.TrimRight(oneLine(s), " "), max(on.Width, 1), more)
}

func (on Screen) fitAll(lines []string) []string {
	all := make([]string, len(lines))
	for i, line := range lines {
		all[i] = on.fit(line)
	}
	return all
}

var (
	bold    = lipgloss.NewStyle().Bold(true)
	reverse = lipgloss.NewStyle().Reverse(true)
	// The colours are of the terminal's own sixteen, so that they suit its background.
	moods = map[Mood]lipgloss.Style{
		Calm:    lipgloss.NewStyle(),
		Waiting: lipgloss.NewStyle().Foreground(lipgloss.Cyan),
		Moving:  lipgloss.NewStyle().Foreground(lipgloss.Yellow),
		Held:    lipgloss.NewStyle().Foreground(lipgloss.Blue),
		Trouble: lipgloss.NewStyle().Foreground(lipgloss.Red),
	}
)

func (on Screen) painted(m Mood, s string) string { return moods[m].Render(on.fit(s)) }
