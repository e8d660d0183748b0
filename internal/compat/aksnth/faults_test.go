package aksnth

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// Each test below covers one known fault of the tool (W1 and so on). Tests that need a cluster are in dev/e2e/compat.

func TestW04AcknowledgesByDefault(t *testing.T) {
	if c := mustParse(t).ToAgentConfig(); !c.Acknowledge {
		t.Error("want events acknowledged by default")
	}
	if c := mustParse(t, "-acknowledge=false").ToAgentConfig(); c.Acknowledge {
		t.Error("want no acknowledgement with -acknowledge=false")
	}
}

func TestW05DeadlineOverridesTwoMinuteFlag(t *testing.T) {
	due := time.Now().Add(15 * time.Minute)
	for _, kind := range []notice.Type{notice.Preempt, notice.Terminate, notice.Reboot, notice.Redeploy} {
		c := mustParse(t).ToAgentConfig()
		d := c.BuildNoticePolicy().Decide(notice.Notice{Type: kind, NotBefore: due}, agent.SeenTimes{First: time.Now()})
		if d.Action != agent.Drain || !d.Forced || !d.Deadline.Equal(due) || c.DeadlineMargin <= 0 {
			t.Errorf("%s: %+v, margin %s", kind, d, c.DeadlineMargin)
		}
	}
}

// sendToReceivers sends a sample to the receivers of the options.
func sendToReceivers(t *testing.T, o *Options, sample notify.Message) error {
	t.Helper()
	n, err := notify.NewNotifier(o.ToReceivers(), notify.Options{})
	must.NoError(t, err)
	return n.SendToAllNow(t.Context(), sample)
}

func TestW12TimeoutLimitsWholeRequest(t *testing.T) {
	release := make(chan struct{})
	hole := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer hole.Close()
	defer close(release)
	o := mustParse(t, "-webhook.url="+hole.URL, "-webhook.template=x", "-webhook.timeout=100ms", "-webhook.retries=0")
	began := time.Now()
	err := sendToReceivers(t, o, notify.NewSampleMessage(notify.Detected, time.Now()))
	if err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

func TestW13DrainNodeRefusesRemoteClientsAndGET(t *testing.T) {
	private, err := observe.NewLoopbackOrTokenCheck("")
	must.NoError(t, err)
	drained, released := 0, 0
	var fail error
	routes := NewRoutes(AgentAccess{
		CheckLive: func() error { return fail }, AuthorizeDrain: private, CancelDrain: func() { released++ },
		Drain: func(context.Context) error { drained++; return fail },
	})
	for _, c := range []struct {
		method, remote string
		fail           error
		want           int
		body           string
	}{
		{http.MethodPost, "10.0.0.1:1", nil, 403, ""},
		{http.MethodGet, "127.0.0.1:1", nil, 405, ""},
		{http.MethodPut, "127.0.0.1:1", nil, 405, ""},
		{http.MethodPost, "127.0.0.1:1", nil, 200, "done"},
		{http.MethodPost, "127.0.0.1:1", errors.New("kept"), 500, "kept\n"},
		{http.MethodDelete, "127.0.0.1:1", nil, 200, "released"},
	} {
		fail = c.fail
		r := httptest.NewRequest(c.method, "/drainNode", nil)
		r.RemoteAddr = c.remote
		answer := httptest.NewRecorder()
		routes["/drainNode"].ServeHTTP(answer, r)
		if answer.Code != c.want || c.body != "" && answer.Body.String() != c.body {
			t.Errorf("%s from %s: %d %q", c.method, c.remote, answer.Code, answer.Body)
		}
	}
	if drained != 2 || released != 1 {
		t.Errorf("drained %d times and released %d", drained, released)
	}
}

func TestHealthzIsLIVEOr500(t *testing.T) {
	var fail error
	route := NewRoutes(AgentAccess{CheckLive: func() error { return fail }})["/healthz"]
	for _, c := range []struct {
		err  error
		code int
		body string
	}{{nil, 200, "LIVE"}, {errors.New("stuck"), 500, "stuck\n"}} {
		fail = c.err
		answer := httptest.NewRecorder()
		route.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		if answer.Code != c.code || answer.Body.String() != c.body {
			t.Errorf("%d %q", answer.Code, answer.Body)
		}
	}
}

func TestW16NoExecuteWaitsForDrain(t *testing.T) {
	c := mustParse(t, "-taint.node", "-taint.effect=NoExecute").ToAgentConfig()
	got := c.BuildTaint().ForNotice(notice.Notice{Type: notice.Preempt, ID: "e"})
	if got.String() != "aks-node-termination-handler/preempt=e:NoExecute" {
		t.Errorf("taint %s", got)
	}
	manifest, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "agent", "daemonset.yaml"))
	if err != nil || !strings.Contains(string(manifest), "operator: Exists") {
		t.Errorf("the shipped agent would be evicted by its own taint: %v", err)
	}
}

