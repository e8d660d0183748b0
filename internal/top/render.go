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

// Screen describes the terminal, and what to show besides the State.
type Screen struct {
	// Width and Height are in cells. Below about 40 by 8 little is visible, but nothing breaks.
	Width, Height int
	// ASCII draws bars without block characters, for terminals that may not use UTF-8.
	ASCII bool
	Now   time.Time
	// Title names the cluster.
	Title string
	// Selected is the name of the node under the cursor.
	Selected string
	// Footer holds the lines at the bottom, such as the list of keys.
	Footer []string
}

// wideScreenWidth is the width from which cpu and memory have separate bars.
const wideScreenWidth = 120

// maxNotices is how many notices are listed above the nodes. The rest is counted.
const maxNotices = 6

// RenderState draws a State. The result has as many lines as the screen, and none is longer than its width. Colors only
// repeat what the text says.
func RenderState(s State, on Screen) string {
	head := on.renderHead(s)
	foot := on.fitLines(on.Footer)
	room := max(on.Height-len(head)-len(foot), 1)
	body, at := on.renderBody(s)
	body = linesAround(body, at, room)
	lines := slices.Concat(head, body)
	for len(lines)+len(foot) < on.Height {
		lines = append(lines, "")
	}
	lines = append(lines, foot...)
	return strings.Join(lines[:min(len(lines), max(on.Height, 1))], "\n")
}

// linesAround returns the part of the lines around one line that fits.
func linesAround(lines []string, selectedLine, room int) []string {
	if len(lines) <= room {
		return lines
	}
	from := min(max(selectedLine-room/2, 0), len(lines)-room)
	return lines[from : from+room]
}

// renderHead returns everything above the nodes: the title, the problems and the notices.
func (on Screen) renderHead(s State) []string {
	lines := []string{on.renderTitle(s)}
	for _, p := range s.Problems {
		lines = append(lines, on.renderWithSeverity(Trouble, "! "+p))
	}
	for i, n := range s.Notices {
		if i == maxNotices {
			lines = append(lines, on.fitLine(fmt.Sprintf("  and %d more notices", len(s.Notices)-i)))
			break
		}
		lines = append(lines, on.renderNotice(n))
	}
	lines = append(lines, "", bold.Render(on.fitLine(on.renderColumns())))
	// On a small screen, at most half of the lines are above the nodes.
	return lines[:min(len(lines), max(on.Height/2, 1))]
}

func (on Screen) renderTitle(s State) string {
	nodes, leaving := 0, 0
	for _, g := range s.Groups {
		for _, n := range g.Nodes {
			if n.HasNode {
				nodes++
			}
			if n.Retirement != nil && !n.Retirement.Phase.IsFinal() {
				leaving++
			}
		}
	}
	left := fmt.Sprintf("slipway top  %s  %s, %d retiring, %s", toOneLine(on.Title), formatCount(nodes, "node"), leaving,
		formatCount(len(s.Notices), "notice"))
	now := on.Now.UTC().Format("15:04:05Z")
	return bold.Render(on.fitLine(padRight(left, on.Width-len(now)-1) + " " + now))
}

func (on Screen) renderNotice(n Notice) string {
	phase := n.Phase
	if phase == "" {
		phase = "seen"
	}
	width := nodeNameWidth(on.Width)
	text := fmt.Sprintf("* %s %s %s, %s", formatName(n.Node, width), padRight(n.Type, 9), n.FormatCountdown(on.Now), phase)
	if n.Description != "" {
		text += "; " + n.Description
	}
	return on.renderWithSeverity(Trouble, text)
}

func (on Screen) renderColumns() string {
	first := "  " + padRight("NODE", nodeNameWidth(on.Width))
	if on.Width >= wideScreenWidth {
		return first + " " + padRight("CPU", wideBarWidth+cpuAmountWidth+1) + " " + padRight("MEMORY", wideBarWidth+memoryAmountWidth+1) + " " + "PODS  DOING"
	}
	return first + " " + padRight("LOAD", narrowBarWidth+6) + " DOING"
}

// renderBody returns the lines of the groups and nodes, and the index of the selected node.
func (on Screen) renderBody(s State) (lines []string, selected int) {
	for _, g := range s.Groups {
		lines = append(lines, on.renderGroup(g))
		for _, r := range g.Remarks {
			lines = append(lines, on.renderWithSeverity(r.Severity, "  ! "+r.Describe(on.Now)))
		}
		for _, n := range g.Nodes {
			if n.Name == on.Selected {
				selected = len(lines)
			}
			lines = append(lines, on.renderNode(n))
		}
	}
	if len(lines) == 0 {
		lines = append(lines, on.fitLine("  no nodes"))
	}
	return lines, selected
}

