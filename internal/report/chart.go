package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/observe"
)

// axis is the time axis of a chart.
type axis struct{ start, end time.Time }

// maxSpan limits an axis, so that multiples of its length do not overflow.
const maxSpan = 50 * 365 * 24 * time.Hour

func (a axis) span() time.Duration { return max(time.Second, min(a.end.Sub(a.start), maxSpan)) }

// percent returns the place of a time on the axis, from 0 to 100.
func (a axis) percent(t time.Time) float64 {
	return max(0, min(100*t.Sub(a.start).Seconds()/a.span().Seconds(), 100))
}

// x returns the place of a time as a length of SVG.
func (a axis) x(t time.Time) string { return toPercent(a.percent(t)) }

func toPercent(f float64) string { return fmt.Sprintf("%.2f%%", f) }

// maxDeadlineRatio is how many times longer than the drain the axis may be, so that it includes the deadline.
const maxDeadlineRatio = 4

// newAxis returns the axis of a drain. A deadline that is much later than the end of the drain is not on it.
func newAxis(d *drain.Report) axis {
	a := axis{d.StartedAt, lastTime(d)}
	if a.start.IsZero() {
		for _, p := range d.Pods {
			for _, at := range []time.Time{p.FirstRequestedAt, p.RemovalRequestedAt, p.TerminatingSince, p.EndedAt} {
				if !at.IsZero() && (a.start.IsZero() || at.Before(a.start)) {
					a.start = at
				}
			}
		}
		if a.start.IsZero() {
			a.start = a.end
		}
	}
	if left := d.Deadline.Sub(a.start); !d.Deadline.IsZero() && left > 0 && left <= maxDeadlineRatio*a.span() && d.Deadline.After(a.end) {
		a.end = d.Deadline
	}
	a.end = a.end.Add(a.span() / 40) // room for the last marks
	return a
}

// tick is a labelled time of the axis.
type tick struct{ X, Label, Anchor string }

// tickSteps are the distances of ticks.
var tickSteps = []time.Duration{
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second,
	30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
	3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
}

// ticks returns at most 7 ticks.
func (a axis) ticks() []tick {
	const most = 6
	step := tickSteps[len(tickSteps)-1]
	for _, s := range tickSteps {
		if a.span() <= most*s {
			step = s
			break
		}
	}
	for a.span() > most*step {
		step *= 2
	}
	var all []tick
	for at := time.Duration(0); at <= a.span() && len(all) <= most; at += step {
		t := tick{X: a.x(a.start.Add(at)), Label: formatTick(at), Anchor: "middle"}
		switch {
		case at == 0:
			t.Anchor = "start"
		case at > a.span()*24/25:
			t.Anchor = "end"
		}
		all = append(all, t)
	}
	return all
}

func formatTick(at time.Duration) string {
	if at < time.Minute && at%time.Second == 0 {
		return fmt.Sprintf("%d s", at/time.Second)
	}
	return formatDuration(at)
}

// The sizes of a chart in pixels.
const (
	rowHeight  = 26
	axisHeight = 34
)

// chart is a Gantt chart.
type chart struct {
	ID     string
	Title  string
	Desc   string
	Height int
	Top    int // of the first row
	Bottom int // of the last row
	Rows   []chartRow
	Ticks  []tick
	// Deadline is the place of the deadline; empty if it is not on the axis.
	Deadline     string
	DeadlineText string
	DeadlineEnd  bool // the text is left of the line
}

type chartRow struct {
	Y       int
	IsOdd   bool
	Label   string
	Tooltip string
	Bars    []bar
	Gone    string // place of the mark; empty is no mark
	Killed  bool
}

// bar is a part of a row. Its class is one of the legend.
type bar struct{ Class, X, Width string }

func (a axis) bar(class string, from, to time.Time) bar {
	const least = 0.3 // so that a short bar is visible
	x := min(a.percent(from), 100-least)
	return bar{class, toPercent(x), toPercent(max(least, a.percent(to)-x))}
}

