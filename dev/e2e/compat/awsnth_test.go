package compat_test

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

const (
	nth        = "aws-node-termination-handler"
	outOfOrder = "node.kubernetes.io/out-of-service"
	scope      = `otel_scope_name="aws.node.termination.handler",otel_scope_version=""`
)

// nthFixture is an EC2 instance with its Node, a Deployment on it, and a namespace.
type nthFixture struct {
	*fixture
	*aws.Instance

	agent *testbed.Agent
	// asAdmin runs the agent with the rights of an administrator.
	asAdmin bool
}

func newNTHFixture(t *testing.T, name string, changes ...func(*controlplane.NodeSpec)) *nthFixture {
	t.Helper()
	sum := fnv.New64a()
	sum.Write([]byte(name))
	id := fmt.Sprintf("i-%017x", sum.Sum64())
	bed := testbed.StartShared(t) // this call and the next may be slow the first time
	if _, err := testbed.EnsureBinary("slipway"); err != nil {
		t.Fatal(err)
	}
	f := &nthFixture{
		fixture:  &fixture{Testbed: bed, t: t, ctx: testbed.TestContext(t), pool: controlplane.AKSPool{Name: name}, ns: name}, // the pool only names the node
		Instance: aws.StartInstance(id),
	}
	t.Cleanup(f.Instance.Close)
	f.Set("/latest/dynamic/instance-identity/document", `{"accountId":"`+aws.AccountID+`","instanceId":"`+id+`","instanceType":"m7g.large",`+
		`"privateIp":"10.0.0.7","availabilityZone":"eu-west-1a","region":"eu-west-1"}`)
	for path, value := range map[string]string{
		"instance-life-cycle": "spot", "local-hostname": "ip-10-0-0-7.ec2.internal", "public-hostname": "ec2-3-4-5-6.compute.amazonaws.com", "public-ipv4": "3.4.5.6",
	} {
		f.Set("/latest/meta-data/"+path, value)
	}
	specs := f.pool.Nodes(1)
	specs[0].ProviderID = "aws:///eu-west-1a/" + id
	for _, change := range changes {
		change(&specs[0])
	}
	f.check(f.AddNodes(f.ctx, specs...))
	f.check(workload.Create(f.ctx, f.Client(), workload.NewNamespace(f.ns)))
	f.run(f.app("regular-pod-test", 1).Deployment())
	return f
}

// startNTH starts the compatibility mode with settings in its environment, as the tool's chart does. It waits until ready, an
// HTTP path, answers with 200.
func (f *nthFixture) startNTH(ready string, settings ...string) {
	f.t.Helper()
	a, err := f.StartAgentProgram(f.ctx, f.pool, 0, "slipway", ready, func(w testbed.AgentSettings) (args, env []string) {
		_, port, err := net.SplitHostPort(w.Listen)
		f.check(err)
		env = append([]string{
			"NODE_NAME=" + w.Node, "INSTANCE_METADATA_URL=" + f.Instance.URL(), "ENABLE_PROMETHEUS_SERVER=true", "PROMETHEUS_SERVER_PORT=" + port,
		}, settings...)
		if f.asAdmin {
			w.Kubeconfig = f.Kubeconfig()
		}
		return []string{nth, "-kubeconfig=" + w.Kubeconfig}, env
	})
	f.check(err)
	f.agent = a
	f.t.Cleanup(func() {
		if err := a.KillIfAlive(); err != nil {
			f.t.Error(err)
		}
		if f.t.Failed() {
			raw, _ := os.ReadFile(a.LogFile()) // only for people
			f.t.Logf("log of %s:\n%s", a.Node, raw)
		}
	})
}

