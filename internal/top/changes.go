package top

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/screen"
)

// ListChanges returns the differences between two States, one line each, sorted by the node or group. The passing of
// time is not a change. Compared with an empty State everything is new.
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

// describeBySubject returns a text for each group and node of a State, by its name.
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
			all[about] = screen.ToOneLine(n.Activity.DescribeWithTimestamps())
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
		all[screen.ToOneLine(fmt.Sprintf("notice %s of %s (%s %s)", n.Type, n.Node, n.Source, n.ID))] = screen.ToOneLine(text)
	}
	for _, p := range s.Problems {
		all["problem "+screen.ToOneLine(p)] = "part of the cluster cannot be read"
	}
	return all
}

func (g Group) describe() string {
	text := fmt.Sprintf("%s, %s", g.formatSize(), g.formatAllowedChanges())
	for _, r := range g.Remarks {
		text += "; " + r.DescribeWithTimestamps()
	}
	return screen.ToOneLine(text)
}

// formatSize returns the current number of nodes in the group and the allowed range.
func (g Group) formatSize() string {
	n := 0
	for _, node := range g.allNodes() {
		if node.HasNode {
			n++
		}
	}
	if g.MaxSize != nil {
		return fmt.Sprintf("%s (%d to %d)", observe.FormatCount(n, "node"), g.MinSize, *g.MaxSize)
	}
	return fmt.Sprintf("%s (%d or more)", observe.FormatCount(n, "node"), g.MinSize)
}

func (g Group) formatAllowedChanges() string {
	text := fmt.Sprintf("%d can be removed", g.AllowedDisruptions)
	if g.Provisioning > 0 {
		text += fmt.Sprintf(", scaling up by %d", g.Provisioning)
	}
	return text
}

// FormatChange returns a change with a timestamp before it.
func FormatChange(now time.Time, change string) string { return formatTimestamp(now) + " " + change }
