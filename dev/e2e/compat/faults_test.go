package compat_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// agentUser is the API user of all agents of the testbed.
const agentUser = "system:serviceaccount:" + testbed.AgentNamespace + ":" + testbed.AgentAccount

// asked returns the agents' requests in the test's namespace.
func (f *fixture) asked(verb, resource string) []auditv1.Event {
	f.t.Helper()
	events, err := f.ReadAuditLog(controlplane.AuditFilter{User: agentUser, Verb: verb, Resource: resource, Namespace: f.ns})
	f.check(err)
	return events
}

// requests counts the agents' requests in the test's namespace.
func (f *fixture) requests(verb, resource string) int {
	f.t.Helper()
	return len(f.asked(verb, resource))
}

func TestW01ANodeThatIsCordonedAlreadyIsDrained(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w01")
	f.run(f.app("web", 2).Deployment())
	f.setUnschedulable(true)
	f.aksnth()
	r := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Second})
	f.awaitPods(0)
	f.awaitOver(r.EventID)
	n := f.awaitNode("released", func(n *corev1.Node) bool { return n.Annotations["cordon.slipway.dev/azure-"+r.EventID] == "" })
	if !cordoned(n) {
		t.Error("it was uncordoned, though somebody else had cordoned it")
	}
}

func TestW02AnObstacleThatGoesAwayLetsTheDrainFinish(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w02")
	kept := f.app("kept", 1)
	kept.MinAvailable = "1"
	f.run(kept.Deployment(), kept.PodDisruptionBudget())
	f.aksnth("-nodeGracePeriodSeconds=1")
	r := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Second})
	f.awaitEvent("DrainBlocked")
	time.Sleep(3 * time.Second) // longer than the tool would have tried
	// W7: the agent does not repeat denied evictions continuously, at 5 per second.
	asked := f.asked("create", "pods/eviction")
	took := asked[len(asked)-1].RequestReceivedTimestamp.Sub(asked[0].RequestReceivedTimestamp.Time)
	if most := 5 + 3*took/(2*time.Second); len(asked) > int(most) {
		t.Errorf("W7: %d evictions of one pod in %s", len(asked), took)
	}
	f.check(f.Client().PolicyV1().PodDisruptionBudgets(f.ns).Delete(f.ctx, kept.Name, metav1.DeleteOptions{}))
	if over := f.awaitOver(r.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("the event started %s, want it acknowledged once the pod was gone", over.StartedBy)
	}
}

func TestW03EveryEventIsHandledAndTheNodeRestored(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w03")
	f.run(f.app("web", 1).Deployment())
	f.aksnth("-taint.node")
	for _, kind := range []azure.EventType{azure.Reboot, azure.Redeploy, azure.Reboot} { // W14: a taint key repeats
		r := f.announce(azure.Announcement{Type: kind, Notice: 5 * time.Minute, Outage: time.Second})
		if over := f.awaitOver(r.EventID); over.StartedBy != azure.ByApproval {
			t.Errorf("%s started %s, want it acknowledged (W4)", kind, over.StartedBy)
		}
		f.awaitNode("restored, without taints", func(n *corev1.Node) bool {
			return free(n) && !tainted("aks-node-termination-handler/"+strings.ToLower(string(kind)), r.EventID, corev1.TaintEffectNoSchedule)(n)
		})
		f.awaitPods(1)
	}
}

func TestW05NearTheDeadlineABudgetIsPassedAndGraceIsCut(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w05")
	kept := f.app("kept", 1)
	kept.MinAvailable, kept.GracePeriod, kept.StopSeconds = "1", 10*time.Minute, "1"
	f.run(kept.Deployment(), kept.PodDisruptionBudget())
	f.aksnth()
	r := f.announce(azure.Announcement{Type: azure.Preempt, Notice: 25 * time.Second})
	f.awaitPods(0)
	deleted, err := f.ReadAuditLog(controlplane.AuditFilter{User: agentUser, Verb: "delete", Resource: "pods", Namespace: f.ns})
	f.check(err)
	if len(deleted) == 0 || !deleted[0].RequestReceivedTimestamp.Time.Before(r.NotBefore) {
		t.Errorf("%d deletions before %s", len(deleted), r.NotBefore)
	}
}

func TestW06W08W15M20ManyPodsLeaveAtOnceAndLittleIsRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w06")
	const pods = 60
	many := f.app("many", pods)
	many.StopSeconds = "1"
	f.run(many.Deployment())
	f.aksnth()
	f.announce(azure.Announcement{Type: azure.Preempt, Notice: 5 * time.Minute})
	f.awaitPods(0)
	events := f.asked("create", "pods/eviction")
	// With a limit of 5 requests per second after a burst of 10, most of (60-10)/5 = 10 s would have no request in
	// flight.
	if idle := unasked(events); len(events) < pods || idle > 5*time.Second {
		t.Errorf("%d evictions, with %s in between in which none was under way", len(events), idle)
	}
	f.checkW08W15()
}

