package compat_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

const old = "aks_node_termination_handler_"

// markers is a template with every marker of the original tool.
const markers = `{{ .Event.EventId }}|{{ .Event.EventType }}|{{ .Event.ResourceType }}|{{ .Event.Resources }}|{{ .Event.EventStatus }}|` +
	`{{ .Event.NotBefore }}|{{ .Event.Description }}|{{ .Event.EventSource }}|{{ .Event.DurationInSeconds }}|{{ .NodeName }}|` +
	`{{ index .NodeLabels "kubernetes.io/hostname" }}|{{ .ClusterName }}|{{ .InstanceType }}|{{ .NodeArch }}|{{ .NodeOS }}|` +
	`{{ .NodeRole }}|{{ .NodeRegion }}|{{ .NodeZone }}|{{ .NodePods }}`

// TestEveryOutputOfTheTerminationHandlerIsThere checks all outputs for a Reboot: taint, Kubernetes Events, messages,
// metrics, HTTP.
func TestEveryOutputOfTheTerminationHandlerIsThere(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "outputs")
	in, bot := newInbox(t), newInbox(t)
	web := f.app("web", 1)
	web.MinAvailable = "1" // the instance disappears after the drain, and its metrics too
	daemon := f.app("daemon", 1)
	f.run(web.StatefulSet(), web.PodDisruptionBudget(), daemon.DaemonSet())
	history, err := f.RecordNodeStates(f.ctx, f.node())
	f.check(err)
	defer history.StopRecording()
	a := f.aksnth("-taint.node", "-telegram.token=12:abc", "-telegram.chatID=-100123", "-telegram.url="+bot.URL,
		"-webhook.url="+in.URL+"/secret/hook", "-webhook.method=PUT", "--webhook.contentType", "text/plain",
		"-webhook.template-file="+testbed.WriteTempFile(f.t, "payload.txt", markers))
	if e := f.awaitEvent("ReadEvents"); e.Type != "Info" || e.Message != "Start to listen events from Azure API" ||
		e.Source.Component != "aks-node-termination-handler" || e.InvolvedObject.Kind != "Node" || e.Namespace != "default" {
		t.Errorf("ReadEvents: %+v", e)
	}
	words := `a "quoted" word + <more>`
	r := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 5 * time.Minute, Description: &words, Source: azure.User})
	if e := f.awaitEvent("Reboot"); e.Type != "Warning" || e.Message != "Azure API sended schedule event for this node" ||
		e.Source.Component != "aks-node-termination-handler" {
		t.Errorf("Reboot: %+v", e)
	}
	f.checkMessages(in, bot, r, words)
	f.checkMetrics(a)
	f.check(f.Client().PolicyV1().PodDisruptionBudgets(f.ns).Delete(f.ctx, web.Name, metav1.DeleteOptions{}))
	f.awaitOver(r.EventID)
	f.awaitNode("restored, without the taint", func(n *corev1.Node) bool {
		return free(n) && !tainted("aks-node-termination-handler/reboot", r.EventID, corev1.TaintEffectNoSchedule)(n)
	})
	was := false
	for _, n := range history.States() {
		was = was || tainted("aks-node-termination-handler/reboot", r.EventID, corev1.TaintEffectNoSchedule)(n)
	}
	if !was {
		t.Error("the node never had the taint aks-node-termination-handler/reboot with the event's ID")
	}
	if code, body := f.ask(a, http.MethodGet, "/healthz", nil); code != 200 || body != "LIVE" {
		t.Errorf("/healthz: %d %q", code, body)
	}
}

func (f *fixture) checkMessages(in, bot *inbox, r azure.EventRecord, words string) {
	f.t.Helper()
	text := f.await(bot, http.MethodPost, "/bot12:abc/sendMessage")
	var sent struct {
		ChatID string `json:"chat_id"`
		Text   string `json:"text"`
	}
	_, body, _ := strings.Cut(text, "\n")
	f.check(json.Unmarshal([]byte(body), &sent))
	if sent.ChatID != "-100123" || sent.Text != "Draining node="+f.node()+", type=Reboot" {
		f.t.Errorf("Telegram got %+v", sent)
	}
	kind, body, _ := strings.Cut(f.await(in, http.MethodPut, "/secret/hook"), "\n")
	node := f.awaitNode("there", func(*corev1.Node) bool { return true })
	label := func(key string) string { return node.Labels[key] }
	want := strings.Join([]string{
		r.EventID, "Reboot", "VirtualMachine", "[" + f.pool.ResourceName(0) + "]", "Scheduled",
		r.NotBefore.UTC().Format(http.TimeFormat), words, "User", "-1", f.node(), label("kubernetes.io/hostname"),
		label("kubernetes.azure.com/cluster"), label("node.kubernetes.io/instance-type"), label("kubernetes.io/arch"),
		label("kubernetes.io/os"), label("kubernetes.io/role"), label("topology.kubernetes.io/region"),
		label("topology.kubernetes.io/zone"), "[web-0]",
	}, "|") + "\n"
	if kind != "text/plain" || body != want {
		f.t.Errorf("the webhook got, as %s,\n%swant\n%s", kind, body, want)
	}
}