// TestAWSNTHScenarios runs the end-to-end scenarios of aws-node-termination-handler under their own names. Each one checks
// what the tool's script checks, and more.
func TestAWSNTHScenarios(t *testing.T) {
	t.Parallel()
	for name, scenario := range map[string]func(*nthFixture){
		"asg-lifecycle-imds":                    testASGLifecycle,
		"cordon-only":                           testCordonOnly,
		"emit-events":                           testEmitEvents,
		"imds-v2":                               testIMDSv2,
		"maintenance-event":                     testMaintenanceEvent,
		"maintenance-event-cancellation":        testMaintenanceCancellation,
		"maintenance-event-dry-run":             testMaintenanceDryRun,
		"maintenance-event-reboot":              testMaintenanceReboot,
		"prometheus-metrics":                    testPrometheusMetrics,
		"rebalance-recommendation":              testRebalance,
		"rebalance-recommendation-drain":        testRebalanceDrain,
		"rebalance-recommendation-dry-run":      testRebalanceDryRun,
		"spot-interruption":                     testSpot,
		"spot-interruption-dry-run":             testSpotDryRun,
		"spot-interruption-events-on":           testSpotEventsOn,
		"spot-interruption-host-networking-off": testSpotHostNetworkingOff,
		"webhook":                               testWebhook,
		"webhook-http-proxy":                    testWebhookProxy,
		"webhook-secret":                        testWebhookSecret,

		"asg-launch-lifecycle-sqs":                    testASGLaunchFromQueue,
		"asg-lifecycle-sqs":                           testASGLifecycleFromQueue,
		"asg-lifecycle-sqs-heartbeat":                 testASGHeartbeatsFromQueue,
		"ec2-state-change-sqs":                        testStateChangeFromQueue,
		"prometheus-metrics-sqs":                      testMetricsFromQueue,
		"rebalance-recommendation-sqs":                testRebalanceFromQueue,
		"rebalance-recommendation-sqs-node-not-found": testUnknownNodeFromQueue,
		"scheduled-change-event-sqs":                  testScheduledChangeFromQueue,
		"spot-interruption-sqs":                       testSpotFromQueue,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(newNTHFixture(t, "nth-"+strings.NewReplacer("recommendation", "rec", "interruption", "itn").Replace(name))) // a node's name is short
		})
	}
}

// TestAWSNTHNeedsNoProviderID covers a Node that no cloud controller has touched. The tool worked there.
func TestAWSNTHNeedsNoProviderID(t *testing.T) {
	t.Parallel()
	f := newNTHFixture(t, "nth-no-id", func(n *controlplane.NodeSpec) { n.ProviderID = "" })
	f.startNTH("/readyz")
	f.interruptSpot()
	f.awaitDrained()
}

// interruptSpot announces a Spot interruption.
func (f *nthFixture) interruptSpot() { f.SetSpotAction("terminate", time.Now().Add(2*time.Minute)) }

// awaitDrained waits until the node is cordoned and the pod has left.
func (f *nthFixture) awaitDrained() *corev1.Node {
	f.t.Helper()
	f.awaitNode("cordoned", isCordoned)
	f.awaitPods(0)
	return f.awaitNode("drained", func(n *corev1.Node) bool {
		return isCordoned(n) && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == "Drained" && c.Status == corev1.ConditionTrue
		})
	})
}

// awaitTaint waits for a taint with one of the tool's keys. Its value begins with the tool's name of the event.
func (f *nthFixture) awaitTaint(name, valuePrefix string) {
	f.t.Helper()
	f.awaitNode("tainted with "+name, func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == nth+"/"+name && t.Effect == corev1.TaintEffectNoSchedule && strings.HasPrefix(t.Value, valuePrefix)
		})
	})
}

// hasNothingOfNTH reports whether a node is schedulable and has no taint and no label of the tool.
func hasNothingOfNTH(n *corev1.Node) bool {
	for key := range n.Labels {
		if strings.HasPrefix(key, nth+"/") || key == "node.kubernetes.io/exclude-from-external-load-balancers" {
			return false
		}
	}
	return isRestored(n) && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, nth+"/") || t.Key == outOfOrder
	})
}

// awaitReads waits until the agent has read a path of the metadata service this many more times.
func (f *nthFixture) awaitReads(path string, more int) {
	f.t.Helper()
	before := f.Requests(http.MethodGet, path)
	f.check(testbed.PollUntil(f.ctx, path+" is read again", func() bool { return f.Requests(http.MethodGet, path) >= before+more }))
}

func (f *nthFixture) checkUntouched() {
	f.t.Helper()
	if n := f.getNode(); !hasNothingOfNTH(n) {
		f.t.Errorf("the node was changed: unschedulable %t, taints %v, labels %v, annotations %v", n.Spec.Unschedulable, n.Spec.Taints, n.Labels, n.Annotations)
	}
	f.awaitPods(1)
}