func TestTaintsMatchTool(t *testing.T) {
	c := mustParse(t, "-taint.node").ToAgentConfig()
	for kind, want := range map[notice.Type]string{
		notice.Preempt: "preempt", notice.Terminate: "terminate", notice.Reboot: "reboot", notice.Redeploy: "redeploy",
		notice.Freeze: "freeze",
	} {
		got := c.BuildTaint().ForNotice(notice.Notice{Type: kind, ID: "602D9444"})
		if got.Key != "aks-node-termination-handler/"+want || got.Value != "602D9444" || got.Effect != "NoSchedule" {
			t.Errorf("%s: %s", kind, got)
		}
	}
	check.Is(t, "aks-node-termination-handler/preempt=manual:NoSchedule", c.BuildTaint().ForNotice(notice.Notice{Type: notice.Condition, PodType: ManualDrainType, ID: "manual"}).String())
	if c := mustParse(t).ToAgentConfig(); c.TaintEffect != "" {
		t.Errorf("tainted without -taint.node: %s", c.TaintEffect)
	}
}

func TestW20CertificatesAreVerifiedAndSecretsHidden(t *testing.T) {
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer secure.Close()
	args := []string{"-webhook.url=" + secure.URL + "/services/s3cret", "-webhook.template=x", "-webhook.retries=0"}
	err := sendToReceivers(t, mustParse(t, args...), notify.NewSampleMessage(notify.Detected, time.Now()))
	if err == nil || !strings.Contains(err.Error(), "certificate") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("certificate of an unknown CA: %v", err)
	}
	must.NoError(t, sendToReceivers(t, mustParse(t, append(args, "-webhook.insecureSkip")...), notify.NewSampleMessage(notify.Detected, time.Now())))
	m, err := Migrate(append(args, "-telegram.token=1:s3cret", "-telegram.chatID=1", "-webhook.http-proxy=http://u:s3cret@p"), io.Discard)
	must.NoError(t, err)
	if raw, err := m.ToFile(); err != nil || strings.Contains(string(raw), "s3cret") {
		t.Errorf("the migrated file contains a secret: %v\n%s", err, raw)
	}
}

func TestW21PayloadsAreNotHTML(t *testing.T) {
	var got string
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		got = string(raw)
	}))
	defer hook.Close()
	m := notify.NewSampleMessage(notify.Detected, time.Now())
	m.Event.Description = `1 + 1 "is" <2>`
	const template = `<https://example.com/?a=1&b=2|{{ .NodeName }}> {{ .Event.Description }} {{ .NodePods | toJson }} {{ .NodePods | join "," }}`
	must.NoError(t, sendToReceivers(t, mustParse(t, "-webhook.url="+hook.URL, "-webhook.template="+template), m))
	want := `<https://example.com/?a=1&b=2|` + m.NodeName + `> 1 + 1 "is" <2> ["` + strings.Join(m.NodePods, `","`) + `"] ` +
		strings.Join(m.NodePods, ",") + "\n"
	check.Is(t, want, got)
}

// TestTemplateFailingOnTheSampleStartsTheAgent has templates that made the tool lose messages.
func TestTemplateFailingOnTheSampleStartsTheAgent(t *testing.T) {
	for _, bad := range []string{"{{ .Nope }}", "{{ index .NodePods 9 }}", "{{ index .Event.Resources 1 }}"} {
		o := mustParse(t, "-webhook.url=http://127.0.0.1:1", "-webhook.template="+bad)
		if o.WarnAboutTemplates(); len(o.Warnings) > 0 {
			t.Errorf("%s: %v", bad, o.Warnings)
		}
		var log bytes.Buffer
		n, err := notify.NewNotifier(o.ToReceivers(), notify.Options{WarnOnInvalidTemplates: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil || !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "webhook.template:1") {
			t.Fatalf("%s: %v, log %s", bad, err, &log)
		}
		if err := n.SendToAllNow(t.Context(), notify.NewSampleMessage(notify.Detected, time.Now())); err == nil {
			t.Errorf("%s: was sent", bad)
		}
		if _, err := notify.NewNotifier(o.ToReceivers(), notify.Options{}); err == nil {
			t.Errorf("%s: slipway agent accepts it", bad)
		}
	}
}

// TestUnreadableTemplateStartsTheAgent has a file that is created after the start, and an invalid template.
func TestUnreadableTemplateStartsTheAgent(t *testing.T) {
	got := make(chan string, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		got <- string(raw)
	}))
	defer hook.Close()
	path := filepath.Join(t.TempDir(), "payload")
	o := mustParse(t, "-webhook.url="+hook.URL, "-webhook.template-file="+path, "-webhook.retries=0")
	n, err := notify.NewNotifier(o.ToReceivers(), notify.Options{WarnOnInvalidTemplates: true})
	must.NoError(t, err)
	if err := n.SendToAllNow(t.Context(), notify.NewSampleMessage(notify.Detected, time.Now())); err == nil {
		t.Error("sent without a template")
	}
	must.NoError(t, os.WriteFile(path, []byte("now {{ .Moment }}"), 0o600))
	must.NoError(t, n.SendToAllNow(t.Context(), notify.NewSampleMessage(notify.Detected, time.Now())))
	check.Is(t, "now detected\n", <-got)
	o = mustParse(t, "-webhook.url="+hook.URL, "-webhook.template={{ .NodeName")
	if n, err = notify.NewNotifier(o.ToReceivers(), notify.Options{WarnOnInvalidTemplates: true}); err != nil {
		t.Fatal(err)
	}
	check.ErrorContains(t, n.SendToAllNow(t.Context(), notify.NewSampleMessage(notify.Detected, time.Now())), "webhook.template:1")
	if _, err := notify.NewNotifier(o.ToReceivers(), notify.Options{}); err == nil {
		t.Error("slipway agent accepts it")
	}
}

