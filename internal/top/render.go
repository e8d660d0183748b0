package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/screen"
)

// Screen holds the size of the terminal, and what to show besides the State.
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
	// Sort is the order of the nodes in their groups, which the column header marks.
	Sort Sort
	// Filter is what the title shows about hidden nodes, or "".
	Filter string
	// Pane is shown below the nodes, if it has a title.
	Pane Pane
	// Footer holds the lines at the bottom, such as the list of keys.
	Footer []string
}

// Pane is a list below the nodes.
type Pane struct {
	Title string
	Lines []PaneLine
	// FirstLine is the index of the first visible line. If too few lines follow, earlier ones are shown too.
	FirstLine int
}

// PaneLine is one line of a Pane.
type PaneLine struct {
	Severity Severity
	Text     string
}

// maxNotices is how many notices are listed above the nodes. Further notices are only counted.
const maxNotices = 6

// RenderState returns a State as text. The text has as many lines as the screen, and no line is longer than the
// screen's width. Colors only repeat what the text says.
func RenderState(s State, on Screen) string {
	lines, _ := on.renderLines(s)
	return strings.Join(lines, "\n")
}

// renderLines returns the lines of RenderState, and how many lines of the pane are visible.
func (on Screen) renderLines(s State) (lines []string, paneHeight int) {
	columns := on.layOutColumns(s)
	head := on.renderHead(s, columns)
	foot := on.fitLines(on.Footer)
	room := max(on.Height-len(head)-len(foot), 1)
	body, at := on.renderBody(s, columns)
	pane := on.renderPane(max(room/2, room-len(body)))
	body = linesAround(body, at, room-len(pane))
	lines = slices.Concat(head, body)
	for len(lines)+len(pane)+len(foot) < on.Height {
		lines = append(lines, "")
	}
	lines = slices.Concat(lines, pane, foot)
	return lines[:min(len(lines), max(on.Height, 1))], max(len(pane)-1, 0)
}

// minPaneHeight is the height below which a pane is not shown.
const minPaneHeight = 3

// renderPane returns the lines of the pane, at most room. It returns nothing if the room is too small.
func (on Screen) renderPane(room int) []string {
	if on.Pane.Title == "" || room < minPaneHeight {
		return nil
	}
	rule := "─"
	if on.ASCII {
		rule = "-"
	}
	all := on.Pane.Lines
	shown := min(room-1, len(all))
	from := min(max(on.Pane.FirstLine, 0), len(all)-shown)
	title := rule + rule + " " + screen.ToOneLine(on.Pane.Title) + " "
	if shown < len(all) {
		title += fmt.Sprintf("%s lines %d to %d of %d ", rule+rule, from+1, from+shown, len(all))
	}
	title += strings.Repeat(rule, max(on.Width-ansi.StringWidth(title), 0))
	lines := []string{accent.Render(on.fitLine(title))}
	for _, line := range all[from : from+shown] {
		lines = append(lines, on.renderWithSeverity(line.Severity, "  "+line.Text))
	}
	return lines
}

// linesAround returns at most room lines around the line with index selectedLine.
func linesAround(lines []string, selectedLine, room int) []string {
	if len(lines) <= room {
		return lines
	}
	from := min(max(selectedLine-room/2, 0), len(lines)-room)
	return lines[from : from+room]
}

// renderHead returns the lines above the nodes: the title, the problems and the notices.
func (on Screen) renderHead(s State, columns columns) []string {
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
	lines = append(lines, "", accent.Render(on.fitLine(on.renderColumnTitles(columns))))
	// On a small screen, at most half of the lines are above the nodes.
	return lines[:min(len(lines), max(on.Height/2, 1))]
}

func (on Screen) renderTitle(s State) string {
	nodes, leaving := 0, 0
	for _, g := range s.Groups {
		for _, n := range g.allNodes() {
			if n.HasNode {
				nodes++
			}
			if n.Retirement != nil && !n.Retirement.Phase.IsFinal() {
				leaving++
			}
		}
	}
	filter := ""
	if on.Filter != "" {
		filter = "filter " + screen.ToOneLine(on.Filter) + "  "
	}
	left := fmt.Sprintf("slipway top  %s%s  %s, %d retiring, %s", filter, screen.ToOneLine(on.Title), observe.FormatCount(nodes, "node"), leaving,
		observe.FormatCount(len(s.Notices), "notice"))
	now := on.Now.UTC().Format("15:04:05Z")
	if spark := on.renderEvictions(s, on.Width-ansi.StringWidth(left)-len(now)-4); spark != "" {
		left = screen.PadRight(left, on.Width-len(now)-ansi.StringWidth(spark)-3) + spark + " "
	}
	return bold.Render(on.fitLine(screen.PadRight(left, on.Width-len(now)-1) + " " + now))
}