func (f *nthFixture) awaitLog(text string) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the log has "+text, func() bool { return strings.Contains(f.readLog(), text) }))
}

func (f *nthFixture) readLog() string {
	f.t.Helper()
	raw, err := os.ReadFile(f.agent.LogFile())
	f.check(err)
	return string(raw)
}

func testASGLifecycle(f *nthFixture) {
	group := aws.StartAutoScaling("group", aws.LifecycleHook{Name: "drain", Timeout: time.Hour})
	f.t.Cleanup(group.Close)
	group.Join(f.Instance)
	f.startNTH("/readyz", "TAINT_NODE=true", "ENABLE_ASG_LIFECYCLE_DRAINING=true", "ENABLE_SPOT_INTERRUPTION_DRAINING=false",
		"ENABLE_SCHEDULED_EVENT_DRAINING=false", "AWS_ENDPOINT="+group.URL())
	group.Terminate(f.Instance)
	f.awaitTaint("asg-lifecycle-termination", "target-lifecycle-state-terminated-")
	f.awaitDrained()
	f.check(testbed.PollUntil(f.ctx, "the lifecycle hook is completed", func() bool { return group.Result(f.ID) == "CONTINUE" }))
}

func testCordonOnly(f *nthFixture) {
	f.interruptSpot()
	f.startNTH("/readyz", "CORDON_ONLY=true", "EXCLUDE_FROM_LOAD_BALANCERS=true")
	f.awaitNode("cordoned", isCordoned)
	f.awaitReads(aws.SpotPath, 3)
	f.awaitPods(1)
	f.awaitMetric(f.agent, `actions_total{node_action="cordon",node_status="success",`+scope+`}`, 1)
	f.Set(aws.SpotPath, "") // the instance survives
	f.awaitNode("restored", hasNothingOfNTH)
}

func testEmitEvents(f *nthFixture) {
	f.startNTH("/readyz", "EMIT_KUBERNETES_EVENTS=true", "ENABLE_SPOT_INTERRUPTION_DRAINING=true", "ENABLE_SCHEDULED_EVENT_DRAINING=true")
	f.interruptSpot()
	if e := f.awaitEvent("CordonAndDrain"); e.Message != "Node successfully cordoned and drained" || e.Type != "Normal" ||
		e.Source.Component != nth || e.InvolvedObject.Kind != "Node" || e.Namespace != "default" {
		f.t.Errorf("%+v", e)
	}
	f.awaitDrained()
}

func testIMDSv2(f *nthFixture) {
	f.interruptSpot() // the service accepts no request without a token
	f.startNTH("/readyz", "ENABLE_SPOT_INTERRUPTION_DRAINING=true")
	f.awaitDrained()
	if tokens := f.Requests(http.MethodPut, aws.TokenPath); tokens < 1 || tokens > 2 || f.WasForwarded() {
		f.t.Errorf("%d tokens, forwarded: %t; want one for each of two clients", tokens, f.WasForwarded())
	}
}

// reboot is a scheduled reboot in ten minutes. The agent acts a quarter of an hour before.
func reboot() aws.Event {
	return aws.Event{
		EventID: "instance-event-0d59937288b749b32", Code: "system-reboot", State: "active", Description: "The instance is scheduled for a reboot",
		NotBefore: aws.EventTime(time.Now().Add(10 * time.Minute)), NotAfter: aws.EventTime(time.Now().Add(time.Hour)),
	}
}

// drainForReboot starts the agent, and waits until the node is drained for a scheduled reboot.
func (f *nthFixture) drainForReboot(settings ...string) *corev1.Node {
	f.t.Helper()
	f.SetEvents(reboot())
	f.startNTH("/readyz", append([]string{"ENABLE_SCHEDULED_EVENT_DRAINING=true", "TAINT_NODE=true"}, settings...)...)
	f.awaitTaint("scheduled-maintenance", reboot().EventID)
	n := f.awaitDrained()
	if at, err := strconv.ParseInt(n.Labels[nth+"/action-time"], 10, 64); n.Labels[nth+"/event-id"] != reboot().EventID ||
		n.Labels[nth+"/action"] != "UncordonAfterReboot" || err != nil || time.Since(time.Unix(at, 0)).Abs() > 2*time.Minute {
		f.t.Errorf("labels %v: want the event's ID, its action and the present time", n.Labels)
	}
	return n
}