// unasked returns the total time without a request in flight, between the first request and the last. A rate limit
// increases this time. A slow server or a slow host does not.
func unasked(events []auditv1.Event) (idle time.Duration) {
	slices.SortFunc(events, func(a, b auditv1.Event) int {
		return a.RequestReceivedTimestamp.Compare(b.RequestReceivedTimestamp.Time)
	})
	end := events[0].RequestReceivedTimestamp.Time
	for _, e := range events {
		idle += max(0, e.RequestReceivedTimestamp.Sub(end))
		end = latest(end, e.StageTimestamp.Time)
	}
	return idle
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// checkW08W15 checks the requests of all agents of the testbed. They list pods of one node only (W8), evict no DaemonSet
// pods (W15), and never write a whole Node (M20).
func (f *fixture) checkW08W15() {
	f.t.Helper()
	lists, err := f.ReadAuditLog(controlplane.AuditFilter{User: agentUser, Verb: "list", Resource: "pods"})
	f.check(err)
	for _, e := range lists {
		if !strings.Contains(e.RequestURI, "fieldSelector=spec.nodeName") {
			f.t.Errorf("W8: %s", e.RequestURI)
		}
	}
	if len(lists) == 0 {
		f.t.Error("the audit log has no list of pods")
	}
	for what, filter := range map[string]controlplane.AuditFilter{
		"W15": {User: agentUser, Resource: "daemonsets"}, "M20": {User: agentUser, Verb: "update", Resource: "nodes"},
	} {
		events, err := f.ReadAuditLog(filter)
		f.check(err)
		if len(events) > 0 {
			f.t.Errorf("%s: %s %s", what, events[0].Verb, events[0].RequestURI)
		}
	}
}

func TestW10AKubernetesEventThatCannotBeWrittenStopsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w10")
	f.run(f.app("web", 1).Deployment())
	a := f.aksnthBehind(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events") {
			http.Error(w, `{"kind":"Status","status":"Failure","reason":"Forbidden","code":403}`, http.StatusForbidden)
			return true
		}
		return false
	})
	r := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Second})
	f.awaitPods(0)
	f.awaitMetric(a, old+`error_reading_endpoint_total{node="`+f.node()+`",resource="`+f.pool.ResourceName(0)+`"}`, 1)
	f.awaitOver(r.EventID)
}

// aksnthBehind starts the compatibility mode behind a server that answers some of its API requests itself.
func (f *fixture) aksnthBehind(answers func(http.ResponseWriter, *http.Request) bool, flags ...string) *testbed.Agent {
	f.t.Helper()
	config := f.RESTConfig()
	server, err := url.Parse(config.Host)
	f.check(err)
	transport, err := rest.TransportFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: config.CAData, CAFile: config.CAFile}})
	f.check(err)
	forward := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(server) }}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answers(w, r) {
			forward.ServeHTTP(w, r)
		}
	}))
	f.t.Cleanup(func() { proxy.CloseClientConnections(); proxy.Close() })
	at, err := url.Parse(proxy.URL)
	f.check(err)
	kubeconfig := filepath.Join(f.t.TempDir(), "kubeconfig")
	return f.start("/readyz", func(w testbed.AgentSettings) (args, env []string) {
		f.check(faultproxy.WriteKubeconfig(w.Kubeconfig, kubeconfig, at))
		args = []string{
			"aks-node-termination-handler", "-kubeconfig=" + kubeconfig, "-endpoint=" + w.Endpoint, "-web.address=" + w.Listen,
			"-period=200ms",
		}
		return append(args, flags...), []string{"MY_NODE_NAME=" + w.Node}
	})
}

func TestW11AnAnswerThatIsAnErrorIsNoEmptyList(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w11")
	f.run(f.app("web", 1).Deployment())
	a := f.aksnth()
	f.announce(azure.Announcement{Type: azure.Freeze, Notice: 5 * time.Minute})
	f.check(f.Azure.InjectFaults(azure.Fault{Kind: azure.FaultStatus, Status: 429, Times: 5, ScaleSet: f.pool.ScaleSetName()}))
	f.awaitMetric(a, old+`error_reading_endpoint_total{node="`+f.node()+`",resource="`+f.pool.ResourceName(0)+`"}`, 5)
	if over, _ := a.ReadMetric(f.ctx, `slipway_agent_notices_ended_total{type="Freeze"}`); over != 0 {
		t.Error("an error was read as a list without the event")
	}
}

