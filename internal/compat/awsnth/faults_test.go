package awsnth

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"text/template"
	"time"

	"github.com/Masterminds/sprig/v3"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
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
	first, second := toInterruptionEvent(n), toInterruptionEvent(n)
	check.Not(t, first.EventID != "target-lifecycle-state-terminated-12ab" || second.EventID != first.EventID, "%+v, then %+v", first, second)
}

// newReporter returns a reporter with its registry.
func newReporter(t testing.TB, flags ...string) (*Reporter, *observe.Registry) {
	r := observe.NewRegistry()
	return NewReporter(parse(t, flags...), NewMetrics(r), &Identity{}, slog.New(slog.DiscardHandler)), r
}

func render(r *observe.Registry) string {
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

func TestEventsAndMetricsMatchTool(t *testing.T) {
	spot := newMetadataNotice("spot-1", notice.Preempt, time.Now().Add(time.Minute))
	queued := notice.Notice{ID: "state-change", Source: notice.AWSQueue, Type: notice.Terminate, Resources: []string{"i-1"}}
	const queueMode = "-enable-sqs-termination-draining"
	const queueURL = "-queue-url=https://sqs.eu-west-1.amazonaws.com/1/q"
	for _, c := range []struct {
		name    string
		flags   []string
		trigger agent.EventTrigger
		reasons string
		series  string
	}{
		{"notice", nil, agent.EventTrigger{Reason: agent.NoticeReceived, Notice: spot}, "Normal SpotInterruption", ""},
		{"disabled", []string{"-enable-spot-interruption-draining=false"}, agent.EventTrigger{Reason: agent.NoticeReceived, Notice: spot}, "", ""},
		{"cordon", nil, agent.EventTrigger{Reason: agent.NodeCordoned, Notice: spot}, "Normal PreDrain", "pre-drain success"},
		{"cordon only", []string{"-cordon-only"}, agent.EventTrigger{Reason: agent.NodeCordoned, Notice: spot}, "Normal PreDrain Normal Cordon", "cordon success"},
		{"maintenance that restarts nothing", nil, agent.EventTrigger{Reason: agent.NodeCordoned, Notice: newMetadataNotice("e-1", notice.Freeze, time.Time{})}, "", ""},
		{"drained", nil, agent.EventTrigger{Reason: agent.DrainDone, Message: "2 pods"}, "Normal CordonAndDrain", "cordon-and-drain success"},
		{"not drained", nil, agent.EventTrigger{Reason: agent.DrainFailed, Message: "1 pod left"}, "Warning CordonAndDrainError", "cordon-and-drain error"},
		{"uncordoned", nil, agent.EventTrigger{Reason: agent.NodeUncordoned}, "Normal Uncordon", "uncordon success"},
		{"not uncordoned", nil, agent.EventTrigger{Reason: agent.UncordonFailed, Notice: spot}, "Warning UncordonError", "uncordon error"},
		{"queue, version 1", []string{queueMode, queueURL}, agent.EventTrigger{Reason: agent.NoticeReceived, Notice: queued}, "Normal SQSTermination", ""},
		{"queue, version 2", []string{queueMode, queueURL, "-log-format-version=2"}, agent.EventTrigger{Reason: agent.NoticeReceived, Notice: queued}, "Normal StateChange", ""},
		{"queue, cordon", []string{queueMode, queueURL}, agent.EventTrigger{Reason: agent.NodeCordoned, Notice: queued}, "", ""},
		{"queue, drained", []string{queueMode, queueURL}, agent.EventTrigger{Reason: agent.DrainDone}, "Normal CordonAndDrain Normal PostDrain", "post-drain success"},
		{"without equivalent", nil, agent.EventTrigger{Reason: agent.DrainBlocked, Message: "blocked"}, "", ""},
	} {
		reporter, registry := newReporter(t, append(c.flags, "-emit-kubernetes-events", "-kubernetes-events-extra-annotations=a/b=c,ä=x,UPPER/x=y")...)
		all, ok := reporter.FormatEvents(c.trigger)
		var reasons []string
		for _, e := range all {
			reasons = append(reasons, e.Type+" "+e.Reason)
			_, bad := e.Annotations["ä"]
			_, upper := e.Annotations["UPPER/x"]
			check.Not(t, bad || upper || e.Annotations["a/b"] != "c" || e.Component != Tool, "%s: %+v", c.name, e)
			check.Not(t, c.trigger.Reason == agent.DrainFailed && !strings.Contains(e.Message, "1 pod left"), "%s: %+v", c.name, e)
		}
		check.Not(t, strings.Join(reasons, " ") != c.reasons || ok != (c.reasons != ""), "%s: %q, %t", c.name, reasons, ok)
		if action, status, counted := strings.Cut(c.series, " "); counted {
			want := `actions_total{node_action="` + action + `",node_status="` + status + `",otel_scope_name="aws.node.termination.handler",otel_scope_version=""} 1`
			check.Not(t, !strings.Contains(render(registry), want), "%s: no %s in\n%s", c.name, want, render(registry))
		}
		quiet, _ := newReporter(t, c.flags...)
		_, ok = quiet.FormatEvents(c.trigger)
		check.Not(t, ok, "%s: written although Kubernetes Events are disabled", c.name)
	}
}

// The tool kept a series for each event for ever.
func TestSeriesOfNodesAreLimited(t *testing.T) {
	reporter, registry := newReporter(t)
	for i := range 3 * maxNodeSeries {
		reporter.metrics.countAction(actionUncordon, fmt.Sprint("node-", i), "event", false)
	}
	page := render(registry)
	check.Not(t, strings.Count(page, "actions_node_total{") > maxNodeSeries+1, "%d series", strings.Count(page, "actions_node_total{"))
	check.Not(t, !strings.Contains(page, fmt.Sprintf(`node_action="uncordon",node_status="success",otel_scope_name="%s",otel_scope_version=""} %d`, meter, 3*maxNodeSeries)), "%s", page)
}

func TestFailedReadsCountForTheirMonitor(t *testing.T) {
	reporter, registry := newReporter(t)
	reporter.metrics.FetchFailed(fmt.Errorf("GET http://169.254.169.254/latest/meta-data/events/maintenance/scheduled: 503"), "")
	want := `events_error_total{event_error_where="SCHEDULED_EVENT_MONITOR",otel_scope_name="aws.node.termination.handler",otel_scope_version=""} 1`
	check.Not(t, !strings.Contains(render(registry), want), "%s", render(registry))
}

// The tool checked its templates with a pointer and filled them in without, so a template with a method passed the check and
// then failed.
func TestWebhookTemplatesHaveToolsFieldsAndMethods(t *testing.T) {
	const template = `{{ .EventID }}|{{ .Kind }}|{{ .Monitor }}|{{ .InstanceID }}|{{ .InstanceType }}|{{ .NodeName }}|{{ .NodeLabels.a }}|{{ .Pods }}|{{ .StartTime }}|` +
		`{{ .EndTime }}|{{ .State }}|{{ .AccountId }}|{{ .AvailabilityZone }}|{{ .Region }}|{{ .LocalIP }}|{{ .PublicIP }}|{{ .LocalHostname }}|{{ .PublicHostname }}|` +
		`{{ .InstanceLifeCycle }}|{{ .AutoScalingGroupName }}|{{ .ProviderID }}|{{ .IsManaged }}|{{ .NodeProcessed }}|{{ .InProgress }}|{{ .IsRebalanceRecommendation }}|` +
		`{{ gt .TimeUntilEvent 0 }}|{{ .NodeMetadata.InstanceID }}|{{ lower .InterruptionEvent.Kind }}|{{ .Description }}`
	var identity Identity
	identity.read.Store(&NodeMetadata{AccountId: "1234", InstanceID: "i-1", LocalIP: "10.0.0.7"})
	data := NewWebhookData(&identity)
	due := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	m := notify.Message{
		Moment: notify.Detected, Source: aws.SourceName, NodeName: "node-1", NodePods: []string{"web-0"},
		NodeLabels: map[string]string{"a": "b", "node.kubernetes.io/instance-type": "m7g.large", "topology.kubernetes.io/zone": "eu-west-1a"},
		Event:      notify.Event{EventId: "spot-1", EventType: "Preempt", Resources: []string{"i-1"}, NotBefore: due.Format(http.TimeFormat)},
	}
	got := fill(t, template, data(m))
	want := "spot-itn-1|SPOT_ITN|SPOT_ITN_MONITOR|i-1|m7g.large|node-1|b|[web-0]|" + due.String() + "|" + due.String() + "||1234|eu-west-1a||10.0.0.7||||||" +
		"aws:///eu-west-1a/i-1|true|false|true|false|true|i-1|spot_itn|Spot ITN received. Instance will be interrupted at " + due.Format(time.RFC3339)
	check.Not(t, got != want, "got  %s\nwant %s", got, want)
	for _, moment := range notify.Moments() { // the samples that check a template at the start
		check.Not(t, !strings.Contains(fill(t, defaultWebhookTemplate, data(notify.NewSampleMessage(moment, time.Now()))), "EventID: "), "%s", moment)
	}
}

func fill(t testing.TB, text string, data any) string {
	t.Helper()
	var b strings.Builder
	must.NoError(t, template.Must(template.New("body").Funcs(sprig.TxtFuncMap()).Parse(text)).Execute(&b, data))
	return b.String()
}

// fakeMetadata answers with its documents.
type fakeMetadata map[string]string

func (f fakeMetadata) Get(_ context.Context, path string) ([]byte, bool, error) {
	body, found := f[path]
	return []byte(body), found, nil
}

func TestInstanceIsDescribedWithoutReadableDocument(t *testing.T) {
	for _, document := range []string{"", "<html>", `{"accountId":7}`, "null"} {
		m, err := readNodeMetadata(t.Context(), fakeMetadata{
			identityPath: document, "/latest/meta-data/instance-id": "i-1", "/latest/meta-data/placement/region": "eu-west-1\n",
		})
		check.Not(t, err != nil || m.InstanceID != "i-1" || m.Region != "eu-west-1" || m.PublicIP != "", "%q: %+v, %v", document, m, err)
	}
}

func TestProbeFailsIfProcessHangs(t *testing.T) {
	for _, err := range []error{nil, io.ErrUnexpectedEOF} {
		w := httptest.NewRecorder()
		NewProbeHandler(func() error { return err }).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		check.Not(t, (w.Code == 200 && w.Body.String() == `{"health":"OK"}`) != (err == nil), "%v: %d %s", err, w.Code, w.Body)
	}
}

func TestHangingAnswerOfEC2EndsNoCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute-time.Second)
		defer stop()
		requests := 0
		NewMetrics(observe.NewRegistry()).CountTagged(ctx, Inventory{DescribeTagged: func(ctx context.Context, _ string) ([]queue.Instance, error) {
			requests++
			<-ctx.Done()
			return nil, ctx.Err()
		}}, "tag", slog.New(slog.DiscardHandler))
		if requests != 10 {
			t.Errorf("%d requests in 10m that hang, want one each minute", requests)
		}
	})
}
