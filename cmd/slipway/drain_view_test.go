package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/golden"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

var viewTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newViewedNodes returns nodes with blocked, terminating, queued and gone pods.
func newViewedNodes(names ...string) []*viewedNode {
	view := &drainView{}
	for _, name := range names {
		n := view.addNode(name, drain.TimeLimits{}, false)
		n.progress = drain.Progress{
			Node: name, StartedAt: viewTime.Add(-12 * time.Second), Deadline: viewTime.Add(18 * time.Second), Listed: true,
			Total: 40, Gone: 33, Stopping: 4, Waiting: 3,
			RemainingPods: []drain.BlockedPod{
				{Namespace: "shop", Pod: "invoices-0", Reason: drain.ObstaclePDB, PDB: "shop/invoices", Detail: "0 disruptions allowed", Since: viewTime.Add(-11 * time.Second)},
				{Namespace: "shop", Pod: "web-6f7d", Reason: drain.ObstacleQueued},
				{Namespace: "shop", Pod: "dns-2x9", Reason: drain.ObstacleEarlierWave},
			},
		}
		for i := range 4 {
			n.progress.RemainingPods = append(n.progress.RemainingPods, drain.BlockedPod{
				Namespace: "shop", Pod: fmt.Sprintf("encoder-5c8d9f7b6-%d", i), Reason: drain.ObstacleStopping, Since: viewTime.Add(-7 * time.Second),
				Detail: "stopping, until " + viewTime.Add(time.Duration(13+i)*time.Second).Format(time.TimeOnly) + " at the latest",
			})
		}
		for i := range 33 {
			n.goneAt[podName{"shop", fmt.Sprintf("search-%02d", i)}] = viewTime.Add(-time.Duration(i) * time.Second)
		}
	}
	return view.nodes
}

func TestDrainViewsMatchGoldenFiles(t *testing.T) {
	many := make([]string, 30)
	for i := range many {
		many[i] = fmt.Sprintf("node-%d", i)
	}
	three := newViewedNodes("spot-0", "spot-1", "spot-2")
	three[1].outcome = drain.Drained
	reading := newViewedNodes("spot-0")
	reading[0].progress = drain.Progress{StartedAt: viewTime}
	reading[0].limits.TimeoutAt = viewTime.Add(2 * time.Minute)
	reading[0].goneAt = nil
	for name, tt := range map[string]struct {
		nodes         []*viewedNode
		width, height int
		style         drainStyle
	}{
		"drain-80x24.txt":       {newViewedNodes("aks-spot-12345678-vmss000000"), 80, 24, drainStyle{}},
		"drain-40x8.txt":        {newViewedNodes("aks-spot-12345678-vmss000000"), 40, 8, drainStyle{ascii: true}},
		"drain-120x16-3.txt":    {three, 120, 16, drainStyle{}},
		"drain-60x10-30.txt":    {newViewedNodes(many...), 60, 10, drainStyle{}},
		"drain-80x24-start.txt": {reading, 80, 24, drainStyle{}},
	} {
		t.Run(name, func(t *testing.T) {
			lines := tt.style.renderNodes(tt.nodes, tt.width, tt.height, viewTime)
			golden.Check(t, filepath.Join("testdata", name), strings.Join(lines, "\n")+"\n")
		})
	}
}

func TestDocumentationShowsDrainView(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "drain.md"))
	must.NoError(t, err)
	view := strings.Join(drainStyle{}.renderNodes(newViewedNodes("aks-spot-12345678-vmss000000"), 80, 12, viewTime), "\n")
	if !strings.Contains(string(page), "```\n"+view+"\n```\n") {
		t.Errorf("docs/drain.md does not show the view\n%s", view)
	}
}

