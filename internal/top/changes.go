package top

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ListChanges returns the differences between two States, one line each, sorted by subject. The passing of time is not a
// change. Compared with an empty State everything is new.
func ListChanges(from, to State) []string {
	was, is := from.describeBySubject(), to.describeBySubject()
	var lines []string
	for _, about := range slices.Sorted(maps.Keys(is)) {
		if was[about] != is[about] {
			lines = append(lines, about+": "+is[about])
		}
	}
	for _, about := range slices.Sorted(maps.Keys(was)) {
		if _, still := is[about]; !still {
			lines = append(lines, about+": "+formatSubjectEnd(about))
		}
	}
	return lines
}

func formatSubjectEnd(about string) string {
	switch {
	case strings.HasPrefix(about, "notice "):
		return "ended"
	case strings.HasPrefix(about, "problem "):
		return "solved"
	}
	return "removed"
}

// describeBySubject returns a text for each subject of a State.
func (s State) describeBySubject() map[string]string {
	all := map[string]string{}
	for _, g := range s.Groups {
		if g.Name != "" {
			all["group "+g.Name] = g.describe()
		}
		for _, n := range g.Nodes {
			about := "node " + n.Name
			if g.Name != "" {
				about += " (" + g.Name + ")"
			}
			all[about] = toOneLine(n.Activity.DescribeWithTimestamps())
		}
	}
	for _, n := range s.Notices {
		text := "announced"
		switch {
		case n.Started:
			text = "started"
		case !n.Due.IsZero():
			text = "due at " + formatTimestamp(n.Due)
		}
		if n.Phase != "" {
			text += ", node " + n.Phase
		}
		if n.Description != "" {
			text += "; " + n.Description
		}
		all[fmt.Sprintf("notice %s of %s (%s %s)", n.Type, n.Node, n.Source, n.ID)] = toOneLine(text)
	}
	for _, p := range s.Problems {
		all["problem "+toOneLine(p)] = "part of the cluster cannot be read"
	}
	return all
}

func (g Group) describe() string {
	text := fmt.Sprintf("%s, %s", g.formatSize(), g.formatAllowedChanges())
	for _, r := range g.Remarks {
		text += "; " + r.DescribeWithTimestamps()
	}
	return toOneLine(text)
}

// formatSize returns the current number of nodes and the allowed range.
func (g Group) formatSize() string {
	n := 0
	for i := range g.Nodes {
		if g.Nodes[i].HasNode {
			n++
		}
	}
	if g.MaxSize != nil {
		return fmt.Sprintf("%s (%d to %d)", formatCount(n, "node"), g.MinSize, *g.MaxSize)
	}
	return fmt.Sprintf("%s (%d or more)", formatCount(n, "node"), g.MinSize)
}

func (g Group) formatAllowedChanges() string {
	text := fmt.Sprintf("%d can be removed", g.AllowedDisruptions)
	if g.Provisioning > 0 {
		text += fmt.Sprintf(", scaling up by %d", g.Provisioning)
	}
	return text
}

func formatCount(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// FormatChange adds a timestamp to a change.
func FormatChange(now time.Time, change string) string { return formatTimestamp(now) + " " + change }

// toOneLine removes line breaks and terminal control characters, because names and messages come from the cluster.
func toOneLine(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0:
			return -1
		}
		return r
	}, s)
}