// checkMetrics scrapes as Prometheus does.
func (f *fixture) checkMetrics(a *testbed.Agent) {
	f.t.Helper()
	f.awaitMetric(a, old+`http_webhook_requests_total{code="200",method="put",endpoint="webhook"}`, 1)
	text := a.ReadMetrics(f.ctx)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	f.check(err)
	for name, labels := range map[string]string{
		"error_reading_endpoint_total": "node,resource", "scheduled_events_total": "node,resource,type",
		"apiserver_request_total": "cluster,code", "apiserver_request_duration": "cluster",
		"http_events_in_flight_requests": "", "http_events_requests_total": "code,endpoint,method",
		"http_events_request_duration_seconds": "method", "http_webhook_in_flight_requests": "",
		"http_webhook_requests_total": "code,endpoint,method", "http_webhook_request_duration_seconds": "method",
	} {
		family := families[old+name]
		if name == "error_reading_endpoint_total" && family == nil {
			continue // no request failed
		}
		if family == nil {
			f.t.Errorf("no metric %s%s", old, name)
			continue
		}
		var got []string
		for _, l := range family.Metric[0].Label {
			got = append(got, l.GetName())
		}
		if strings.Join(sorted(got), ",") != labels {
			f.t.Errorf("%s has labels %v, want %s", name, got, labels)
		}
	}
	events, _ := a.ReadMetric(f.ctx, old+`scheduled_events_total{node="`+f.node()+`",resource="`+f.pool.ResourceName(0)+`",type="Reboot"}`)
	sent, _ := a.ReadMetric(f.ctx, old+`http_webhook_requests_total{code="200",method="put",endpoint="webhook"}`)
	if events != 1 || sent != 1 {
		f.t.Errorf("%v scheduled events and %v webhook requests, want 1 and 1:\n%s", events, sent, text)
	}
	if n, _ := a.ReadMetric(f.ctx, `slipway_agent_notices_total{type="Reboot",action="drain"}`); n != 1 {
		f.t.Error("the new metrics are missing")
	}
	if strings.Contains(text, "secret") {
		f.t.Error("W20: the webhook's path is in the metrics")
	}
}

func TestFreezeIsOnlySaidUnlessAskedFor(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"freezeoff": nil, "freezeon": {"-drainOnFreezeEvent", "-taint.node"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, name)
			in := newInbox(t)
			f.run(f.app("web", 1).Deployment())
			a := f.aksnth(append(flags, "-webhook.url="+in.URL+"/hook", "-webhook.template=x")...)
			outage := time.Second
			if flags != nil {
				outage = time.Hour // the pods return after the outage, and would look as if they were never evicted
			}
			r := f.announce(azure.Announcement{Type: azure.Freeze, Notice: 20 * time.Second, DurationSeconds: new(-1), Outage: outage})
			f.awaitEvent("Freeze")
			f.awaitMetric(a, old+`scheduled_events_total{node="`+f.node()+`",resource="`+f.pool.ResourceName(0)+`",type="Freeze"}`, 1)
			if flags != nil {
				f.awaitNode("tainted", tainted("aks-node-termination-handler/freeze", r.EventID, corev1.TaintEffectNoSchedule))
				f.awaitPods(0)
				f.await(in, http.MethodPost, "/hook")
				return
			}
			f.awaitOver(r.EventID)
			if n := f.awaitNode("there", func(*corev1.Node) bool { return true }); !free(n) {
				t.Errorf("node %s was touched", n.Name)
			}
			if got := in.all(); len(got) > 0 {
				t.Errorf("told: %q", got)
			}
			f.awaitPods(1)
		})
	}
}