func testMaintenanceEvent(f *nthFixture) {
	f.drainForReboot("EXCLUDE_FROM_LOAD_BALANCERS=true")
	if n := f.getNode(); n.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] != nth {
		f.t.Errorf("labels %v: want the node excluded from load balancers", n.Labels)
	}
}

func testMaintenanceCancellation(f *nthFixture) {
	f.drainForReboot()
	f.Cancel(reboot())
	f.awaitNode("restored", hasNothingOfNTH)
	f.awaitPods(1)
}

func testMaintenanceDryRun(f *nthFixture) {
	f.SetEvents(reboot())
	f.startNTH("/readyz", "DRY_RUN=true", "TAINT_NODE=true")
	f.awaitLog("would have been cordoned and drained")
	f.awaitReads(aws.SpotPath, 3)
	f.checkUntouched()
}

// testMaintenanceReboot restarts the agent after a reboot, while the metadata service does not answer. After that, the
// service still lists the event.
func testMaintenanceReboot(f *nthFixture) {
	f.drainForReboot("UPTIME_FROM_FILE=" + testbed.WriteTempFile(f.t, "before", "350735.47 234388.90\n"))
	f.check(f.agent.KillIfAlive())
	f.SetFault(aws.TokenPath, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	f.ForgetTokens()
	f.startNTH("/healthz", "TAINT_NODE=true", "UPTIME_FROM_FILE="+testbed.WriteTempFile(f.t, "after", "0.50 0.10\n"))
	f.awaitNode("restored", hasNothingOfNTH)
	f.awaitPods(1)
	f.SetFault(aws.TokenPath, nil)
	f.awaitReads(aws.EventsPath, 1)
	f.awaitReads(aws.SpotPath, 2)
	f.checkUntouched()
}

func testPrometheusMetrics(f *nthFixture) {
	address, err := controlplane.ReserveFreeAddress(f.ctx)
	f.check(err)
	_, port, err := net.SplitHostPort(address)
	f.check(err)
	f.startNTH("/readyz", "TAINT_NODE=true", "ENABLE_SCHEDULED_EVENT_DRAINING=false", "ENABLE_PROBES_SERVER=true", "PROBES_SERVER_PORT="+port,
		"PROBES_SERVER_ENDPOINT=/live")
	f.interruptSpot()
	f.awaitTaint("spot-itn", "spot-itn-")
	f.awaitDrained()
	for _, action := range []string{"cordon-and-drain", "pre-drain"} {
		f.awaitMetric(f.agent, `actions_total{node_action="`+action+`",node_status="success",`+scope+`}`, 1)
	}
	page := f.agent.ReadMetrics(f.ctx)
	for _, want := range []string{"actions_node_total{", `node_name="` + f.node() + `"`, "events_error_total", "runtime_go_gc", "runtime_go_goroutines", "runtime_go_mem", "go_goroutines", "process_"} {
		if !strings.Contains(page, want) {
			f.t.Errorf("the metrics lack %s", want)
		}
	}
	if response, err := http.Get("http://" + address + "/live"); err != nil { //nolint:noctx // a local server
		f.t.Error(err)
	} else {
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || string(body) != `{"health":"OK"}` {
			f.t.Errorf("the probe answers %d %s, %v", response.StatusCode, body, err)
		}
	}
}

func testRebalance(f *nthFixture) {
	f.startNTH("/readyz", "ENABLE_REBALANCE_MONITORING=true", "ENABLE_SCHEDULED_EVENT_DRAINING=false", "TAINT_NODE=true")
	f.Recommend(time.Now())
	f.awaitTaint("rebalance-recommendation", "rebalance-recommendation-")
	f.awaitNode("cordoned", isCordoned)
	f.awaitReads(aws.SpotPath, 3)
	f.awaitPods(1)
	f.interruptSpot()
	f.awaitTaint("spot-itn", "spot-itn-")
	f.awaitDrained()
}

func testRebalanceDrain(f *nthFixture) {
	f.startNTH("/readyz", "ENABLE_REBALANCE_DRAINING=true", "ENABLE_SCHEDULED_EVENT_DRAINING=false", "ENABLE_SPOT_INTERRUPTION_DRAINING=false", "TAINT_NODE=true")
	f.interruptSpot() // is ignored
	f.awaitReads(aws.SpotPath, 3)
	f.checkUntouched()
	f.Recommend(time.Now())
	f.awaitTaint("rebalance-recommendation", "rebalance-recommendation-")
	f.awaitDrained()
}

func testRebalanceDryRun(f *nthFixture) {
	f.Recommend(time.Now())
	f.startNTH("/readyz", "DRY_RUN=true", "ENABLE_REBALANCE_DRAINING=true", "TAINT_NODE=true")
	f.awaitLog("would have been cordoned and drained")
	f.awaitReads(aws.SpotPath, 3)
	f.checkUntouched()
}

func testSpot(f *nthFixture) {
	f.asAdmin = true // only the tool's own chart allows the taint, if it is enabled
	f.startNTH("/readyz", "TAINT_NODE=true", "ENABLE_OUT_OF_SERVICE_TAINT=true", "ENABLE_SCHEDULED_EVENT_DRAINING=false")
	history, err := f.RecordNodeStates(f.ctx, f.node())
	f.check(err)
	defer history.StopRecording()
	f.interruptSpot()
	f.awaitTaint("spot-itn", "spot-itn-")
	f.awaitDrained()
	is := tainted(outOfOrder, "nodeshutdown", corev1.TaintEffectNoExecute)
	f.awaitNode("tainted as out of service", is)
	for _, n := range history.States() {
		if is(n) && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == nth+"/spot-itn" }) {
			f.t.Error("the node was out of service before it was tainted for its interruption")
		}
	}
	f.Set(aws.SpotPath, "") // the instance survives
	f.awaitNode("restored", hasNothingOfNTH)
}