func TestDrainViewFitsEveryTerminal(t *testing.T) {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab-é漢字\x1b[2J\n\t\u009b…")), 0, 60, -1)
	rapid.Check(t, func(t *rapid.T) {
		nodes := newViewedNodes(rapid.SliceOfN(text, 0, 40).Draw(t, "nodes")...)
		for _, n := range nodes {
			n.progress.RemainingPods[0].Detail, n.progress.RemainingPods[0].Pod = text.Draw(t, "detail"), text.Draw(t, "pod")
		}
		width, height := rapid.IntRange(1, 220).Draw(t, "width"), rapid.IntRange(1, 60).Draw(t, "height")
		style := drainStyle{ascii: rapid.Bool().Draw(t, "ascii"), color: rapid.Bool().Draw(t, "color")}
		lines := style.renderNodes(nodes, width, height, viewTime)
		if len(lines) > max(height-1, 1) {
			t.Errorf("%d lines on a terminal of %d", len(lines), height)
		}
		for _, line := range lines {
			plain := ansi.Strip(line)
			if w := ansi.StringWidth(plain); w > max(width-1, 1) || strings.ContainsAny(plain, "\x1b\n\t\u009b") {
				t.Errorf("%q has %d cells on a terminal of %d", line, w, width)
			}
			if !style.color && plain != line {
				t.Errorf("%q has a color", line)
			}
		}
	})
}

func TestFrameStartFollowsNewWidth(t *testing.T) {
	frame := []string{"\x1b[1m" + strings.Repeat("a", 79) + "\x1b[m", "", "漢字"}
	for width, want := range map[int]string{80: "\r\x1b[2A", 79: "\r\x1b[2A", 40: "\r\x1b[3A", 20: "\r\x1b[5A"} {
		if got := moveToFrameStart(frame, width); got != want {
			t.Errorf("width %d: %q, want %q", width, got, want)
		}
	}
	if got := moveToFrameStart(nil, 80); got != "\r" {
		t.Errorf("without a frame: %q", got)
	}
}

func TestI3InterruptExplainsTheStateItLeaves(t *testing.T) {
	for name, tt := range map[string]struct {
		flags  []string
		before bool // the node is cordoned before the drain
		want   []string
	}{
		"cordon removed": {nil, false, []string{"interrupted: uncordoning the node; a second Ctrl-C exits at once", "uncordoned again", "the node is not cordoned\n", "to continue, run the command again; nothing else"}},
		"cordon kept":    {[]string{"--keep-cordoned"}, false, []string{"the node stays cordoned: --keep-cordoned is set\n", "to undo, run kubectl uncordon n\n"}},
		"cordoned before": {nil, true, []string{
			"the node stays cordoned: it was cordoned before\n", "to undo, run kubectl uncordon n\n",
		}},
	} {
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
			c := newFakeDrainCluster(t, "n")
			c.editNode("n", func(n *kubeapi.Node) { n.Spec.Unschedulable = tt.before })
			c.stopsIn = time.Hour
			for i := range 7 {
				c.runPod(fmt.Sprintf("web-%d", i), "n")
			}
			ctx, interrupt := context.WithCancel(t.Context())
			time.AfterFunc(time.Minute, interrupt)
			r := c.runDrain(ctx, append(tt.flags, "n")...)
			want := append(tt.want, "n: interrupted: 0 evicted pods gone, 7 still terminating, 0 not evicted\n",
				"an accepted eviction cannot be undone: shop/web-0, shop/web-1, shop/web-2, shop/web-3, shop/web-4 and 2 more\n")
			for _, text := range want {
				if r.code != exitInterrupted || !strings.Contains(r.stderr, text) {
					t.Errorf("exit code %d, want %d with %q:\n%s", r.code, exitInterrupted, text, r.stderr)
				}
			}
		}))
	}
}

func TestSkippedPodIsNotShownAsGone(t *testing.T) {
	n := (&drainView{}).addNode("n", drain.TimeLimits{}, false)
	web, db := drain.BlockedPod{Namespace: "shop", Pod: "web"}, drain.BlockedPod{Namespace: "shop", Pod: "db"}
	n.show(drain.Progress{Listed: true, Total: 2, RemainingPods: []drain.BlockedPod{web, db}})
	n.show(drain.Progress{Listed: true, Total: 1, Skipped: 1, RemainingPods: []drain.BlockedPod{web}})
	n.show(drain.Progress{Listed: true, Total: 1, Skipped: 1, Gone: 1})
	if _, shown := n.goneAt[podName{"shop", "db"}]; shown || n.goneAt[podName{"shop", "web"}].IsZero() {
		t.Errorf("gone: %v, want only web", n.goneAt)
	}
}

func TestLinesAboveViewCannotControlTheTerminal(t *testing.T) {
	var terminal bytes.Buffer
	v := newDrainView(textWriter{&terminal})
	fmt.Fprint(v, "n: denied by \x1b]0;x\a\n")
	v.close()
	if got := terminal.String(); !strings.Contains(got, "n: denied by ]0;x\n") || !strings.Contains(got, eraseScreenEnd) {
		t.Errorf("%q", got)
	}
}

func TestPodDeletedByAnotherClientIsTerminating(t *testing.T) {
	var out bytes.Buffer
	d := &nodeDrain{options: drain.Options{Node: "n"}, errOut: &out}
	d.explainInterrupt(drain.Report{Pods: []drain.PodReport{{Namespace: "shop", Name: "web", TerminatingSince: viewTime}}}, cordonState{})
	if want := "0 evicted pods gone, 1 still terminating, 0 not evicted\n"; !strings.Contains(out.String(), want) {
		t.Errorf("%s, want %q", out.String(), want)
	}
}

// stoppedTerminal never accepts output, like a terminal after Ctrl-S, until it is closed.
type stoppedTerminal chan struct{}

func (s stoppedTerminal) Write(p []byte) (int, error) {
	<-s
	return len(p), nil
}

func TestStoppedTerminalDoesNotStopTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped := stoppedTerminal(make(chan struct{}))
		n := newDrainView(stopped).addNode("n", drain.TimeLimits{}, true)
		time.Sleep(time.Minute) // the view waits for the terminal
		n.show(drain.Progress{Listed: true, Total: 1})
		n.show(drain.Progress{Listed: true, Total: 1, Gone: 1})
		close(stopped)
		n.finish(drain.Drained)
	})
}
