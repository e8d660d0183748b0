package agent

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

func TestPodLabelSetsItsNoticePolicy(t *testing.T) {
	for _, tt := range []struct {
		label, value string
		kind         notice.Type
		live, want   bool
	}{
		{EvictOnLabel, "freeze", notice.Freeze, false, true},
		{EvictOnLabel, "freeze", notice.Freeze, true, true},
		{EvictOnLabel, "Freeze.Reboot", notice.Reboot, false, true},
		{EvictOnLabel, "live-migration", notice.Freeze, true, true},
		{EvictOnLabel, "live-migration", notice.Freeze, false, false},
		{EvictOnLabel, "reboot", notice.Freeze, false, false},
		{EvictOnLabel, "any", notice.Condition, false, true},
		{EvictOnLabel, "", notice.Freeze, false, false},
		{"example.com/other", "freeze", notice.Freeze, false, false},
		{aksFreezeLabel, "true", notice.Freeze, true, true},
		{aksFreezeLabel, "", notice.Freeze, false, true},
		{aksFreezeLabel, "false", notice.Freeze, false, false},
		{aksFreezeLabel, "true", notice.Reboot, false, false},
	} {
		p := &kubeapi.Pod{ObjectMeta: kubeapi.ObjectMeta{Labels: map[string]string{tt.label: tt.value}}}
		if got := isMarkedForEviction(p, tt.kind, tt.live); got != tt.want {
			t.Errorf("%s=%s, %s (live migration %v): %v", tt.label, tt.value, tt.kind, tt.live, got)
		}
	}
}

func TestPodGetsPolicyOfMostSevereNotice(t *testing.T) {
	plain := kubeapi.Pod{}
	mindful := kubeapi.Pod{ObjectMeta: kubeapi.ObjectMeta{Labels: map[string]string{EvictOnLabel: "reboot"}}}
	freeze, reboot := demand{noticeType: notice.Freeze}, demand{noticeType: notice.Reboot, markedOnly: true}
	for name, tt := range map[string]struct {
		demands        []demand
		plain, mindful podrules.Action // of a pod with an emptyDir
	}{
		"a Freeze for all":         {[]demand{freeze}, podrules.Skip, podrules.Skip},
		"a Reboot for marked pods": {[]demand{reboot}, podrules.Skip, podrules.Evict},
		"both":                     {[]demand{freeze, reboot}, podrules.Skip, podrules.Evict},
		"a Preempt on top":         {[]demand{freeze, reboot, {noticeType: notice.Preempt}}, podrules.Evict, podrules.Evict},
		"a condition is more severe than a Freeze": {[]demand{freeze, {noticeType: notice.Condition}}, podrules.Evict, podrules.Evict},
	} {
		o := drainSpec{demands: tt.demands}
		got := func(p kubeapi.Pod) podrules.Action {
			if !o.matchesPod(p) {
				return podrules.Skip
			}
			return o.podPolicy(p).ActionFor(podrules.RuleLocalStorage)
		}
		if got(plain) != tt.plain || got(mindful) != tt.mindful {
			t.Errorf("%s: a plain pod gets %s, want %s; a marked pod gets %s, want %s", name, got(plain), tt.plain,
				got(mindful), tt.mindful)
		}
	}
}

// A container runtime splits lines of more than 16 KiB.
func TestLogLineStaysShortForManyPods(t *testing.T) {
	var log bytes.Buffer
	a := New(Options{
		Node: "n", Metrics: NewMetrics(observe.NewRegistry()), Log: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	receipt := drain.Report{Outcome: drain.TimedOut}
	progress := drain.Progress{Listed: true}
	for i := range 250 {
		p := drain.PodReport{
			Namespace: "shop", Name: fmt.Sprintf("%s-%d", strings.Repeat("x", 200), i), Action: podrules.Evict, End: drain.Stopped,
		}
		if i%2 == 0 {
			p.End = drain.Killed
		}
		receipt.Pods = append(receipt.Pods, p)
		progress.RemainingPods = append(progress.RemainingPods, drain.BlockedPod{Pod: p.Name, Reason: drain.ObstaclePDB, Detail: strings.Repeat("y", 200)})
	}
	run := &drainRun{cancel: func() {}}
	a.drain = run
	a.recordFailedDrain(run, receipt, errors.New(strings.Repeat("z", 100_000)))
	a.newProgressHandler(run)(progress)
	lines := 0
	for line := range strings.Lines(log.String()) {
		if lines++; len(line) > 16<<10 {
			t.Errorf("a line of %d bytes: %.200s", len(line), line)
		}
	}
	if !strings.Contains(log.String(), `"more pods were killed, force-deleted or left behind","pods":105`) || lines > maxLoggedPods+5 {
		t.Errorf("%d lines", lines)
	}
}
