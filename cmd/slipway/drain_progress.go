package main

import (
	"fmt"
	"io"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
)

// progressInterval is the minimum time between two progress lines.
const progressInterval = 2 * time.Second

// drainProgress shows the progress of one drain. Its methods do not wait for a terminal.
type drainProgress interface {
	show(p drain.Progress)
	// finish ends the output of this drain.
	finish(o drain.Outcome)
}

// startProgress returns what shows the progress of this drain: a live view on a terminal, or else lines.
func (d *nodeDrain) startProgress() drainProgress {
	view, owned := d.view, false
	if view == nil && supportsScreen(d.errOut) {
		view, owned = newDrainView(d.errOut), true
	}
	if view == nil {
		line := newProgressLine(d.errOut)
		line.interval *= time.Duration(d.concurrentDrains)
		return line
	}
	return view.addNode(d.options.Node, d.options.TimeLimits, owned)
}

// progressLine prints the progress of a drain, at most one line per interval. It prints each obstacle once.
type progressLine struct {
	w        io.Writer
	interval time.Duration
	last     string
	lastAt   time.Time
	printed  map[string]bool
}

func newProgressLine(w io.Writer) *progressLine {
	return &progressLine{w: w, interval: progressInterval, printed: map[string]bool{}}
}

func (l *progressLine) show(p drain.Progress) {
	for _, b := range p.WaitingPods() {
		key := fmt.Sprintf("%s/%s %s %s", b.Namespace, b.Pod, b.Reason, b.PDB)
		if b.Reason == drain.ObstacleSurge {
			key += b.Detail // each step of a surge
		}
		if l.printed[key] {
			continue
		}
		l.printed[key] = true
		fmt.Fprintf(l.w, "%s: waiting for %s\n", p.Node, b)
		l.last = ""
	}
	line := p.Node + ": " + p.String()
	if !p.Deadline.IsZero() {
		line += fmt.Sprintf(", %.0fs left", max(0, time.Until(p.Deadline).Seconds()))
	}
	if line == l.last || time.Since(l.lastAt) < l.interval {
		return
	}
	l.last, l.lastAt = line, time.Now()
	fmt.Fprintln(l.w, line)
}

func (*progressLine) finish(drain.Outcome) {}
