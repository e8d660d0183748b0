package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/screen"
)

// drainStyle says how a drain view looks. Colors only repeat what the text says.
type drainStyle struct{ ascii, color bool }

// The colors are some of the 16 of the terminal, so that they suit its background.
const (
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
	bold   = "\x1b[1m"
	reset  = "\x1b[m"
)

// renderNodes returns the lines of the view: fewer than height, and each shorter than width.
func (s drainStyle) renderNodes(nodes []*viewedNode, width, height int, now time.Time) []string {
	if len(nodes) == 0 {
		return nil
	}
	room := max(height-1, 1)
	if len(nodes) == 1 {
		return s.renderNode(nodes[0], width, room, now)
	}
	shown := nodes
	if len(nodes) > room {
		shown = slices.Clone(nodes)
		slices.SortStableFunc(shown, func(a, b *viewedNode) int { return cmp.Compare(a.outcome, b.outcome) }) // running ones first
		shown = shown[:max(room-1, 0)]
	}
	running := 0
	for _, n := range shown {
		if n.outcome == "" {
			running++
		}
	}
	more := len(nodes) - len(shown)
	podRoom := (room - len(shown) - min(more, 1)) / max(running, 1)
	var lines []string
	for _, n := range shown {
		state := string(n.outcome)
		if state == "" {
			state = n.describeCounts() + n.describeTime(now)
		}
		name := fitName(n.name, state, width)
		lines = append(lines, s.paint(bold, name+s.renderBar(n, min(width-4-ansi.StringWidth(name+state), 20))+state, width))
		if n.outcome == "" {
			lines = append(lines, s.renderPods(n, width, podRoom, now)...)
		}
	}
	if more > 0 {
		lines = append(lines, s.paint("", fmt.Sprintf("and %d more nodes", more), width))
	}
	return lines
}

// renderNode returns the lines of the only node of a view.
func (s drainStyle) renderNode(n *viewedNode, width, room int, now time.Time) []string {
	state := screen.FormatDuration(now.Sub(n.progress.StartedAt)) + n.describeTime(now)
	if what := "draining for "; len(n.name)+len(": ")+len(what)+len(state) < width {
		state = what + state
	}
	if n.outcome != "" {
		state = string(n.outcome)
	}
	counts := n.describeCounts()
	lines := []string{
		s.paint(bold, fitName(n.name, state, width)+state, width),
		s.paint(bold, s.renderBar(n, min(width-2-ansi.StringWidth(counts), 40))+counts, width),
	}
	lines = lines[:min(len(lines), room)]
	return append(lines, s.renderPods(n, width, room-len(lines), now)...)
}

// fitName returns the name of a node as a heading of a text. It shortens the name if the text would be cut otherwise.
func fitName(name, text string, width int) string {
	const minWidth = 8
	whole := ansi.StringWidth(screen.ToOneLine(name))
	return strings.TrimRight(screen.ShortenName(name, min(whole, max(width-1-len(": ")-ansi.StringWidth(text), minWidth))), " ") + ": "
}

// describeTime returns the time until the deadline or the timeout, after a comma. It returns "" without a limit.
func (n *viewedNode) describeTime(now time.Time) string {
	switch {
	case n.outcome != "":
		return ""
	case !n.progress.Deadline.IsZero():
		return ", deadline in " + screen.FormatDuration(n.progress.Deadline.Sub(now))
	case !n.limits.TimeoutAt.IsZero():
		return ", timeout in " + screen.FormatDuration(n.limits.TimeoutAt.Sub(now))
	}
	return ""
}

// renderBar returns the share of pods that are gone as a bar before a text. It returns "" if there is no room.
func (s drainStyle) renderBar(n *viewedNode, width int) string {
	const minWidth = 4
	p := n.progress
	if n.outcome != "" || !p.Listed || width < minWidth {
		return ""
	}
	percent := 100.0
	if p.Total > 0 {
		percent = 100 * float64(p.Gone) / float64(p.Total)
	}
	return screen.RenderBar(percent, width, s.ascii) + " "
}

// describeCounts returns how many pods are gone, terminating and waiting.
func (n *viewedNode) describeCounts() string {
	p := n.progress
	if !p.Listed {
		return "reading the pods"
	}
	text := fmt.Sprintf("%d of %d gone", p.Gone, p.Total)
	if p.Gone == p.Total {
		return text + ", last checks"
	}
	if p.Stopping > 0 {
		text += fmt.Sprintf(", %d terminating", p.Stopping)
	}
	if p.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting", p.Waiting)
	}
	if p.Surging > 0 {
		text += fmt.Sprintf(" (%d for a successor)", p.Surging)
	}
	return text
}

// podLine is one line of a view.
type podLine struct {
	rank         int // lower ranks first
	at           time.Time
	name, status string
	color        string
}

