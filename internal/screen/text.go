// Package screen formats text for a terminal: lines of at most the terminal's width, bars and durations. It does no I/O.
package screen

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

// ToOneLine removes line breaks and terminal control characters from a text, because names and messages come from the
// cluster.
func ToOneLine(s string) string {
	return RemoveControls(lineBreaks.Replace(s))
}

var lineBreaks = strings.NewReplacer("\n", " ", "\t", " ", "\r", " ")

// RemoveControls removes terminal control characters from a text. It keeps line feeds and tabs.
func RemoveControls(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, s)
}

// FitLine returns a text as one line of at most width cells. A mark at the end shows that it was cut.
func FitLine(s string, width int, ascii bool) string {
	more := "…"
	if ascii {
		more = "~"
	}
	return ansi.Truncate(strings.TrimRight(ToOneLine(s), " "), max(width, 1), more)
}

// ShortenName shortens a name to a width and pads it. It cuts the middle, because names of siblings differ at the end.
func ShortenName(s string, width int) string {
	s = ToOneLine(s)
	if w := ansi.StringWidth(s); w > width {
		head := (width - 2) / 3
		s = ansi.Truncate(s, head, "") + ".." + ansi.TruncateLeft(s, w-(width-2-head), "")
	}
	return PadRight(s, width)
}

// PadRight adds spaces until a text has a width in cells.
func PadRight(s string, width int) string {
	return s + strings.Repeat(" ", max(width-ansi.StringWidth(s), 0))
}

// RenderBar returns a percentage as a bar. It draws more than 100 as 100.
func RenderBar(percent float64, width int, ascii bool) string {
	full, empty := "█", "░"
	if ascii {
		full, empty = "#", "."
	}
	n := min(int(percent*float64(width)/100+0.5), width)
	if percent > 0 {
		n = max(n, min(1, width)) // any amount is visible
	}
	return strings.Repeat(full, n) + strings.Repeat(empty, width-n)
}

// RenderSparkline returns counts as columns of one line, the largest count as the full height.
func RenderSparkline(counts []int, ascii bool) string {
	levels := []rune(" ▁▂▃▄▅▆▇█")
	if ascii {
		levels = []rune(" .:-=+*#@")
	}
	most := 1
	for _, n := range counts {
		most = max(most, n)
	}
	var b strings.Builder
	for _, n := range counts {
		b.WriteRune(levels[(n*(len(levels)-1)+most-1)/most])
	}
	return b.String()
}

// FormatDuration formats a duration as 0:07, 3:12 or 1:02:03. From two days on the format is 2d5h.
func FormatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	s := int(max(d, 0) / time.Second)
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}
