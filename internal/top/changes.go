package top

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Changes are what is different between two States, one line each, sorted by what they are about. Time that passes is no
// change. From an empty State everything is new.
func Changes(from, to State) []string {
	was, is := from.facts(), to.facts()
	var lines []string
	for _, about := range slices.Sorted(maps.Keys(is)) {
		if was[about] != is[about] {
			lines = append(lines, about+": "+is[about])
		}
	}
	for _, about := range slices.Sorted(maps.Keys(was)) {
		if _, still := is[about]; !still {
			lines = append(lines, about+": "+over(about))
		}
	}
	return lines
}

func over(about string) string {
	switch {
	case strings.HasPrefix(about, "notice "):
		return "over"
	case strings.HasPrefix(about, "problem "):
		return "no more"
	}
	return "gone"
}

// facts are a State in words, each by what it is about.
func (s State) facts() map[string]string {
	all := map[string]string{}
	for _, g := range s.Groups {
		if g.Name != "" {
			all["group "+g.Name] = g.lasting()
		}
		for _, n := range g.Nodes {
			about := "node " + n.Name
			if g.Name != "" {
				about += " (" + g.Name + ")"
			}
			all[about] = oneLine(n.Doing.Lasting())
		}
	}
	for _, n := range s.Notices {
		text := "announced"
		switch {
		case n.Started:
			text = "under way"
		case !n.Due.IsZero():
			text = "due at " + stamp(n.Due)
		}
		if n.Phase != "" {
			text += ", node " + n.Phase
		}
		if n.Description != "" {
			text += "; " + n.Description
		}
		all[fmt.Sprintf("notice %s of %s (%s %s)", n.Type, n.Node, n.Source, n.ID)] = oneLine(text)
	}
	for _, p := range s.Problems {
		all["problem "+oneLine(p)] = "part of the cluster cannot be seen"
	}
	return all
}

func (g Group) lasting() string {
	text := fmt.Sprintf("%s, %s", g.size(), g.room())
	for _, r := range g.Remarks {
		text += "; " + r.Lasting()
	}
	return oneLine(text)
}

// size is how many nodes a group has and may have, and room how many more may leave.
func (g Group) size() string {
	n := 0
	for i := range g.Nodes {
		if g.Nodes[i].There {
			n++
		}
	}
	if g.Maximum != nil {
		return fmt.Sprintf("%s (%d to %d)", counted(n, "node"), g.Minimum, *g.Maximum)
	}
	return fmt.Sprintf("%s (%d or more)", counted(n, "node"), g.Minimum)
}

func (g Group) room() string {
	text := fmt.Sprintf("%d may leave", g.MayLeave)
	if g.OnTheWay > 0 {
		text += fmt.Sprintf(", scaling up by %d", g.OnTheWay)
	}
	return text
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Line is a change as it is printed, at its time.
func Line(now time.Time, change string) string { return stamp(now) + " " + change }

// oneLine is a text without line ends and without what a terminal would obey: names and messages come from the cluster.
func oneLine(s string) string {
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
