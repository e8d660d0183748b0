package top

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/screen"
)

// columns holds the widths of the columns in cells. A column with width 0 is not shown.
type columns struct {
	name, instanceType, zone, age, price, pods int
	cpu, memory                                int // percentages
	cpuAmount, memoryAmount                    int
	bar                                        int // of cpu and of memory
	doing                                      int
}

const (
	percentWidth = 4 // 100%
	podsWidth    = 4
	// wantedDoingWidth is what the column DOING gets before less important columns are shown. It fits the PDB that a drain
	// waits for.
	wantedDoingWidth = 44

	minBarWidth = 4
	maxBarWidth = 14
)

// layOutColumns chooses the columns for the width of the screen. Bars get only the room that all texts leave, so nothing is
// cut beside a bar. The other columns do not depend on what the nodes do, so that they stay while this changes.
func (on Screen) layOutColumns(s State) columns {
	full := on.measureColumns(s)
	c := columns{name: min(full.name, max(on.Width/4, 12)), cpu: percentWidth, memory: percentWidth}
	c.doing = min(wantedDoingWidth, max(on.Width-len("> ")-c.name-c.cpu-c.memory-3, 8))
	room := on.Width - len("> ") - c.name - 1 - c.cpu - 1 - c.memory - 1 - c.doing
	for _, column := range []struct{ width, full *int }{
		{&c.pods, &full.pods}, {&c.age, &full.age}, {&c.instanceType, &full.instanceType}, {&c.zone, &full.zone}, {&c.price, &full.price},
	} {
		if *column.full > 0 && room > *column.full {
			*column.width = *column.full
			room -= *column.full + 1
		}
	}
	room += max(c.doing-full.doing, 0) // bars may use what no text needs; other columns may not, so that they stay
	c.doing = min(c.doing, full.doing)
	for _, column := range []struct{ width, full *int }{{&c.doing, &full.doing}, {&c.name, &full.name}} {
		more := max(min(room, *column.full-*column.width), 0)
		*column.width += more
		room -= more
	}
	if c.name < full.name || c.doing < full.doing {
		return c
	}
	if amounts := full.cpuAmount + full.memoryAmount + 2; full.cpuAmount > 0 && room >= amounts {
		c.cpuAmount, c.memoryAmount = full.cpuAmount, full.memoryAmount
		room -= amounts
	}
	if bar := min((room-2)/2, maxBarWidth); bar >= minBarWidth {
		c.bar = bar
	}
	return c
}

// measureColumns returns the width that each column needs to show everything.
func (on Screen) measureColumns(s State) columns {
	full := columns{name: len("NODE "), doing: len("DOING "), pods: podsWidth}
	fit := func(width *int, text, title string) {
		if text != "" {
			*width = max(*width, ansi.StringWidth(screen.ToOneLine(text)), len(title))
		}
	}
	for _, g := range s.Groups {
		for i := range g.Nodes {
			n := &g.Nodes[i]
			fit(&full.name, n.Name, "")
			fit(&full.doing, n.Activity.Describe(on.Now), "")
			fit(&full.instanceType, n.InstanceType, "TYPE ")
			fit(&full.zone, n.Zone, "ZONE ")
			fit(&full.age, n.formatAge(on.Now), "AGE ")
			fit(&full.price, FormatPrice(n.Price), "PRICE ")
			if n.Load != nil {
				fit(&full.cpuAmount, formatCPU(n.Load), "")
				fit(&full.memoryAmount, formatMemory(n.Load), "")
			}
		}
	}
	return full
}