// maxLabel is the length of the longest label of a row in characters.
const maxLabel = 46

// shorten removes characters from the middle of a text, because names of pods begin and end with what differs.
func shorten(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	head := most * 3 / 5
	return string(r[:head]) + "…" + string(r[len(r)-(most-head-1):])
}

func newDrainChart(id string, d *Drain, a axis, rows []podRow, l limits) chart {
	c := chart{
		ID: id, Title: "Gantt chart of the drain of node " + cleanText(d.Node),
		Desc:  cleanText(d.describe()) + ". One row for each pod or group of pods. The table after the chart has the same data.",
		Ticks: a.ticks(), Top: axisHeight, Bottom: axisHeight + len(rows)*rowHeight,
	}
	c.Height = c.Bottom + 6
	if !d.Deadline.IsZero() {
		c.DeadlineText = "deadline +" + formatDuration(d.Deadline.Sub(a.start))
		if d.Deadline.After(a.end) {
			c.DeadlineText += " →"
			c.DeadlineEnd = true
		} else {
			c.Deadline, c.DeadlineEnd = a.x(d.Deadline), a.percent(d.Deadline) > 50
		}
	}
	for i := range rows {
		c.Rows = append(c.Rows, newChartRow(d, a, &rows[i], i, l))
	}
	return c
}

func newChartRow(d *Drain, a axis, r *podRow, i int, l limits) chartRow {
	out := chartRow{Y: axisHeight + i*rowHeight, IsOdd: i%2 == 1, Label: shorten(cleanText(r.label()), maxLabel), Tooltip: l.clean(describeRow(d, a, r))}
	p := r.pod
	if p.Action == podrules.Skip {
		out.Bars = append(out.Bars, a.bar("stays", a.start, a.end))
		return out
	}
	began, last := startOfRemoval(p), lastTime(&d.Report)
	until := last
	if !began.IsZero() {
		until = began
	} else if !p.EndedAt.IsZero() {
		until = p.EndedAt
	}
	if until.After(a.start) {
		out.Bars = append(out.Bars, a.bar("wait", a.start, until))
	}
	if start, ready := startOfSuccessor(p); !start.IsZero() {
		out.Bars = append(out.Bars, a.bar("surge", start, ready))
	}
	for _, w := range r.waits {
		if w.delay.Reason == drain.ObstacleSurge {
			continue // the bar of its successor shows it
		}
		out.Bars = append(out.Bars, a.bar(classOfWait(w.delay), w.start, w.end))
	}
	if !began.IsZero() {
		end, class := p.EndedAt, "term"
		if p.Removal == drain.ForceDeleted || p.Removal == drain.DeletedOnRequest {
			class = "forced"
		}
		if end.IsZero() {
			end = last
			class += " open"
		}
		if end.Before(began) {
			began, end = end, began
		}
		out.Bars = append(out.Bars, a.bar(class, began, end))
	}
	if !p.EndedAt.IsZero() {
		out.Gone, out.Killed = a.x(p.EndedAt), r.wasCutShort()
	}
	return out
}

// startOfSuccessor returns when the pod's successor was started, and when it was ready. If it was never ready, it returns the
// end of the surge. Both are zero without a surge.
func startOfSuccessor(p drain.PodReport) (start, ready time.Time) {
	if p.Surge == nil || p.Surge.Result.StartedAt.IsZero() {
		return time.Time{}, time.Time{}
	}
	r := p.Surge.Result
	ready = r.ReadyAt
	if ready.IsZero() {
		ready = r.EndedAt
	}
	if ready.Before(r.StartedAt) {
		ready = r.StartedAt
	}
	return r.StartedAt, ready
}

// describeSurge returns whether and why a pod got a successor first. It returns "" if it needed none.
func describeSurge(p drain.PodReport) string {
	if p.Surge == nil {
		return ""
	}
	return p.Surge.String()
}