func TestBodyWithoutTemplateIsEmptyLine(t *testing.T) {
	got := make(chan string, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		got <- r.Method + " " + r.Header.Get("Content-Type") + " " + string(raw)
	}))
	defer hook.Close()
	must.NoError(t, sendToReceivers(t, mustParse(t, "-webhook.url="+hook.URL), notify.NewSampleMessage(notify.Detected, time.Now())))
	check.Is(t, "POST application/json \n", <-got)
}

func TestW23ResourceNamesAreCaseInsensitive(t *testing.T) {
	const id = "azure:///SUBSCRIPTIONS/s/resourcegroups/G/PROVIDERS/microsoft.compute/virtualmachinescalesets/Pool/virtualmachines/3"
	name, err := providerid.ScheduledEventName(id)
	if err != nil || !azure.IsSameResource(name, "POOL_3") {
		t.Errorf("%s, %v", name, err)
	}
	if c := mustParse(t, "-resource.name=vm_1").ToAgentConfig(); c.ResourceName != "vm_1" {
		t.Errorf("resource name %q", c.ResourceName)
	}
}

func TestW24PollsEverySecondByDefault(t *testing.T) {
	if c := mustParse(t).ToAgentConfig(); c.PollInterval != time.Second {
		t.Errorf("%s", c.PollInterval)
	}
	o := mustParse(t, "-period=5s")
	if c := o.ToAgentConfig(); c.PollInterval != 5*time.Second || !strings.Contains(strings.Join(o.Warnings, "\n"), "advises 1s") {
		t.Errorf("%s, %q", c.PollInterval, o.Warnings)
	}
}

func TestFreezeDrainsOnlyWithOption(t *testing.T) {
	none := notice.Notice{Type: notice.Freeze} // Azure does not interrupt the machine
	withOption := mustParse(t, "-drainOnFreezeEvent")
	c := withOption.ToAgentConfig()
	if got := c.BuildNoticePolicy().Decide(none, agent.SeenTimes{First: time.Now()}).Action; got != agent.Ignore ||
		!strings.Contains(strings.Join(withOption.migrationNotes(), "\n"), "DurationInSeconds 0") {
		t.Errorf("without impact: %s; notes %q", got, withOption.migrationNotes())
	}
	for _, n := range []notice.Notice{
		{Type: notice.Freeze, Duration: 5 * time.Second},
		{Type: notice.Freeze, Duration: -1},
		{Type: notice.Freeze, Duration: 5 * time.Second, LiveMigration: true},
	} {
		off, on := mustParse(t).ToAgentConfig(), mustParse(t, "-drainOnFreezeEvent").ToAgentConfig()
		if got := off.BuildNoticePolicy().Decide(n, agent.SeenTimes{First: time.Now()}).Action; got != agent.Ignore {
			t.Errorf("off: %s of %+v", got, n)
		}
		if got := on.BuildNoticePolicy().Decide(n, agent.SeenTimes{First: time.Now()}).Action; got != agent.Drain {
			t.Errorf("on: %s of %+v", got, n)
		}
	}
}