// The ranks of pods in a view. The pods that need a person come first.
const (
	rankBlocked = iota
	rankTerminating
	rankQueued
	rankGone
)

// renderPods returns at most room lines about the pods of a node.
func (s drainStyle) renderPods(n *viewedNode, width, room int, now time.Time) []string {
	if room <= 0 {
		return nil
	}
	pods := n.listPodLines(now)
	var rest []podLine
	if len(pods) > room {
		pods, rest = pods[:room-1], pods[room-1:]
	}
	nameWidth := 0
	for _, p := range pods {
		nameWidth = max(nameWidth, ansi.StringWidth(screen.ToOneLine(p.name)))
	}
	nameWidth = min(nameWidth, max(width/2-4, 8))
	var lines []string
	for _, p := range pods {
		lines = append(lines, s.paint(p.color, "  "+screen.ShortenName(p.name, nameWidth)+"  "+p.status, width))
	}
	if len(rest) > 0 {
		lines = append(lines, s.paint("", "  and "+describeRest(rest), width))
	}
	return lines
}

// describeRest returns the numbers of the pods that have no line.
func describeRest(pods []podLine) string {
	var count [rankGone + 1]int
	for _, p := range pods {
		count[p.rank]++
	}
	var parts []string
	for rank, what := range []string{"waiting", "terminating", "waiting for their turn", "gone"} {
		if count[rank] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[rank], what))
		}
	}
	return fmt.Sprintf("%d more: %s", len(pods), strings.Join(parts, ", "))
}

// listPodLines returns a line for each pod that has to be removed.
func (n *viewedNode) listPodLines(now time.Time) []podLine {
	var lines []podLine
	for _, b := range n.progress.RemainingPods {
		lines = append(lines, newPodLine(b, now))
	}
	for name, at := range maps.All(n.goneAt) {
		if !at.IsZero() {
			lines = append(lines, podLine{rank: rankGone, at: at, name: name.namespace + "/" + name.name, status: "gone", color: green})
		}
	}
	slices.SortFunc(lines, func(a, b podLine) int {
		byTime := a.at.Compare(b.at)
		if a.rank == rankGone {
			byTime = -byTime // the last one first
		}
		return cmp.Or(cmp.Compare(a.rank, b.rank), byTime, strings.Compare(a.name, b.name))
	})
	return lines
}

func newPodLine(b drain.BlockedPod, now time.Time) podLine {
	line := podLine{name: b.Namespace + "/" + b.Pod}
	waited := screen.FormatDuration(now.Sub(b.Since))
	switch b.Reason {
	case drain.ObstacleStopping:
		until := parseTerminationEnd(b)
		line.rank, line.at, line.color, line.status = rankTerminating, until, cyan, "terminating "+waited
		if !until.IsZero() {
			line.status += " of " + screen.FormatDuration(until.Sub(b.Since))
		}
	case drain.ObstacleQueued:
		line.rank, line.status = rankQueued, "waits for its turn"
	case drain.ObstacleEarlierWave:
		line.rank, line.status = rankQueued, "waits for pods of lower priority"
	case drain.ObstacleSurge:
		line.rank, line.at, line.color = rankBlocked, b.Since, cyan
		line.status = "successor first, " + waited + ": " + b.Detail
	case drain.ObstacleGroup:
		line.rank, line.at, line.color = rankBlocked, b.Since, yellow
		line.status = "waiting " + waited + ": " + b.Detail
	case drain.ObstaclePDB:
		line.rank, line.at, line.color = rankBlocked, b.Since, yellow
		line.status = "waiting " + waited + " for PDB " + b.PDB + ": " + b.Detail
	default:
		line.rank, line.at, line.color = rankBlocked, b.Since, yellow
		line.status = "waiting " + waited + ": " + string(b.Reason) + ": " + b.Detail
	}
	return line
}

// parseTerminationEnd returns the end of a terminating pod's grace from its detail, such as "stopping, until 12:00:20 at the latest".
// It returns zero if the detail has no time. A field of its own would make the agent larger.
func parseTerminationEnd(b drain.BlockedPod) time.Time {
	_, rest, _ := strings.Cut(b.Detail, "until ")
	clock, _, _ := strings.Cut(rest, " ")
	since := b.Since.UTC()
	at, err := time.Parse(time.DateOnly+" "+time.TimeOnly, since.Format(time.DateOnly)+" "+clock)
	switch {
	case err != nil:
		return time.Time{}
	case at.Before(since.Truncate(time.Second)):
		return at.AddDate(0, 0, 1)
	}
	return at
}

// paint returns a line that is shorter than width, because some terminals wrap after the last column.
func (s drainStyle) paint(color, line string, width int) string {
	line = screen.FitLine(line, width-1, s.ascii)
	if color == "" || !s.color {
		return line
	}
	return color + line + reset
}
