package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"
	"golang.org/x/sys/unix"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// emulator shows what a program writes to a pseudoterminal.
type emulator struct {
	t        *testing.T
	shows    *os.File
	terminal *os.File

	mu sync.Mutex // vt.SafeEmulator does not protect String
	vt *vt.Emulator
}

// Write puts what the program writes onto the screen.
func (e *emulator) Write(output []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.vt.Write(output)
}

func newEmulator(t *testing.T, width, height int) *emulator {
	t.Helper()
	shows, terminal := openPseudoterminal(t)
	e := &emulator{t: t, shows: shows, terminal: terminal, vt: vt.NewEmulator(width, height)}
	e.resize(width, height)
	go func() { _, _ = io.Copy(e, shows) }()
	return e
}

func (e *emulator) resize(width, height int) {
	e.t.Helper()
	e.mu.Lock()
	e.vt.Resize(width, height)
	e.mu.Unlock()
	must.NoError(e.t, unix.IoctlSetWinsize(int(e.shows.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(width)}))
}

// text returns the screen without spaces at the ends of lines.
func (e *emulator) text() string {
	e.mu.Lock()
	lines := strings.Split(e.vt.String(), "\n")
	e.mu.Unlock()
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \r")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// await waits until the screen is as wanted, and returns it. It fails after a minute.
func (e *emulator) await(is func(screen string) bool, want string) string {
	e.t.Helper()
	for late := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		switch got := e.text(); {
		case is(got):
			return got
		case time.Now().After(late):
			e.t.Fatalf("the screen is\n%s\nwant\n%s", got, want)
		}
	}
}

// awaitScreen waits until the screen has the wanted lines.
func (e *emulator) awaitScreen(lines ...string) {
	e.t.Helper()
	want := strings.Join(lines, "\n")
	e.await(func(screen string) bool { return screen == want }, want)
}

// awaitText waits until a text is on a screen that does not change for some time, and returns the screen.
func (e *emulator) awaitText(text string) string {
	e.t.Helper()
	const unchanged = 20 // a program draws a screen in several writes
	var last string
	same := 0
	return e.await(func(screen string) bool {
		if screen == last {
			same++
		} else {
			last, same = screen, 0
		}
		return same >= unchanged && strings.Contains(screen, text)
	}, text)
}

func TestDrainViewFollowsTerminalAndLeavesSummary(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	t.Setenv("LC_ALL", "C.UTF-8")
	e := newEmulator(t, 60, 10)
	d := &nodeDrain{flags: &drainFlags{}, errOut: e.terminal, out: e.terminal}
	d.options.Node = "n"
	fmt.Fprintln(e.terminal, "n: cordoned")
	progress := d.startProgress()
	p := drain.Progress{Listed: true, StartedAt: time.Now().Add(time.Hour), Total: 20, Waiting: 20} // it has taken 0:00 all the time
	for i := range p.Total {
		p.RemainingPods = append(p.RemainingPods, drain.BlockedPod{Namespace: "shop", Pod: fmt.Sprintf("web-%02d", i), Reason: drain.ObstacleQueued})
	}
	progress.show(p)
	e.awaitScreen("n: cordoned", "n: draining for 0:00", strings.Repeat("░", 34)+" 0 of 20 gone, 20 waiting",
		"  shop/web-00  waits for its turn", "  shop/web-01  waits for its turn", "  shop/web-02  waits for its turn",
		"  shop/web-03  waits for its turn", "  shop/web-04  waits for its turn", "  shop/web-05  waits for its turn",
		"  and 14 more: 14 waiting for their turn")
	e.resize(64, 12)
	p.RemainingPods, p.Gone, p.Waiting = p.RemainingPods[:1], 19, 1
	progress.show(p)
	e.awaitScreen("n: cordoned", "n: draining for 0:00", strings.Repeat("█", 36)+"░░ 19 of 20 gone, 1 waiting",
		"  shop/web-00  waits for its turn", "  shop/web-01  gone", "  shop/web-02  gone", "  shop/web-03  gone", "  shop/web-04  gone",
		"  shop/web-05  gone", "  shop/web-06  gone", "  shop/web-07  gone", "  and 12 more: 12 gone")
	progress.finish(drain.Drained)
	d.printReport(drain.Report{Node: "n", Outcome: drain.Drained})
	e.awaitScreen("n: cordoned", "n: drained after 0.0s: 0 gone, 0 remaining, 0 skipped")
}

func TestDrainPrintsLinesOnDumbTerminal(t *testing.T) {
	t.Setenv("TERM", "dumb")
	e := newEmulator(t, 60, 10)
	d := &nodeDrain{flags: &drainFlags{}, errOut: e.terminal, concurrentDrains: 1}
	progress := d.startProgress()
	progress.show(drain.Progress{Node: "n", Listed: true, Total: 20, Gone: 3, Waiting: 17})
	progress.finish(drain.Drained)
	e.awaitScreen("n: 3 of 20 gone, 17 waiting")
}