func testSpotDryRun(f *nthFixture) {
	f.interruptSpot()
	f.startNTH("/readyz", "DRY_RUN=true", "TAINT_NODE=true")
	f.awaitLog("would have been cordoned and drained")
	f.awaitReads(aws.SpotPath, 3)
	f.checkUntouched()
}

func testSpotEventsOn(f *nthFixture) {
	f.startNTH("/readyz", "EMIT_KUBERNETES_EVENTS=true", "TAINT_NODE=true", "ENABLE_SCHEDULED_EVENT_DRAINING=false",
		"KUBERNETES_EVENTS_EXTRA_ANNOTATIONS=spot.itn.events/test=extra-annotation")
	f.check(testbed.PollUntil(f.ctx, "the description of the instance is read", func() bool {
		for _, path := range []string{"instance-life-cycle", "local-hostname", "public-hostname", "public-ipv4"} {
			if f.Requests(http.MethodGet, "/latest/meta-data/"+path) == 0 {
				return false
			}
		}
		return true
	}))
	f.interruptSpot()
	f.awaitTaint("spot-itn", "spot-itn-")
	f.awaitDrained()
	for reason, message := range map[string]string{
		"SpotInterruption": "Spot ITN received. Instance will be interrupted at ", "PreDrain": "Pre-drain task successfully executed",
		"CordonAndDrain": "Node successfully cordoned and drained",
	} {
		e := f.awaitEvent(reason)
		if !strings.HasPrefix(e.Message, message) || e.Type != "Normal" || e.Source.Component != nth {
			f.t.Errorf("%s: %+v", reason, e)
		}
		for key, want := range map[string]string{
			"account-id": aws.AccountID, "availability-zone": "eu-west-1a", "instance-id": f.ID, "instance-life-cycle": "spot", "instance-type": "m7g.large",
			"local-hostname": "ip-10-0-0-7.ec2.internal", "local-ipv4": "10.0.0.7", "public-hostname": "ec2-3-4-5-6.compute.amazonaws.com",
			"public-ipv4": "3.4.5.6", "region": "eu-west-1", "spot.itn.events/test": "extra-annotation",
		} {
			if got, found := e.Annotations[key]; !found || got != want {
				f.t.Errorf("%s: annotation %s is %q, want %q", reason, key, got, want)
			}
		}
	}
}

