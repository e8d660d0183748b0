package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"github.com/slipway-dev/slipway/internal/drain"
)

// viewInterval is the time between two updates of the view. Changes in between are drawn together.
const viewInterval = 200 * time.Millisecond

// drainView shows the progress of drains in the last lines of a terminal, and redraws them in place. A goroutine of its own
// writes to the terminal, so that a stopped terminal (Ctrl-S) never stops a drain.
//
// It reads no keys, hides no cursor and uses no second screen. So a process that is killed leaves the terminal usable.
type drainView struct {
	terminal io.Writer
	// size returns the width and height of the terminal.
	size  func() (width, height int)
	style drainStyle

	mu    sync.Mutex // guards nodes
	nodes []*viewedNode

	drawing sync.Mutex // guards the terminal and frame
	frame   []string   // the lines that are on the terminal

	stop    chan struct{}
	stopped chan struct{}
}

// newDrainView returns a view on a terminal, and starts to draw.
func newDrainView(terminal io.Writer) *drainView {
	terminal = unwrapText(terminal) // the view moves the cursor
	v := &drainView{
		terminal: terminal, size: func() (int, int) { return terminalSize(terminal) },
		style: drainStyle{ascii: !isUTF8Locale(os.Getenv), color: os.Getenv("NO_COLOR") == ""},
		stop:  make(chan struct{}), stopped: make(chan struct{}),
	}
	go v.drawUntilStopped()
	return v
}

// terminalSize returns the size of a terminal. If it is unknown, it returns 80 by 24.
func terminalSize(terminal io.Writer) (width, height int) {
	if f, ok := terminal.(*os.File); ok {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 && height > 0 {
			return width, height
		}
	}
	return 80, 24
}

func (v *drainView) drawUntilStopped() {
	defer close(v.stopped)
	ticker := time.NewTicker(viewInterval)
	defer ticker.Stop()
	for {
		select {
		case <-v.stop:
			return
		case <-ticker.C:
			v.draw(nil, nil)
		}
	}
}

// close removes the view from the terminal.
func (v *drainView) close() {
	close(v.stop)
	<-v.stopped
	v.drawing.Lock()
	defer v.drawing.Unlock()
	width, _ := v.size()
	_, _ = io.WriteString(v.terminal, eraseFrame(v.frame, width)) // a closed terminal cannot be reported
	v.frame = nil
}

// Write prints text above the view.
func (v *drainView) Write(p []byte) (int, error) { return len(p), v.draw(textWriter{v.terminal}, p) }

// above returns a writer that writes to w, which is the same terminal, above the view.
func (v *drainView) above(w io.Writer) io.Writer { return aboveView{v, w} }

type aboveView struct {
	view *drainView
	w    io.Writer
}

func (a aboveView) Write(p []byte) (int, error) { return len(p), a.view.draw(a.w, p) }

// draw draws the view again if it has changed. It first writes text to w, if there is any.
func (v *drainView) draw(w io.Writer, text []byte) (err error) {
	v.drawing.Lock()
	defer v.drawing.Unlock()
	width, height := v.size()
	frame := v.render(width, height)
	if len(text) == 0 && slices.Equal(frame, v.frame) {
		return nil
	}
	if len(text) > 0 {
		if _, err := io.WriteString(v.terminal, eraseFrame(v.frame, width)); err != nil {
			return err
		}
		v.frame = nil
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	_, err = io.WriteString(v.terminal, replaceFrame(v.frame, frame, width))
	v.frame = frame
	return err
}

func (v *drainView) render(width, height int) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.style.renderNodes(v.nodes, width, height, time.Now())
}

// Escape sequences of ECMA-48.
const (
	eraseLineEnd   = "\x1b[K"
	eraseScreenEnd = "\x1b[J"
)

// moveToFrameStart returns the escape sequence that moves the cursor from the end of a frame to its start. Terminals wrap
// the lines of a frame anew when their width changes, so the sequence depends on the current width.
func moveToFrameStart(frame []string, width int) string {
	rows := 0
	for _, line := range frame {
		rows += max(1, (ansi.StringWidth(line)+width-1)/width)
	}
	if rows > 1 {
		return fmt.Sprintf("\r\x1b[%dA", rows-1)
	}
	return "\r"
}

func eraseFrame(frame []string, width int) string {
	return moveToFrameStart(frame, width) + eraseScreenEnd
}

// replaceFrame returns the output that draws a frame in the place of another. It erases only what it does not overwrite, so
// that nothing flickers.
func replaceFrame(old, frame []string, width int) string {
	return moveToFrameStart(old, width) + strings.Join(frame, eraseLineEnd+"\n") + eraseLineEnd + eraseScreenEnd
}

// viewedNode is one node in a view. It implements drainProgress.
type viewedNode struct {
	view *drainView
	// ownsView is true if the view ends with this drain.
	ownsView bool
	name     string
	limits   drain.TimeLimits

	// The lock of the view guards the fields below.
	progress drain.Progress
	outcome  drain.Outcome // empty while the drain runs
	// goneAt is when a pod was gone. It is zero for pods that are not gone.
	goneAt map[podName]time.Time
}

type podName struct{ namespace, name string }

// addNode adds a node below the others.
func (v *drainView) addNode(name string, limits drain.TimeLimits, ownsView bool) *viewedNode {
	n := &viewedNode{view: v, ownsView: ownsView, name: name, limits: limits, goneAt: map[podName]time.Time{}}
	n.progress.StartedAt = time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.nodes = append(v.nodes, n)
	return n
}

func (n *viewedNode) show(p drain.Progress) {
	n.view.mu.Lock()
	defer n.view.mu.Unlock()
	wasGone := n.progress.Gone
	n.progress = p
	left := make(map[podName]bool, len(p.RemainingPods))
	for _, pod := range p.RemainingPods {
		name := podName{pod.Namespace, pod.Pod}
		left[name] = true
		n.goneAt[name] = time.Time{}
	}
	now := time.Now()
	for name, at := range n.goneAt {
		switch {
		case !at.IsZero() || left[name]:
		case p.Gone > wasGone:
			n.goneAt[name] = now
		default: // it is skipped now, and stays on the node
			delete(n.goneAt, name)
		}
	}
}

func (n *viewedNode) finish(o drain.Outcome) {
	n.view.mu.Lock()
	n.outcome = o
	n.view.mu.Unlock()
	if n.ownsView {
		n.view.close()
	}
}
