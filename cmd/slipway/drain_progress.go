package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/slipway-dev/slipway/internal/drain"
)

// progressInterval is the minimum time between two lines if they cannot be overwritten.
const progressInterval = 2 * time.Second

// progressLine prints the progress of a drain. On a terminal it overwrites one line; otherwise it prints a line per
// interval. It prints each obstacle once.
type progressLine struct {
	w        io.Writer
	terminal bool
	interval time.Duration
	last     string
	lastAt   time.Time
	printed  map[string]bool
}

func newProgressLine(w io.Writer) *progressLine {
	f, ok := w.(*os.File)
	return &progressLine{w: w, terminal: ok && term.IsTerminal(int(f.Fd())), interval: progressInterval, printed: map[string]bool{}}
}

// clearLine returns to the start of the line and erases it (ECMA-48).
const clearLine = "\r\x1b[K"

func (l *progressLine) printProgress(p drain.Progress) {
	for _, b := range p.BlockedPods() {
		key := fmt.Sprintf("%s/%s %s %s", b.Namespace, b.Pod, b.Reason, b.PDB)
		if l.printed[key] {
			continue
		}
		l.printed[key] = true
		l.clear()
		fmt.Fprintf(l.w, "%s: waiting for %s\n", p.Node, b)
		l.last = ""
	}
	line := p.Node + ": " + p.String()
	if !p.Deadline.IsZero() {
		line += fmt.Sprintf(", %.0fs left", max(0, time.Until(p.Deadline).Seconds()))
	}
	if line == l.last || (!l.terminal && time.Since(l.lastAt) < l.interval) {
		return
	}
	l.last, l.lastAt = line, time.Now()
	if l.terminal {
		fmt.Fprint(l.w, clearLine+line)
		return
	}
	fmt.Fprintln(l.w, line)
}

func (l *progressLine) clear() {
	if l.terminal && l.last != "" {
		fmt.Fprint(l.w, clearLine)
	}
}

// finish clears the terminal's line.
func (l *progressLine) finish() { l.clear() }