// testSpotHostNetworkingOff runs the agent as on a pod network. The response to the request for a token is lost there until
// the hop limit is raised.
func testSpotHostNetworkingOff(f *nthFixture) {
	f.SetFault(aws.TokenPath, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	f.interruptSpot()
	f.startNTH("/healthz", "TAINT_NODE=true", "ENABLE_SCHEDULED_EVENT_DRAINING=false")
	f.awaitLog("HttpPutResponseHopLimit")
	f.SetFault(aws.TokenPath, nil)
	f.awaitTaint("spot-itn", "spot-itn-")
	f.awaitDrained()
}

// webhookTemplate has the fields of the template in the tool's test.
const webhookTemplate = `{"Content":"[NTH][Instance Interruption] InstanceId: {{ .InstanceID }} - Node: {{ .NodeName }} - InstanceType: {{ .InstanceType }} - ` +
	`AvailabilityZone: {{ .AvailabilityZone }} - Kind: {{ .Kind }} - Start Time: {{ .StartTime }}"}`

// checkWebhookBody checks a message with webhookTemplate.
func (f *nthFixture) checkWebhookBody(body string, due time.Time) {
	f.t.Helper()
	var got struct{ Content string }
	f.check(json.Unmarshal([]byte(body), &got))
	want := "[NTH][Instance Interruption] InstanceId: " + f.ID + " - Node: " + f.node() + " - InstanceType: m7g.large - AvailabilityZone: eu-west-1a - " +
		"Kind: SPOT_ITN - Start Time: " + due.UTC().Truncate(time.Second).String()
	if got.Content != want {
		f.t.Errorf("the webhook got %q, want %q", got.Content, want)
	}
}

func testWebhook(f *nthFixture) {
	hook := newReceiver(f.t)
	f.startNTH("/readyz", "WEBHOOK_URL="+hook.URL+"/hook", "WEBHOOK_TEMPLATE="+webhookTemplate, `WEBHOOK_HEADERS={"Content-type":"text/x-nth"}`)
	f.awaitReads("/latest/meta-data/public-ipv4", 0)
	due := time.Now().Add(2 * time.Minute)
	f.SetSpotAction("terminate", due)
	contentType, body, _ := strings.Cut(f.awaitMessage(hook, http.MethodPost, "/hook"), "\n")
	if contentType != "text/x-nth" {
		f.t.Errorf("content type %q", contentType)
	}
	f.checkWebhookBody(body, due)
	f.awaitDrained()
	if sent := len(hook.messages()); sent != 1 {
		f.t.Errorf("%d messages, want 1", sent)
	}
}

// testWebhookProxy uses a proxy with the scheme in the tool's help, tcp.
func testWebhookProxy(f *nthFixture) {
	var proxied atomic.Pointer[string]
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text := r.Method + " " + r.URL.String()
		proxied.Store(&text)
	}))
	f.t.Cleanup(proxy.Close)
	f.startNTH("/readyz", "WEBHOOK_URL=http://hooks.example.test/hook", "WEBHOOK_TEMPLATE="+webhookTemplate,
		"WEBHOOK_PROXY=tcp://"+strings.TrimPrefix(proxy.URL, "http://"))
	f.interruptSpot()
	f.awaitDrained()
	f.check(testbed.PollUntil(f.ctx, "the proxy has a request", func() bool { return proxied.Load() != nil }))
	if got := *proxied.Load(); got != "POST http://hooks.example.test/hook" {
		f.t.Errorf("the proxy got %s", got)
	}
}

func testWebhookSecret(f *nthFixture) {
	hook := newReceiver(f.t)
	f.startNTH("/readyz", "WEBHOOK_URL="+hook.URL+"/T0SECRET/B0") // the chart sets it from a Secret
	f.interruptSpot()
	_, body, _ := strings.Cut(f.awaitMessage(hook, http.MethodPost, "/T0SECRET/B0"), "\n")
	var got struct{ Text string }
	f.check(json.Unmarshal([]byte(body), &got))
	for _, want := range []string{"EventID: spot-itn-", "Kind: SPOT_ITN", "Instance: " + f.ID, "Node: " + f.node(), "Description: Spot ITN received."} {
		if !strings.Contains(got.Text, want) {
			f.t.Errorf("the message lacks %q: %s", want, got.Text)
		}
	}
	f.awaitDrained()
	if strings.Contains(f.readLog(), "T0SECRET") || strings.Contains(f.agent.ReadMetrics(f.ctx), "T0SECRET") {
		f.t.Error("the secret part of the URL is in the log or the metrics")
	}
}