// maxSparkline is how many intervals the sparkline of evictions shows at most, and minSparkline at least.
const minSparkline, maxSparkline = 6, 30

// renderEvictions returns the evictions of the latest intervals as a sparkline, and the number of all evictions. It returns "" without
// evictions, or if the room is too small.
func (on Screen) renderEvictions(s State, room int) string {
	sum := 0
	for _, n := range s.Evictions {
		sum += n
	}
	text := fmt.Sprintf(" %d", sum)
	shown := min(room-len("evictions ")-len(text), maxSparkline, len(s.Evictions))
	if sum == 0 || shown < min(minSparkline, len(s.Evictions)) {
		return ""
	}
	return "evictions " + screen.RenderSparkline(s.Evictions[len(s.Evictions)-shown:], on.ASCII) + text
}

func (on Screen) renderNotice(n Notice) string {
	phase := n.Phase
	if phase == "" {
		phase = "seen"
	}
	width := min(max(ansi.StringWidth(screen.ToOneLine(n.Node)), 1), max(on.Width/3, 8))
	text := fmt.Sprintf("* %s  %s %s, %s", screen.ShortenName(n.Node, width), screen.PadRight(n.Type, 9), n.FormatCountdown(on.Now), phase)
	if n.Description != "" {
		text += "; " + n.Description
	}
	return on.renderWithSeverity(Trouble, text)
}

// renderBody returns the lines of the groups and nodes, and the index of the selected node.
func (on Screen) renderBody(s State, columns columns) (lines []string, selected int) {
	for _, g := range s.Groups {
		if len(g.Nodes) == 0 && len(g.unfiltered) > 0 {
			continue
		}
		lines = append(lines, on.renderGroup(g))
		for _, r := range g.Remarks {
			lines = append(lines, on.renderWithSeverity(r.Severity, "  ! "+r.Describe(on.Now)))
		}
		for _, n := range g.Nodes {
			if n.Name == on.Selected {
				selected = len(lines)
			}
			lines = append(lines, on.renderNode(n, columns))
		}
	}
	if len(lines) == 0 {
		text := "  no nodes"
		if on.Filter != "" {
			text = "  no node matches the filter " + on.Filter
		}
		lines = append(lines, on.fitLine(text))
	}
	return lines, selected
}

func (on Screen) renderGroup(g Group) string {
	if g.Name == "" {
		return bold.Render(on.fitLine("without NodeGroup: " + observe.FormatCount(len(g.allNodes()), "node")))
	}
	return bold.Render(on.fitLine(fmt.Sprintf("%s: %s, %s  %s", g.Name, g.formatSize(), g.formatAllowedChanges(), g.Cloud)))
}

func (on Screen) renderNode(n Node, columns columns) string {
	marker := "  "
	if n.Name == on.Selected {
		marker = "> "
	}
	line := on.renderWithSeverity(n.Activity.Severity, marker+on.renderCells(n, columns))
	if n.Name == on.Selected {
		return reverse.Render(screen.PadRight(ansi.Strip(line), on.Width))
	}
	return line
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

func (on Screen) fitLine(s string) string { return screen.FitLine(s, on.Width, on.ASCII) }

func (on Screen) fitLines(lines []string) []string {
	all := make([]string, len(lines))
	for i, line := range lines {
		all[i] = on.fitLine(line)
	}
	return all
}

var (
	bold    = lipgloss.NewStyle().Bold(true)
	accent  = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Cyan)
	reverse = lipgloss.NewStyle().Reverse(true)
	// The colors are the 16 of the terminal, so that they suit its background.
	severityStyles = map[Severity]lipgloss.Style{
		Normal:    lipgloss.NewStyle(),
		Waiting:   lipgloss.NewStyle().Foreground(lipgloss.Cyan),
		Changing:  lipgloss.NewStyle().Foreground(lipgloss.Yellow),
		Protected: lipgloss.NewStyle().Foreground(lipgloss.Blue),
		Trouble:   lipgloss.NewStyle().Foreground(lipgloss.Red),
	}
)

func (on Screen) renderWithSeverity(of Severity, s string) string {
	return severityStyles[of].Render(on.fitLine(s))
}