func TestMetricsMatchTool(t *testing.T) {
	r := observe.NewRegistry()
	m := NewMetrics(r, "n")
	m.SetResource("vm_0")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	send := func(wrap func(http.RoundTripper) http.RoundTripper, method, path string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		must.NoError(t, err)
		resp, err := wrap(http.DefaultTransport).RoundTrip(req)
		must.NoError(t, err)
		_ = resp.Body.Close()
	}
	send(m.WrapAPIServerTransport, http.MethodGet, "/api/v1/nodes/n")
	send(m.WrapAPIServerTransport, http.MethodPost, "/api/v1/namespaces/default/events")
	send(m.WrapMetadata, http.MethodGet, "/metadata/scheduledevents")
	webhook := func(telegram string) func(http.RoundTripper) http.RoundTripper {
		return func(next http.RoundTripper) http.RoundTripper { return m.WrapWebhookTransport(next, telegram) }
	}
	send(webhook("api.telegram.org"), http.MethodPost, "/services/s3cret")
	send(webhook(host), http.MethodPost, "/bot/sendMessage") // requests to Telegram are not counted
	m.CountFetchFailure(errors.New("x"), azure.HTTPStatus)
	m.CountNoticesAndFailures(agent.EventTrigger{Reason: agent.NoticeReceived, Notice: notice.Notice{Source: azure.SourceName, Type: notice.Preempt}})
	m.CountNoticesAndFailures(agent.EventTrigger{Reason: agent.NoticeReceived, Notice: notice.Notice{Source: "request", Type: notice.Condition}})
	m.CountNoticesAndFailures(agent.EventTrigger{Reason: agent.DrainFailed})
	answer := httptest.NewRecorder()
	r.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := answer.Body.String()
	for _, want := range []string{
		`error_reading_endpoint_total{node="n",resource="vm_0"} 3`, // a fetch, an Event and a drain
		`scheduled_events_total{node="n",resource="vm_0",type="Preempt"} 1`,
		`apiserver_request_total{cluster="` + host + `",code="200"} 1`,
		`apiserver_request_total{cluster="` + host + `",code="403"} 1`,
		`apiserver_request_duration_count{cluster="` + host + `"} 2`,
		`http_events_in_flight_requests 0`,
		`http_events_requests_total{code="200",method="get",endpoint="/metadata/scheduledevents"} 1`,
		`http_events_request_duration_seconds_count{method="get"} 1`,
		`http_webhook_in_flight_requests 0`,
		`http_webhook_requests_total{code="200",method="post",endpoint="webhook"} 1`,
		`http_webhook_request_duration_seconds_count{method="post"} 1`,
	} {
		if !strings.Contains(text, metricPrefix+want+"\n") {
			t.Errorf("no line %s%s in\n%s", metricPrefix, want, text)
		}
	}
	if strings.Contains(text, "s3cret") || strings.Contains(text, "Condition") {
		t.Error("W20: the metrics contain a secret path or a notice that is not a scheduled event")
	}
}

func TestMigratedFileIsValidForAgent(t *testing.T) {
	for _, args := range [][]string{nil, {
		"-taint.node", "--taint.effect=NoExecute", "-drainOnFreezeEvent", "-exitAfterNodeDrain", "-telegram.token=1:a",
		"-telegram.chatID=-1", "-webhook.url=https://example.com/x", "-webhook.http-proxy=http://u:p@proxy:1",
		"-disableEviction", "-podGracePeriodSeconds=5",
	}} {
		m, err := Migrate(args, io.Discard)
		must.NoError(t, err)
		raw, err := m.ToFile()
		must.NoError(t, err)
		a, err := config.DecodeAgentFile(raw)
		if err != nil {
			t.Fatalf("%v in\n%s", err, raw)
		}
		a.NodeName = "n"
		if err := a.Validate(); err != nil {
			t.Errorf("%v in\n%s", err, raw)
		}
		rewritten, err := a.EncodeFile()
		m.Config.NodeName = "n"
		first, _ := m.Config.EncodeFile()
		if err != nil || string(rewritten) != string(first) {
			t.Errorf("%v: read back as\n%s\nof\n%s", err, rewritten, first)
		}
	}
}

func TestMigrateReportsUnusedSettingsAndDifferences(t *testing.T) {
	for name, c := range map[string]struct {
		args     []string
		has, not string
	}{
		"environment":    {nil, "TELEGRAM_TOKEN", "Azure advises 1s"},
		"default period": {nil, "every second, not every five", "Azure advises 1s"},
		"other period":   {[]string{"-period=5s"}, "polled during a drain too", "every second"},
		"drain limit":    {[]string{"-maxConcurrentDrains=3"}, "TELEGRAM_TOKEN", "Azure advises 1s"},
	} {
		m, err := Migrate(c.args, io.Discard)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		notes := strings.Join(m.Notes, "\n")
		if !strings.Contains(notes, c.has) || strings.Contains(notes, c.not) || m.Config.Namespace != "" {
			t.Errorf("%s: namespace %q; want %q and not %q in\n%s", name, m.Config.Namespace, c.has, c.not, notes)
		}
	}
}