func TestW12AWebhookThatHangsHoldsNothingUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w12")
	f.run(f.app("web", 1).Deployment())
	release := make(chan struct{})
	hole := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer hole.Close()
	defer close(release)
	// W19: Telegram is unavailable from the start.
	a := f.aksnth("-webhook.url="+hole.URL+"/s3cret", "-webhook.template=x", "-webhook.timeout=1s", "-telegram.token=1:s3cret",
		"-telegram.chatID=1", "-telegram.url=http://127.0.0.1:1")
	r := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Second})
	if over := f.awaitOver(r.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("the event started %s", over.StartedBy)
	}
	if code, _ := f.ask(a, http.MethodGet, "/healthz", nil); code != 200 {
		t.Errorf("W19: /healthz answers %d while Telegram is away", code)
	}
	f.check(testbed.PollUntil(f.ctx, "the request is given up", func() bool {
		return a.HasLogged("notification not sent, will retry")
	}))
	for _, line := range a.ReadLog() {
		for key, value := range line {
			if text, ok := value.(string); ok && strings.Contains(text, "s3cret") {
				t.Errorf("W20: %s: %s", key, text)
			}
		}
	}
}

func TestW14ATaintThatIsThereAlreadyIsNoError(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w14")
	f.run(f.app("web", 1).Deployment())
	const left = `{"spec":{"taints":[{"key":"aks-node-termination-handler/redeploy","value":"old","effect":"PreferNoSchedule"}]}}`
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(), types.MergePatchType, []byte(left), metav1.PatchOptions{})
	f.check(err)
	f.aksnth("-taint.node", "-taint.effect=PreferNoSchedule")
	r := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Second})
	f.awaitOver(r.EventID)
	f.awaitNode("free, with the taint as it was", func(n *corev1.Node) bool {
		return free(n) && tainted("aks-node-termination-handler/redeploy", "old", corev1.TaintEffectPreferNoSchedule)(n)
	})
}

func TestW17ASignalLetsTheDrainUnderWayGoOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w17")
	slow := f.app("slow", 1)
	slow.GracePeriod, slow.StopSeconds = 20*time.Second, "6"
	f.run(slow.Deployment())
	a := f.aksnth("-gracePeriodSeconds=30")
	// The return of the instance would start the agent again.
	f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Hour})
	f.awaitEvent("Draining")
	f.check(syscall.Kill(a.PID(), syscall.SIGTERM))
	f.check(testbed.PollUntil(f.ctx, "the process has exited", func() bool { return !a.IsAlive() }))
	if !a.HasLogged("drained") {
		t.Error("it exited before the node was drained")
	}
}

func TestW18ADryRunConsumesNothingAndClaimsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w18")
	f.run(f.app("web", 1).Deployment())
	a := f.aksnth("-dryRun", "-taint.node", "-drainOnFreezeEvent")
	for range 2 {
		r := f.announce(azure.Announcement{Type: azure.Freeze, Notice: 10 * time.Second, Outage: time.Second})
		f.awaitOver(r.EventID)
	}
	f.awaitMetric(a, old+`scheduled_events_total{node="`+f.node()+`",resource="`+f.pool.ResourceName(0)+`",type="Freeze"}`, 2)
	if n := f.requests("create", "pods/eviction"); n > 0 || a.HasLogged("cordoned") || a.HasLogged("drained") {
		t.Errorf("%d evictions, or a claim to have done what was not done", n)
	}
}

func TestW22DisableEvictionHasTheRightsThatItNeeds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w22")
	kept := f.app("kept", 1)
	kept.MinAvailable = "1"
	f.run(kept.Deployment(), kept.PodDisruptionBudget())
	f.aksnth("-disableEviction", "-podGracePeriodSeconds=3")
	f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Hour})
	f.awaitPods(0)
	if evicted, deleted := f.requests("create", "pods/eviction"), f.requests("delete", "pods"); evicted > 0 || deleted == 0 {
		t.Errorf("%d evictions and %d deletions", evicted, deleted)
	}
}

func TestW25M24OthersAtWorkAreSeen(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w25")
	f.run(f.app("web", 1).Deployment())
	f.aksnth()
	const taint = `{"spec":{"taints":[{"key":"remediator.kubernetes.azure.com/unschedulable","effect":"NoSchedule"}]}}`
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(), types.MergePatchType, []byte(taint), metav1.PatchOptions{})
	f.check(err)
	f.announce(azure.Announcement{Type: azure.Reboot, Notice: 10 * time.Minute})
	if e := f.awaitEvent("OtherToolActive"); !strings.Contains(e.Message, "AKS node auto-drain") {
		t.Errorf("%s", e.Message)
	}
}

