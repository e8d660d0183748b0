package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"

	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/golden"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/top"
)

// openPseudoterminal opens a pseudoterminal and returns both ends.
func openPseudoterminal(t *testing.T) (shows, terminal *os.File) {
	t.Helper()
	shows, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudoterminal is to be had here: %v", err)
	}
	t.Cleanup(func() { _ = shows.Close() })
	number, err := unix.IoctlGetInt(int(shows.Fd()), unix.TIOCGPTN)
	must.NoError(t, err)
	must.NoError(t, unix.IoctlSetPointerInt(int(shows.Fd()), unix.TIOCSPTLCK, 0))
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must.NoError(t, err)
	t.Cleanup(func() { _ = terminal.Close() })
	must.NoError(t, unix.IoctlSetWinsize(int(shows.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	return shows, terminal
}

func TestScreenNeedsCapableTerminal(t *testing.T) {
	_, terminal := openPseudoterminal(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "nodes.log"))
	must.NoError(t, err)
	defer func() { _ = file.Close() }()
	_, pipe, err := os.Pipe()
	must.NoError(t, err)
	defer func() { _ = pipe.Close() }()
	for _, tt := range []struct {
		name, term string
		out        io.Writer
		want       bool
	}{
		{"a terminal", "xterm-256color", terminal, true},
		{"a terminal for text", "xterm-256color", textWriter{terminal}, true},
		{"a terminal of another name", "linux", terminal, true},
		{"a dumb terminal", "dumb", terminal, false},
		{"a terminal without a name", "", terminal, false},
		{"a pipe", "xterm-256color", pipe, false},
		{"a file", "xterm-256color", file, false},
		{"no file at all", "xterm-256color", &bytes.Buffer{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("TERM", tt.term)
			t.Setenv("NO_COLOR", "1") // which takes colours off, and no screen away
			check.Is(t, tt.want, supportsScreen(tt.out))
		})
	}
}

// colourSequence matches an escape sequence that sets a colour.
var colourSequence = regexp.MustCompile(`\x1b\[(?:[0-9;]*;)?(?:[34][0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m`)

func TestNO_COLORRemovesColours(t *testing.T) {
	for _, tt := range []struct {
		name, noColor string
		want          bool
	}{
		{"not set", "", true},
		{"set", "1", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env := []string{"TERM=xterm-256color", "NO_COLOR=" + tt.noColor}
			const problem = "something is wrong"
			got := runOnTerminal(t, env, top.State{Problems: []string{problem}}, problem)
			if colourSequence.MatchString(got) != tt.want {
				t.Errorf("colours are %v, want %v: %q", !tt.want, tt.want, got)
			}
		})
	}
}

// noActions implements top.Actions without requests.
type noActions struct{ top.Actions }

func (noActions) DescribeNodePods(_ context.Context, node string) (top.NodePods, error) {
	return top.NodePods{Node: node, Lines: []top.PaneLine{{Severity: top.Trouble, Text: "shop/web-1  waits for PDB shop/web"}}}, nil
}

func TestTopScreenOnTerminalFollowsKeysAndSize(t *testing.T) {
	e := newEmulator(t, 80, 12)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	node := func(name, instanceType string, cpu int64) top.Node {
		return top.Node{
			Name: name, HasNode: true, InstanceType: instanceType, Zone: "west-1", CreatedAt: at.Add(-3 * time.Hour),
			Load: &planner.Utilization{Pods: 3, CPU: cpu, AllocatableCPU: 4000, Memory: 1 << 30, AllocatableMemory: 4 << 30}, Activity: top.Activity{Text: "in use"},
		}
	}
	ui := top.NewUI(t.Context(), noActions{}, top.Options{Title: "test", Now: at})
	program := newProgram(t.Context(), ui, e.terminal, tea.WithEnvironment([]string{"TERM=xterm-256color", "NO_COLOR=1"}), tea.WithInput(nil),
		tea.WithoutSignalHandler(), tea.WithFilter(func(_ tea.Model, msg tea.Msg) tea.Msg {
			if strings.HasSuffix(fmt.Sprintf("%T", msg), ".tick") {
				return nil // the time stands still
			}
			return msg
		}))
	ended := make(chan error, 1)
	go func() {
		_, err := program.Run()
		ended <- err
	}()
	program.Send(top.State{Groups: []top.Group{{Nodes: []top.Node{node("large", "D16s", 1000), node("small", "B2s", 3000)}}}})
	show := func(name, until string, msgs ...tea.Msg) {
		t.Helper()
		for _, msg := range msgs {
			program.Send(msg)
		}
		golden.Check(t, filepath.Join("testdata", name), e.awaitText(until)+"\n")
	}
	key := func(s string) tea.Msg { return tea.KeyPressMsg{Code: []rune(s)[0], Text: s} }
	show("top-80x12.txt", "D16s")
	show("top-80x12-pods.txt", "waits for PDB shop/web", key("C"), tea.KeyPressMsg{Code: tea.KeyEnter})
	e.resize(140, 16)
	show("top-140x16-filter.txt", "filter b2", tea.WindowSizeMsg{Width: 140, Height: 16}, key("/"), key("b"), key("2"), tea.KeyPressMsg{Code: tea.KeyEnter}, key("e"))
	program.Quit()
	must.NoError(t, <-ended)
}

// runOnTerminal runs the view on a terminal with an environment and returns the output up to a text.
func runOnTerminal(t *testing.T, env []string, s top.State, until string) string {
	t.Helper()
	shows, terminal := openPseudoterminal(t)
	ui := top.NewUI(t.Context(), nil, top.Options{Title: "test"})
	program := newProgram(t.Context(), ui, terminal, tea.WithEnvironment(env), tea.WithInput(nil), tea.WithoutSignalHandler())
	ended := make(chan error, 1)
	go func() {
		_, err := program.Run()
		ended <- err
	}()
	program.Send(s)
	late := time.AfterFunc(time.Minute, func() { _ = terminal.Close() }) // Read ends by it
	defer late.Stop()
	var seen strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(seen.String(), until) {
		n, err := shows.Read(buf)
		seen.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v after %q", err, seen.String())
		}
	}
	go func() { _, _ = io.Copy(io.Discard, shows) }() // nothing that is written at the end may have to wait
	program.Quit()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return seen.String()
}
