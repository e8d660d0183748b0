package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/slipway-dev/slipway/internal/drain"
)

// progressEvery is the least time between two lines where they cannot be overwritten.
const progressEvery = 2 * time.Second

// progressLine shows how far a drain is: one line that is written over on a terminal, a line now and then elsewhere,
// and in both a line for each obstacle when it first appears.
type progressLine struct {
	w        io.Writer
	terminal bool
	every    time.Duration
	last     string
	lastAt   time.Time
	said     map[string]bool
}

func newProgressLine(w io.Writer) *progressLine {
	f, ok := w.(*os.File)
	return &progressLine{w: w, terminal: ok && term.IsTerminal(int(f.Fd())), every: progressEvery, said: map[string]bool{}}
}

// clearLine returns to the start of the line and erases it (ECMA-48).
const clearLine = "\r\x1b[K"

func (l *progressLine) update(p drain.Progress) {
	for _, b := range p.Obstructed() {
		key := fmt.Sprintf("%s/%s %s %s", b.Namespace, b.Pod, b.Reason, b.Budget)
		if l.said[key] {
			continue
		}
		l.said[key] = true
		l.clear()
		fmt.Fprintf(l.w, "%s: waiting for %s\n", p.Node, b)
		l.last = ""
	}
	line := p.Node + ": " + p.String()
	if !p.Deadline.IsZero() {
		line += fmt.Sprintf(", %.0fs left", max(0, time.Until(p.Deadline).Seconds()))
	}
	if line == l.last || (!l.terminal && time.Since(l.lastAt) < l.every) {
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

// end leaves the terminal's line free.
func (l *progressLine) end() { l.clear() }