func (on Screen) renderGroup(g Group) string {
	if g.Name == "" {
		return bold.Render(on.fitLine("without NodeGroup: " + formatCount(len(g.Nodes), "node")))
	}
	return bold.Render(on.fitLine(fmt.Sprintf("%s: %s, %s  %s", g.Name, g.formatSize(), g.formatAllowedChanges(), g.Cloud)))
}

func (on Screen) renderNode(n Node) string {
	marker := "  "
	if n.Name == on.Selected {
		marker = "> "
	}
	text := marker + formatName(n.Name, nodeNameWidth(on.Width)) + " " + on.renderLoad(n.Load) + " " + n.Activity.Describe(on.Now)
	line := on.renderWithSeverity(n.Activity.Severity, text)
	if n.Name == on.Selected {
		return reverse.Render(ansi.Strip(line))
	}
	return line
}

const (
	narrowBarWidth, wideBarWidth      = 6, 14
	cpuAmountWidth, memoryAmountWidth = 11, 13
)

// renderLoad returns the utilization of a node. On a narrow screen it shows only the larger one of cpu (c) and memory
// (m).
func (on Screen) renderLoad(l *planner.Utilization) string {
	wide := on.Width >= wideScreenWidth
	if l == nil && wide {
		return padRight("-", wideBarWidth+cpuAmountWidth+1) + " " + padRight("-", wideBarWidth+memoryAmountWidth+1) + " " + padRight("", 5)
	}
	if l == nil {
		return padRight("-", narrowBarWidth+6)
	}
	if !wide {
		share, of := l.CPUPercent(), "c"
		if m := l.MemoryPercent(); m > share {
			share, of = m, "m"
		}
		return on.renderBar(share, narrowBarWidth) + fmt.Sprintf(" %3.0f%%%s", share, of)
	}
	cpu := fmt.Sprintf("%s/%s", formatCores(l.CPU), formatCores(l.AllocatableCPU))
	memory := fmt.Sprintf("%s/%sGi", formatGiB(l.Memory), formatGiB(l.AllocatableMemory))
	return on.renderBar(l.CPUPercent(), wideBarWidth) + " " + padRight(cpu, cpuAmountWidth) + " " + on.renderBar(l.MemoryPercent(), wideBarWidth) + " " +
		padRight(memory, memoryAmountWidth) + " " + padRight(fmt.Sprint(l.Pods), 5)
}

// renderBar draws a percentage. More than 100 is drawn as 100.
func (on Screen) renderBar(share float64, width int) string {
	full, empty := "█", "░"
	if on.ASCII {
		full, empty = "#", "."
	}
	n := min(int(share*float64(width)/100+0.5), width)
	if share > 0 {
		n = max(n, 1) // any load is visible
	}
	return strings.Repeat(full, n) + strings.Repeat(empty, width-n)
}

func formatCores(milli int64) string { return formatShort(float64(milli) / 1000) }
func formatGiB(bytes int64) string   { return formatShort(float64(bytes) / (1 << 30)) }

// formatShort formats a number with few digits.
func formatShort(v float64) string {
	if v >= 10 || v == float64(int64(v)) {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

func nodeNameWidth(screen int) int {
	if screen >= wideScreenWidth {
		return 38
	}
	return max(min(20, screen/3), 8)
}

// formatName fits the name of a node into a width. It cuts the middle of a long name, because names differ at the
// end.
func formatName(s string, width int) string {
	s = toOneLine(s)
	if w := ansi.StringWidth(s); w > width {
		head := (width - 2) / 3
		s = ansi.Truncate(s, head, "") + ".." + ansi.TruncateLeft(s, w-(width-2-head), "")
	}
	return padRight(s, width)
}

func padRight(s string, width int) string {
	return s + strings.Repeat(" ", max(width-ansi.StringWidth(s), 0))
}

func (on Screen) fitLine(s string) string {
	more := "…"
	if on.ASCII {
		more = "~"
	}
	return ansi.Truncate(strings.TrimRight(toOneLine(s), " "), max(on.Width, 1), more)
}

func (on Screen) fitLines(lines []string) []string {
	all := make([]string, len(lines))
	for i, line := range lines {
		all[i] = on.fitLine(line)
	}
	return all
}

var (
	bold    = lipgloss.NewStyle().Bold(true)
	reverse = lipgloss.NewStyle().Reverse(true)
	// The colors are the 16 of the terminal, so that they suit its background.
	moodStyles = map[Severity]lipgloss.Style{
		Normal:    lipgloss.NewStyle(),
		Waiting:   lipgloss.NewStyle().Foreground(lipgloss.Cyan),
		Changing:  lipgloss.NewStyle().Foreground(lipgloss.Yellow),
		Protected: lipgloss.NewStyle().Foreground(lipgloss.Blue),
		Trouble:   lipgloss.NewStyle().Foreground(lipgloss.Red),
	}
)

func (on Screen) renderWithSeverity(m Severity, s string) string {
	return moodStyles[m].Render(on.fitLine(s))
}