// renderColumnTitles returns the titles of the columns. An arrow marks the column that the nodes are sorted by.
func (on Screen) renderColumnTitles(c columns) string {
	resource := func(percent, amount int) int {
		width := percent
		if amount > 0 {
			width += amount + 1
		}
		if c.bar > 0 {
			width += c.bar + 1
		}
		return width
	}
	cells := []cell{
		{c.name, "NODE", SortByName}, {c.instanceType, "TYPE", SortByType}, {c.zone, "ZONE", SortByZone}, {c.age, "AGE", SortByAge},
		{c.price, "PRICE", SortByPrice}, {c.pods, "PODS", SortByPods}, {resource(c.cpu, c.cpuAmount), "CPU", SortByCPU}, {resource(c.memory, c.memoryAmount), "MEM", SortByMemory},
		{c.doing, "DOING", SortByActivity},
	}
	for i := range cells {
		if cells[i].sortedBy == on.Sort.Key && on.Sort.Key != SortDefault {
			cells[i].text += on.sortArrow()
		}
	}
	return "  " + joinCells(cells)
}

func (on Screen) sortArrow() string {
	switch {
	case on.ASCII && on.Sort.Descending:
		return "v"
	case on.ASCII:
		return "^"
	case on.Sort.Descending:
		return "↓"
	}
	return "↑"
}

// cell is one cell of a line.
type cell struct {
	width    int
	text     string
	sortedBy SortKey
}

// joinCells returns the cells that have a width, with a space between them. The last cell is not padded.
func joinCells(cells []cell) string {
	var b strings.Builder
	for i, c := range cells {
		switch {
		case c.width <= 0:
			continue
		case i == len(cells)-1:
			b.WriteString(c.text)
		default:
			b.WriteString(screen.PadRight(ansi.Truncate(c.text, c.width, ""), c.width) + " ")
		}
	}
	return b.String()
}

// renderCells returns the line of a node without its marker.
func (on Screen) renderCells(n Node, c columns) string {
	pods := "-"
	if n.Load != nil {
		pods = fmt.Sprint(n.Load.Pods)
	}
	return joinCells([]cell{
		{width: c.name, text: screen.ShortenName(n.Name, c.name)}, {width: c.instanceType, text: orDash(n.InstanceType)}, {width: c.zone, text: orDash(n.Zone)},
		{width: c.age, text: orDash(n.formatAge(on.Now))}, {width: c.price, text: orDash(FormatPrice(n.Price))}, {width: c.pods, text: pods},
		{width: c.bar, text: on.renderLoadBar(n.Load, c.bar, planner.Utilization.CPUPercent)}, {width: c.cpu, text: formatPercent(n.Load, planner.Utilization.CPUPercent)},
		{width: c.cpuAmount, text: formatCPU(n.Load)},
		{width: c.bar, text: on.renderLoadBar(n.Load, c.bar, planner.Utilization.MemoryPercent)}, {width: c.memory, text: formatPercent(n.Load, planner.Utilization.MemoryPercent)},
		{width: c.memoryAmount, text: formatMemory(n.Load)},
		{width: c.doing, text: screen.FitLine(n.Activity.Describe(on.Now), c.doing, on.ASCII)},
	})
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return screen.ToOneLine(s)
}

func (on Screen) renderLoadBar(l *planner.Utilization, width int, percent func(planner.Utilization) float64) string {
	if l == nil {
		return ""
	}
	return screen.RenderBar(percent(*l), width, on.ASCII)
}

func formatPercent(l *planner.Utilization, percent func(planner.Utilization) float64) string {
	if l == nil {
		return "   -"
	}
	return fmt.Sprintf("%3.0f%%", min(percent(*l), 999))
}

// FormatPrice returns a price with at most four significant digits, or as a whole number. It returns "" if it is unknown.
func FormatPrice(price float64) string {
	switch {
	case price == 0:
		return ""
	case price >= 1000:
		return strconv.FormatFloat(price, 'f', 0, 64)
	}
	return strconv.FormatFloat(price, 'g', 4, 64)
}

func formatCPU(l *planner.Utilization) string {
	if l == nil {
		return "-"
	}
	return fmt.Sprintf("%s/%s", formatCores(l.CPU), formatCores(l.AllocatableCPU))
}

func formatMemory(l *planner.Utilization) string {
	if l == nil {
		return "-"
	}
	return fmt.Sprintf("%s/%sGi", formatGiB(l.Memory), formatGiB(l.AllocatableMemory))
}
