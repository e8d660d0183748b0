package awsnth

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// The tests below cover known faults of aws-node-termination-handler, and outputs that have to match it.

// parse returns the options for flags. The node is node-1.
func parse(t testing.TB, flags ...string) *Options {
	t.Helper()
	o, err := ParseOptions(append([]string{"-node-name=node-1"}, flags...), func(string) string { return "" }, io.Discard)
	must.NoError(t, err)
	return o
}

func newMetadataNotice(id string, kind notice.Type, at time.Time) notice.Notice {
	return notice.Notice{ID: id, Source: aws.SourceName, Type: kind, NotBefore: at, Resources: []string{"i-1"}, Description: "system-reboot: scheduled reboot"}
}

// fixedSource emits its snapshots.
type fixedSource []notice.Snapshot

func (fixedSource) Name() string        { return aws.SourceName }
func (fixedSource) LastRead() time.Time { return time.Time{} }
func (s fixedSource) Run(_ context.Context, emit func(notice.Snapshot)) {
	for _, snapshot := range s {
		emit(snapshot)
	}
}

// collect returns what the wrapped source emits on a machine that was booted a minute ago.
func collect(t testing.TB, labels map[string]string, snapshots ...notice.Snapshot) []notice.Snapshot {
	t.Helper()
	uptime := filepath.Join(t.TempDir(), "uptime")
	must.NoError(t, os.WriteFile(uptime, []byte("60.25 100.00\n"), 0o600))
	node := &kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: "node-1", Labels: labels}}
	var got []notice.Snapshot
	source := parse(t, "-uptime-from-file="+uptime).WrapSource(fixedSource(snapshots), node, slog.New(slog.DiscardHandler))
	source.Run(t.Context(), func(s notice.Snapshot) { got = append(got, s) })
	return got
}

// The tool forgot after the next restart that it had handled the event, and drained the node again.
func TestRestartForEventEndsItWithoutMetadata(t *testing.T) {
	now := time.Now()
	listed := notice.Snapshot{Notices: []notice.Notice{
		newMetadataNotice("instance-event-1", notice.Terminate, now.Add(time.Hour)), newMetadataNotice("spot-1", notice.Preempt, now.Add(time.Minute)),
	}}
	label := func(at time.Time) map[string]string {
		return map[string]string{eventIDLabel: "instance-event-1", actionLabel: uncordonAfterReboot, actionTimeLabel: fmt.Sprint(at.Unix())}
	}
	got := collect(t, label(now.Add(-time.Hour)), listed)
	if len(got) != 2 || !got[0].HasEnded("instance-event-1") || got[0].HasEnded("spot-1") || !got[1].HasEnded("instance-event-1") ||
		got[1].HasNotice("instance-event-1") || !got[1].HasNotice("spot-1") {
		t.Errorf("booted after the drain: %+v", got)
	}
	for name, labels := range map[string]map[string]string{
		"booted before the drain": label(now), "no labels": nil,
		"an unreadable time": {eventIDLabel: "instance-event-1", actionLabel: uncordonAfterReboot, actionTimeLabel: "yesterday"},
		"another action":     {eventIDLabel: "instance-event-1", actionLabel: "other", actionTimeLabel: "1"},
	} {
		got := collect(t, labels, listed)
		check.Not(t, len(got) != 1 || !got[0].HasNotice("instance-event-1"), "%s: %+v", name, got)
	}
}

func TestRebootIsOverIfMachineBootedAfterItsTime(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		kind notice.Type
		at   time.Time
		over bool
	}{
		{notice.Reboot, now.Add(-time.Hour), true},
		{notice.Reboot, now, false},
		{notice.Reboot, time.Time{}, false},
		{notice.Terminate, now.Add(-time.Hour), false}, // AWS may stop it late
		{notice.Freeze, now.Add(-time.Hour), false},
	} {
		s := notice.Snapshot{Notices: []notice.Notice{newMetadataNotice("instance-event-1", c.kind, c.at)}}
		got := collect(t, nil, s)
		check.Not(t, len(got) != 1 || got[0].HasNotice("instance-event-1") == c.over || got[0].HasEnded("instance-event-1") != c.over,
			"%s at %s: %+v", c.kind, c.at, got)
	}
}

func TestUnreadableUptimeHidesNoNotice(t *testing.T) {
	for _, content := range []string{"", "soon", "-5", "NaN", "1e300"} {
		path := filepath.Join(t.TempDir(), "uptime")
		must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := parse(t, "-uptime-from-file="+path).ReadBootTime(time.Now())
		check.Not(t, err == nil || !strings.Contains(err.Error(), path), "%q: error %v", content, err)
	}
	o := parse(t, "-uptime-from-file=/nonexistent")
	inner := fixedSource{{Notices: []notice.Notice{newMetadataNotice("instance-event-1", notice.Reboot, time.Now())}}}
	o.WrapSource(inner, nil, slog.New(slog.DiscardHandler)).Run(t.Context(), func(s notice.Snapshot) {
		check.Not(t, !s.HasNotice("instance-event-1"), "%+v", s)
	})
}

// The tool hashed the present time, so each poll of the Auto Scaling state was a new event.
func TestSameNoticeKeepsItsEventID(t *testing.T) {
	n := newMetadataNotice("asg-12ab", notice.Terminate, time.Time{})
	first := toInterruptionEvent(n)
	check.Not(t, first.EventID != "target-lifecycle-state-terminated-12ab" || first != withoutMaps(toInterruptionEvent(n)), "%+v", first)
}

// withoutMaps exists because InterruptionEvent has fields that cannot be compared.
func withoutMaps(e InterruptionEvent) InterruptionEvent { return e }