func TestW09ExitAfterNodeDrainExits(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "exit")
	f.run(f.app("web", 2).Deployment())
	a := f.aksnth("-exitAfterNodeDrain", "-drainOnFreezeEvent") // the process continues after a Freeze
	r := f.announce(azure.Announcement{Type: azure.Freeze, Notice: 5 * time.Minute, Outage: time.Second})
	f.check(testbed.PollUntil(f.ctx, "the process has exited", func() bool { return !a.IsAlive() }))
	if !a.HasLogged("the node is drained; exiting as configured") {
		t.Error("it exited for another reason")
	}
	if over := f.awaitOver(r.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("the event started %s, want it acknowledged before the exit", over.StartedBy)
	}
}

func TestW13DrainNodeTakesAsLongAsItTakesAndIsNotForEverybody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "drainnode")
	slow := f.app("slow", 1)
	slow.GracePeriod, slow.StopSeconds = 20*time.Second, "12"
	f.run(slow.Deployment())
	a := f.aksnth("-taint.node", "-web.token-file="+testbed.WriteTempFile(f.t, "token", "s3cret\n"))
	elsewhere := http.Header{"X-Forwarded-For": {"10.0.0.9"}}
	if code, body := f.ask(a, http.MethodPost, "/drainNode", elsewhere); code != http.StatusForbidden {
		t.Errorf("from elsewhere: %d %s", code, body)
	}
	if code, _ := f.ask(a, http.MethodGet, "/debug/pprof/", elsewhere); code != http.StatusForbidden {
		t.Errorf("profiles from elsewhere: %d", code)
	}
	if code, _ := f.ask(a, http.MethodGet, "/drainNode", nil); code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", code)
	}
	f.awaitPods(1)
	elsewhere.Set("Authorization", "Bearer s3cret")
	began := time.Now()
	if code, body := f.ask(a, http.MethodPost, "/drainNode", elsewhere); code != 200 || body != "done" {
		t.Fatalf("with the token: %d %s", code, body)
	}
	if took := time.Since(began); took < 11*time.Second {
		t.Errorf("answered after %s, while the pod takes 12 s to stop", took)
	}
	f.awaitPods(0)
	f.awaitNode("tainted as by hand", tainted("aks-node-termination-handler/preempt", "manual", corev1.TaintEffectNoSchedule))
	if code, body := f.ask(a, http.MethodPost, "/drainNode", nil); code != 200 || body != "done" {
		t.Errorf("again: %d %s", code, body)
	}
	if code, _ := f.ask(a, http.MethodDelete, "/drainNode", nil); code != 200 {
		t.Errorf("DELETE: %d", code)
	}
	f.awaitNode("restored", free)
}

func TestDrainNodeGivesUpAfterNodeGracePeriodSecondsAndSaysSo(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "giveup")
	kept := f.app("kept", 1)
	kept.MinAvailable = "1"
	f.run(kept.Deployment(), kept.PodDisruptionBudget())
	a := f.aksnth("-nodeGracePeriodSeconds=2")
	for range 2 { // W13: the second call answers as correctly as the first
		code, body := f.ask(a, http.MethodPost, "/drainNode", nil)
		if code != http.StatusInternalServerError || !strings.Contains(body, "is not drained") {
			t.Errorf("%d %s", code, body)
		}
	}
	f.awaitPods(1)
}

func TestSimulatedEvictionRunsTheWholePath(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "simulate")
	f.run(f.app("web", 2).Deployment())
	f.aksnth()
	out, err := f.slipway("simulate-eviction", f.node(), "--kubeconfig", f.Kubeconfig(), "--arm-endpoint", f.ARMURL())
	if err != nil || !strings.Contains(out, "instance 0 of scale set "+f.pool.ScaleSetName()) {
		t.Fatalf("%v: %s", err, out)
	}
	f.awaitEvent("Preempt")
	f.awaitPods(0)
	_, err = f.Azure.AwaitState(f.ctx, func(s azure.State) bool {
		for _, e := range s.Events {
			if e.ScaleSet == f.pool.ScaleSetName() && !e.IsListed() {
				return true
			}
		}
		return false
	})
	f.check(err)
	if out, err := f.slipway("simulate-eviction", "nobody", "--kubeconfig", f.Kubeconfig(), "--arm-endpoint", f.ARMURL()); err == nil ||
		!strings.Contains(out, "nobody") {
		t.Errorf("a node that is not there: %v, %s", err, out)
	}
}