func TestM05AnotherMachineWhoseNameContainsOursIsAnother(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m05")
	f.run(f.app("web", 1).Deployment())
	a := f.mechanic(testbed.WriteTempFile(f.t, "mechanic.yaml", ""))
	r, err := f.Azure.Announce(azure.Announcement{
		ScaleSet: f.pool.ScaleSetName(), Resources: []string{f.pool.ResourceName(0) + "1"}, Type: azure.Preempt, Notice: 3 * time.Second,
	})
	f.check(err)
	f.awaitOver(r.EventID)
	if n, _ := a.ReadMetric(f.ctx, `slipway_agent_notices_total{type="Preempt",action="drain"}`); n != 0 {
		t.Error("it took the event for its own")
	}
	f.awaitPods(1)
}

func TestM06AnUnexpectedDocumentIsSurvived(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m06")
	f.run(f.app("web", 1).Deployment())
	a := f.mechanic(testbed.WriteTempFile(f.t, "mechanic.yaml", "scheduledEvents: {freeze: true}"))
	r := f.announce(azure.Announcement{Type: azure.Freeze, Notice: 5 * time.Minute, Outage: time.Second})
	pid := a.PID()
	for _, field := range []string{"", "DocumentIncarnation", "EventId", "EventType", "Resources", "NotBefore", "DurationInSeconds"} {
		f.check(f.Azure.InjectFaults(azure.Fault{Kind: azure.FaultField, Field: field, Times: 1, ScaleSet: f.pool.ScaleSetName()}))
	}
	f.awaitOver(r.EventID)
	f.awaitNode("restored", free)
	if !a.IsAlive() || a.PID() != pid {
		t.Error("the process died")
	}
}

func TestM14AConditionWithoutAnEventDrainsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m14")
	f.run(f.app("web", 1).Deployment())
	a := f.mechanic(testbed.WriteTempFile(f.t, "mechanic.yaml", "optional: {kernelDeadlock: true, pollingInterval: 1}\n"))
	f.setCondition("VMEventScheduled", "True")
	f.setCondition("RebootScheduled", "True")
	before, _ := a.ReadMetric(f.ctx, `slipway_agent_polls_total{result="ok"}`)
	f.awaitMetric(a, `slipway_agent_polls_total{result="ok"}`, before+4)
	if n := f.awaitNode("there", func(*corev1.Node) bool { return true }); !free(n) {
		t.Fatal("a false condition has cordoned the node")
	}
	// M8: a condition of a custom type drains the node. The node stays cordoned during the later polls.
	f.setCondition("KernelDeadlock", "True")
	f.awaitNode("held", func(n *corev1.Node) bool { return labelled(n) && cordoned(n) })
	f.awaitPods(0)
	f.setCondition("KernelDeadlock", "False")
	history, err := f.RecordNodeStates(f.ctx, f.node())
	f.check(err)
	defer history.StopRecording()
	before, _ = a.ReadMetric(f.ctx, `slipway_agent_polls_total{result="ok"}`)
	f.awaitMetric(a, `slipway_agent_polls_total{result="ok"}`, before+5)
	for _, n := range history.States() {
		if free(n) {
			t.Error("M8: restored at once, to be drained again")
		}
	}
}

func (f *fixture) setCondition(kind, status string) {
	f.t.Helper()
	patch := `{"status":{"conditions":[{"type":"` + kind + `","status":"` + status + `","reason":"Test"}]}}`
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	f.check(err)
}

func TestM15ASignalEndsItAtOnceAndABadStartIsAFailure(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m15")
	a := f.mechanic(testbed.WriteTempFile(f.t, "mechanic.yaml", ""))
	f.check(syscall.Kill(a.PID(), syscall.SIGTERM))
	f.check(testbed.PollUntil(f.ctx, "the process has exited", func() bool { return !a.IsAlive() }))
	// An invalid file alone never prevents the start: see TestBadFileIsOnlyReportedAtStart.
	if out, err := f.slipway("mechanic", "--config", testbed.WriteTempFile(f.t, "bad.yaml", "scheduledEvents: {freeze: maybe}")); err == nil ||
		!strings.Contains(out, "$MECHANIC_NODE_NAME") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestM19AnIdleAgentAsksTheAPIServerNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m19")
	a := f.mechanic(testbed.WriteTempFile(f.t, "mechanic.yaml", "bypassNodeProblemDetector: true\n"))
	count := func() int {
		events, err := f.ReadAuditLog(controlplane.AuditFilter{User: agentUser, Verb: "get", Resource: "nodes", Name: f.node()})
		f.check(err)
		return len(events)
	}
	before := count()
	polls, _ := a.ReadMetric(f.ctx, `slipway_agent_polls_total{result="ok"}`)
	f.awaitMetric(a, `slipway_agent_polls_total{result="ok"}`, polls+12)
	if n := count() - before; n > 0 {
		t.Errorf("%d reads of the Node in twelve seconds", n)
	}
}
