package aksnth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notice/poll"
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
	check.Not(t, err == nil || time.Since(began) > 10*time.Second, "%v after %s", err, time.Since(began))
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
	check.Not(t, drained != 2 || released != 1, "drained %d times and released %d", drained, released)
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
		check.Not(t, answer.Code != c.code || answer.Body.String() != c.body, "%d %q", answer.Code, answer.Body)
	}
}

func TestW16NoExecuteWaitsForDrain(t *testing.T) {
	c := mustParse(t, "-taint.node", "-taint.effect=NoExecute").ToAgentConfig()
	got := c.BuildTaint().ForNotice(notice.Notice{Type: notice.Preempt, ID: "e"})
	check.Is(t, "aks-node-termination-handler/preempt=e:NoExecute", got.String(), got)
	manifest, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "agent", "daemonset.yaml"))
	check.Not(t, err != nil || !strings.Contains(string(manifest), "operator: Exists"), "the shipped agent would be evicted by its own taint: %v", err)
}

func TestTaintsMatchTool(t *testing.T) {
	c := mustParse(t, "-taint.node").ToAgentConfig()
	for kind, want := range map[notice.Type]string{
		notice.Preempt: "preempt", notice.Terminate: "terminate", notice.Reboot: "reboot", notice.Redeploy: "redeploy",
		notice.Freeze: "freeze",
	} {
		got := c.BuildTaint().ForNotice(notice.Notice{Type: kind, ID: "602D9444"})
		check.Not(t, got.Key != "aks-node-termination-handler/"+want || got.Value != "602D9444" || got.Effect != "NoSchedule", "%s: %s", kind, got)
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
	check.ErrorContains(t, n.SendToAllNow(t.Context(), notify.NewSampleMessage(notify.Detected, time.Now())))
	must.NoError(t, os.WriteFile(path, []byte("now {{ .Moment }}"), 0o600))
	must.NoError(t, n.SendToAllNow(t.Context(), notify.NewSampleMessage(notify.Detected, time.Now())))
	check.Is(t, "now detected\n", <-got)
	o = mustParse(t, "-webhook.url="+hook.URL, "-webhook.template={{ .NodeName")
	if n, err = notify.NewNotifier(o.ToReceivers(), notify.Options{WarnOnInvalidTemplates: true}); err != nil {
		t.Fatal(err)
	}
	check.ErrorContains(t, n.SendToAllNow(t.Context(), notify.NewSampleMessage(notify.Detected, time.Now())), "webhook.template:1")
	check.ErrorContains(t, check.Err(notify.NewNotifier(o.ToReceivers(), notify.Options{})))
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
	check.Not(t, err != nil || !azure.IsSameResource(name, "POOL_3"), "%s, %v", name, err)
	c := mustParse(t, "-resource.name=vm_1").ToAgentConfig()
	check.Not(t, c.ResourceName != "vm_1", "resource name %q", c.ResourceName)
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
		!strings.Contains(strings.Join(withOption.migrationNotes(), "\n"), "DurationInSeconds 0 interrupts nothing and is ignored, unless it is a live migration") {
		t.Errorf("without impact: %s; notes %q", got, withOption.migrationNotes())
	}
	for _, n := range []notice.Notice{
		{Type: notice.Freeze, Duration: 5 * time.Second},
		{Type: notice.Freeze, Duration: -1},
		{Type: notice.Freeze, Duration: 5 * time.Second, LiveMigration: true},
		{Type: notice.Freeze, LiveMigration: true},
	} {
		off, on := mustParse(t).ToAgentConfig(), mustParse(t, "-drainOnFreezeEvent").ToAgentConfig()
		check.Is(t, agent.Ignore, off.BuildNoticePolicy().Decide(n, agent.SeenTimes{First: time.Now()}).Action, n)
		check.Is(t, agent.Drain, on.BuildNoticePolicy().Decide(n, agent.SeenTimes{First: time.Now()}).Action, n)
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
	m.CountFetchFailure(errors.New("x"), poll.HTTPStatus)
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
		check.Not(t, !strings.Contains(text, metricPrefix+want+"\n"), "no line %s%s in\n%s", metricPrefix, want, text)
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
		must.Not(t, err != nil, "%v in\n%s", err, raw)
		a.NodeName = "n"
		if err := a.Validate(); err != nil {
			t.Errorf("%v in\n%s", err, raw)
		}
		rewritten, err := a.EncodeFile()
		m.Config.NodeName = "n"
		first, _ := m.Config.EncodeFile()
		check.Not(t, err != nil || string(rewritten) != string(first), "%v: read back as\n%s\nof\n%s", err, rewritten, first)
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

// libraryMetrics are the metrics that the tool got from its libraries.
const libraryMetrics = `go_gc_duration_seconds go_gc_gogc_percent go_gc_gomemlimit_bytes go_goroutines go_info go_memstats_alloc_bytes
go_memstats_alloc_bytes_total go_memstats_buck_hash_sys_bytes go_memstats_frees_total go_memstats_gc_sys_bytes
go_memstats_heap_alloc_bytes go_memstats_heap_idle_bytes go_memstats_heap_inuse_bytes go_memstats_heap_objects
go_memstats_heap_released_bytes go_memstats_heap_sys_bytes go_memstats_last_gc_time_seconds go_memstats_mallocs_total
go_memstats_mcache_inuse_bytes go_memstats_mcache_sys_bytes go_memstats_mspan_inuse_bytes go_memstats_mspan_sys_bytes
go_memstats_next_gc_bytes go_memstats_other_sys_bytes go_memstats_stack_inuse_bytes go_memstats_stack_sys_bytes
go_memstats_sys_bytes go_sched_gomaxprocs_threads go_threads promhttp_metric_handler_requests_in_flight
promhttp_metric_handler_requests_total`

const linuxLibraryMetrics = `process_cpu_seconds_total process_max_fds process_network_receive_bytes_total
process_network_transmit_bytes_total process_open_fds process_resident_memory_bytes process_start_time_seconds
process_virtual_memory_bytes process_virtual_memory_max_bytes`

func TestMetricsPageHasLibraryMetrics(t *testing.T) {
	r := observe.NewRegistry()
	r.AddStandardMetrics(observe.Build{Version: "v1"})
	NewMetrics(r, "n")
	page := compat.NewMetricsPage(r)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		answer := httptest.NewRecorder()
		page.ServeHTTP(answer, httptest.NewRequest(method, "/metrics", strings.NewReader("anything")))
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(answer.Body) // it refuses duplicate metrics
		if err != nil || answer.Code != http.StatusOK || !strings.HasPrefix(answer.Header().Get("Content-Type"), "text/plain") {
			t.Fatalf("%s: %d %v %v", method, answer.Code, answer.Header(), err)
		}
		want := strings.Fields(libraryMetrics + " slipway_build_info")
		if runtime.GOOS == "linux" {
			want = append(want, strings.Fields(linuxLibraryMetrics)...)
		}
		for _, name := range want {
			f := families[name]
			check.Not(t, f == nil || len(f.Metric) == 0, "%s: no %s", method, name)
		}
		codes := families["promhttp_metric_handler_requests_total"].GetMetric()
		check.Is(t, 3, len(codes), codes)
	}
}

// sentryServer records the requests and answers with a status.
type sentryServer struct {
	*httptest.Server

	mu       sync.Mutex
	status   int
	requests []*http.Request
	bodies   []string
}

func newSentryServer(t *testing.T, status int) *sentryServer {
	s := &sentryServer{status: status}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests, s.bodies = append(s.requests, r), append(s.bodies, string(body))
		w.WriteHeader(s.status)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *sentryServer) dsn() string {
	return strings.Replace(s.URL, "http://", "http://k3y@", 1) + "/sub/42"
}

func TestWarningsAndErrorsReachSentryAndTheLog(t *testing.T) {
	server := newSentryServer(t, http.StatusOK)
	s, err := NewSentry(server.dsn(), "node-1", "v1")
	must.NoError(t, err)
	var written bytes.Buffer
	log := slog.New(s.WrapHandler(slog.NewJSONHandler(&written, nil))).With("node", "node-1")
	log.Info("nothing to see")
	log.Warn("drain is blocked", "blocked", 3)
	log.WithGroup("api").Error("will try again", "err", "503")
	s.Close()
	if n := strings.Count(written.String(), "\n"); n != 3 {
		t.Errorf("%d lines in the log, want all 3:\n%s", n, written.String())
	}
	must.Not(t, len(server.bodies) != 2, "%d envelopes, want one for the warning and one for the error: %q", len(server.bodies), server.bodies)
	r := server.requests[0]
	if r.Method != http.MethodPost || r.URL.Path != "/sub/api/42/envelope/" ||
		r.Header.Get("Content-Type") != "application/x-sentry-envelope" ||
		!strings.Contains(r.Header.Get("X-Sentry-Auth"), "sentry_version=7") ||
		!strings.Contains(r.Header.Get("X-Sentry-Auth"), "sentry_key=k3y") {
		t.Errorf("%s %s %v", r.Method, r.URL.Path, r.Header)
	}
	for i, want := range []struct {
		level, message string
		extra          map[string]string
	}{
		{"warning", "drain is blocked", map[string]string{"node": "node-1", "blocked": "3"}},
		{"error", "will try again", map[string]string{"node": "node-1", "api.err": "503"}},
	} {
		lines := strings.Split(server.bodies[i], "\n")
		var head struct {
			EventID string `json:"event_id"`
		}
		var item struct {
			Type   string
			Length int
		}
		var event struct {
			EventID    string `json:"event_id"`
			Level      string
			ServerName string `json:"server_name"`
			Timestamp  time.Time
			Message    struct{ Formatted string }
			Extra      map[string]string
		}
		for j, into := range []any{&head, &item, &event} {
			if err := json.Unmarshal([]byte(lines[j]), into); err != nil {
				t.Fatalf("line %d of %q: %v", j, server.bodies[i], err)
			}
		}
		if len(head.EventID) != 32 || head.EventID != event.EventID || item.Type != "event" || item.Length != len(lines[2]) {
			t.Errorf("envelope %+v %+v", head, item)
		}
		if event.Level != want.level || event.Message.Formatted != want.message || event.ServerName != "node-1" || event.Timestamp.IsZero() {
			t.Errorf("event %+v, want %+v", event, want)
		}
		for key, value := range want.extra {
			check.Not(t, event.Extra[key] != value, "extra %v, want %s: %s", event.Extra, key, value)
		}
	}
}

func TestRefusingSentryPausesSending(t *testing.T) {
	server := newSentryServer(t, http.StatusTooManyRequests)
	s, err := NewSentry(server.dsn(), "n", "v1")
	must.NoError(t, err)
	log := slog.New(s.WrapHandler(slog.DiscardHandler))
	for range 5 {
		log.Handler().(*sentryHandler).sentry.queueRecord(slog.NewRecord(time.Now(), slog.LevelWarn, "x", 0), nil)
	}
	s.Close()
	check.Is(t, 1, len(server.bodies))
}

func TestSentryRedirectIsNotFollowed(t *testing.T) {
	other := newSentryServer(t, http.StatusOK)
	moved := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer moved.Close()
	s, err := NewSentry(strings.Replace(moved.URL, "http://", "http://k3y@", 1)+"/42", "node-1", "v1")
	must.NoError(t, err)
	slog.New(s.WrapHandler(slog.NewTextHandler(io.Discard, nil))).Warn("it warns")
	s.Close()
	if len(other.requests) != 0 {
		t.Errorf("another server got %q with the key %q", other.bodies, other.requests[0].Header.Get("X-Sentry-Auth"))
	}
}

func TestHangingSentryBlocksNothing(t *testing.T) {
	release := make(chan struct{})
	hole := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer hole.Close()
	defer close(release)
	s, err := NewSentry(strings.Replace(hole.URL, "http://", "http://k@", 1)+"/1", "n", "v1")
	must.NoError(t, err)
	var written bytes.Buffer
	log := slog.New(s.WrapHandler(slog.NewTextHandler(&written, nil)))
	const lines = 10 * sentryQueueSize
	for range lines { // more than the queue holds: further lines are dropped without waiting
		log.Warn("x")
	}
	check.Is(t, lines, strings.Count(written.String(), "\n"))
	s.Close()
}

func TestI10BadDSNIsRefusedWithoutQuotingIt(t *testing.T) {
	for _, bad := range []string{"https://s3cret", "s3cret@host/1", "https://s3cret@host/one", "https://s3cret@/1", "ftp://s3cret@h/1", "https://h/1", ":s3cret"} {
		_, _, err := parseSentryDSN(bad)
		if err == nil || !strings.Contains(err.Error(), "want https://KEY@HOST/PROJECT") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for dsn, want := range map[string]string{
		"https://k@o1.ingest.sentry.io/7":   "https://o1.ingest.sentry.io/api/7/envelope/",
		"https://k:old@sentry.test:9000/7/": "https://sentry.test:9000/api/7/envelope/",
		"http://k@sentry.test/a/b/7":        "http://sentry.test/a/b/api/7/envelope/",
	} {
		if got, key, err := parseSentryDSN(dsn); err != nil || got != want || key != "k" {
			t.Errorf("%s: %s, %s, %v", dsn, got, key, err)
		}
	}
}

func TestFailedStartGoesToSentryWithTheRelease(t *testing.T) {
	server := newSentryServer(t, http.StatusOK)
	o, err := ParseOptions([]string{"-sentry.dsn=" + server.dsn(), "-taint.effect=Never"}, newEnvironment(), io.Discard)
	if err == nil {
		t.Fatal("an invalid taint effect was accepted")
	}
	SendStartFailure(o, err, "v1.2.3")
	SendStartFailure(nil, err, "v1.2.3")
	must.Not(t, len(server.bodies) != 1, "%d envelopes, want 1", len(server.bodies))
	var event struct {
		Level, Release string
		ServerName     string `json:"server_name"`
		Message        struct{ Formatted string }
	}
	must.NoError(t, json.Unmarshal([]byte(strings.Split(server.bodies[0], "\n")[2]), &event))
	if event.Level != "fatal" || event.Release != "v1.2.3" || event.ServerName != "n" || !strings.Contains(event.Message.Formatted, "-taint.effect") {
		t.Errorf("%+v", event)
	}
}