func (r *podRow) wasCutShort() bool {
	for _, p := range r.pods {
		if p.WasCutShort() {
			return true
		}
	}
	return false
}

func classOfWait(d drain.Delay) string {
	switch {
	case d.IsPDB():
		return "pdb"
	case d.Reason == drain.ObstacleEarlierWave:
		return "wait"
	}
	return "other"
}

// describeRow returns what happened to the pods of a row, for the tooltip.
func describeRow(d *Drain, a axis, r *podRow) string {
	parts := []string{r.name()}
	for _, c := range []struct{ name, text string }{
		{"rule", r.pod.Decision.Rule.String()}, {"group", r.pod.Group}, {"asked", offset(a, r.pod.FirstRequestedAt)}, {"waited", describeWaits(r.waits)},
		{"successor", describeSurge(r.pod)},
		{"removed", strings.TrimSpace(describeRemoval(r.pod) + " " + offset(a, startOfRemoval(r.pod)))},
		{"gone", strings.TrimSpace(offset(a, r.pod.EndedAt) + " " + string(r.pod.End))},
	} {
		if c.text != "" {
			parts = append(parts, c.name+": "+c.text)
		}
	}
	if r.pod.IsNotRemoved() && !d.EndedAt.IsZero() {
		parts = append(parts, "still on the node at the end of the drain")
	}
	return strings.Join(parts, "; ")
}

// offset returns a time as the time since the start of the axis.
func offset(a axis, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := t.Sub(a.start)
	if d < 0 {
		return formatDuration(d)
	}
	return "+" + formatDuration(d)
}

func describeWaits(all []interval) string {
	var parts []string
	for _, w := range all {
		text := describeObstacle(w.delay.Reason, w.delay.PDB) + ", " + formatDuration(w.end.Sub(w.start))
		if w.delay.Count > 0 {
			text += ", refused " + observe.FormatCount(w.delay.Count, "time")
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func describeRemoval(p drain.PodReport) string {
	switch p.Removal {
	case drain.ForceDeleted:
		return "forced deletion"
	case drain.DeletedOnRequest:
		return "deleted without eviction"
	case drain.Surged:
		return "deleted by its controller"
	case drain.GraceShortened:
		return "grace period shortened"
	case drain.NotRemoved:
		if !p.TerminatingSince.IsZero() {
			return "deleted by another client"
		}
	}
	return string(p.Removal)
}

// newRetirementChart returns a chart with a row for each phase of a retirement.
func newRetirementChart(id string, t *Retirement) (chart, bool) {
	a := axis{t.CreatedAt, t.lastTime()}
	if len(t.Phases) == 0 || t.CreatedAt.IsZero() {
		return chart{}, false
	}
	a.end = a.end.Add(a.span() / 40)
	phases := append([]PhaseTime{{"pending", t.CreatedAt}}, t.Phases...)
	c := chart{
		ID: id, Title: "Gantt chart of the phases of NodeRetirement " + cleanText(t.Name),
		Desc:  "One row for each phase. The table after the chart has the same data.",
		Ticks: a.ticks(), Top: axisHeight, Bottom: axisHeight + len(phases)*rowHeight,
	}
	c.Height = c.Bottom + 6
	for i, p := range phases {
		row := chartRow{Y: axisHeight + i*rowHeight, IsOdd: i%2 == 1, Label: shorten(cleanText(p.Phase), maxLabel), Tooltip: p.Phase + ": " + offset(a, p.At)}
		if i+1 < len(phases) {
			row.Bars = []bar{a.bar("term", p.At, phases[i+1].At)}
			row.Tooltip += ", for " + formatDuration(phases[i+1].At.Sub(p.At))
		} else {
			row.Gone = a.x(p.At)
		}
		c.Rows = append(c.Rows, row)
	}
	return c, true
}

// describe returns one line about the drain.
func (d *Drain) describe() string {
	if d.EndedAt.IsZero() {
		return d.Node + ": the end of the drain is not known"
	}
	return d.Summary()
}
