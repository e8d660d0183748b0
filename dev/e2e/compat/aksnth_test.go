package compat_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

const old = "aks_node_termination_handler_"

// markers is a template with every marker of the original tool.
const markers = `{{ .Event.EventId }}|{{ .Event.EventType }}|{{ .Event.ResourceType }}|{{ .Event.Resources }}|{{ .Event.EventStatus }}|` +

	`{{ .Event.NotBefore }}|{{ .Event.Description }}|{{ .Event.EventSource }}|{{ .Event.DurationInSeconds }}|{{ .NodeName }}|` +
	`{{ index .NodeLabels "kubernetes.io/hostname" }}|{{ .ClusterName }}|{{ .InstanceType }}|{{ .NodeArch }}|{{ .NodeOS }}|` +
	`{{ .NodeRole }}|{{ .NodeRegion }}|{{ .NodeZone }}|{{ .NodePods }}`

// TestAKSNTHOutputsMatchTool checks all outputs for a Reboot: taint, Kubernetes Events, messages, metrics, HTTP. A PDB
// blocks the drain for a while (W2).
func TestAKSNTHOutputsMatchTool(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "outputs")
	webhook, telegram := newReceiver(t), newReceiver(t)
	web := f.app("web", 1)
	web.MinAvailable = "1" // the instance disappears after the drain, and its metrics too
	daemon := f.app("daemon", 1)
	f.run(web.StatefulSet(), web.PodDisruptionBudget(), daemon.DaemonSet())
	history, err := f.RecordNodeStates(f.ctx, f.node())
	f.check(err)
	defer history.StopRecording()
	a := f.aksnth("-taint.node", "-telegram.token=12:abc", "-telegram.chatID=-100123", "-telegram.url="+telegram.URL,
		"-webhook.url="+webhook.URL+"/secret/hook", "-webhook.method=PUT", "--webhook.contentType", "text/plain",
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
	f.checkMessages(webhook, telegram, r, words)
	f.checkMetrics(a)
	f.checkEvictionRate()
	f.check(f.Client().PolicyV1().PodDisruptionBudgets(f.ns).Delete(f.ctx, web.Name, metav1.DeleteOptions{}))
	if ended := f.awaitEnd(r.EventID); ended.StartedBy != azure.ByApproval {
		t.Errorf("the event was started by %s, want it acknowledged after the drain", ended.StartedBy)
	}
	f.awaitNode("restored, without the taint", func(n *corev1.Node) bool {
		return isRestored(n) && !tainted("aks-node-termination-handler/reboot", r.EventID, corev1.TaintEffectNoSchedule)(n)
	})
	if !slices.ContainsFunc(history.States(), tainted("aks-node-termination-handler/reboot", r.EventID, corev1.TaintEffectNoSchedule)) {
		t.Error("the node never had the taint aks-node-termination-handler/reboot with the event's ID")
	}
	if code, body := f.ask(a, http.MethodGet, "/healthz", nil); code != 200 || body != "LIVE" {
		t.Errorf("/healthz: %d %q", code, body)
	}
}

// checkEvictionRate checks that the agent does not repeat a denied eviction 5 times per second (W7).
func (f *fixture) checkEvictionRate() {
	f.t.Helper()
	var evictions []auditv1.Event
	f.check(testbed.PollUntil(f.ctx, "the pod's eviction was repeated", func() bool {
		evictions = f.requests("create", "pods/eviction")
		return len(evictions) >= 3
	}))
	took := evictions[len(evictions)-1].RequestReceivedTimestamp.Sub(evictions[0].RequestReceivedTimestamp.Time)
	if most := 5 + 3*took/(2*time.Second); len(evictions) > int(most) {
		f.t.Errorf("W7: %d evictions of one pod in %s", len(evictions), took)
	}
}

func (f *fixture) checkMessages(webhook, telegram *receiver, r azure.EventRecord, words string) {
	f.t.Helper()
	text := f.awaitMessage(telegram, http.MethodPost, "/bot12:abc/sendMessage")
	var sent struct {
		ChatID string `json:"chat_id"`
		Text   string `json:"text"`
	}
	_, body, _ := strings.Cut(text, "\n")
	f.check(json.Unmarshal([]byte(body), &sent))
	if sent.ChatID != "-100123" || sent.Text != "Draining node="+f.node()+", type=Reboot" {
		f.t.Errorf("Telegram got %+v", sent)
	}
	kind, body, _ := strings.Cut(f.awaitMessage(webhook, http.MethodPut, "/secret/hook"), "\n")
	node := f.getNode()
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

// checkMetrics checks counters of the event. Unit tests check the names and labels of all metrics.
func (f *fixture) checkMetrics(a *testbed.Agent) {
	f.t.Helper()
	f.awaitMetric(a, old+`http_webhook_requests_total{code="200",method="put",endpoint="webhook"}`, 1)
	text := a.ReadMetrics(f.ctx)
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

// TestW03W14EveryEventIsDrainedAndNodeRestored announces three events in sequence. A taint key repeats, and another user
// has already set the taint of the second event.
func TestW03W14EveryEventIsDrainedAndNodeRestored(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w03")
	f.run(f.app("web", 1).Deployment())
	const foreign = `{"spec":{"taints":[{"key":"aks-node-termination-handler/redeploy","value":"old","effect":"PreferNoSchedule"}]}}`
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(), types.MergePatchType, []byte(foreign), metav1.PatchOptions{})
	f.check(err)
	f.aksnth("-taint.node", "-taint.effect=PreferNoSchedule")
	for _, kind := range []azure.EventType{azure.Reboot, azure.Redeploy, azure.Reboot} {
		r := f.announce(azure.Announcement{Type: kind, Notice: 5 * time.Minute, Outage: time.Second})
		if ended := f.awaitEnd(r.EventID); ended.StartedBy != azure.ByApproval {
			t.Errorf("%s was started by %s, want it acknowledged (W4)", kind, ended.StartedBy)
		}
		f.awaitNode("restored, with the foreign taint alone", func(n *corev1.Node) bool {
			return isRestored(n) && len(n.Spec.Taints) == 1 &&
				tainted("aks-node-termination-handler/redeploy", "old", corev1.TaintEffectPreferNoSchedule)(n)
		})
		f.awaitPods(1)
	}
}

func TestW09ExitAfterDrainEndsProcess(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "exit")
	f.run(f.app("web", 2).Deployment())
	a := f.aksnth("-exitAfterNodeDrain", "-drainOnFreezeEvent") // the process continues after a Freeze
	r := f.announce(azure.Announcement{Type: azure.Freeze, Notice: 5 * time.Minute, Outage: time.Second})
	f.check(testbed.PollUntil(f.ctx, "the process has exited", func() bool { return !a.IsAlive() }))
	if !a.HasLogged("the node is drained; exiting as configured") {
		t.Error("the log does not give the drain as the reason of the exit")
	}
	if ended := f.awaitEnd(r.EventID); ended.StartedBy != azure.ByApproval {
		t.Errorf("the event was started by %s, want it acknowledged before the exit", ended.StartedBy)
	}
}

func TestW13DrainNodeWaitsForPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "drainnode")
	slow := f.app("slow", 1)
	slow.GracePeriod, slow.StopSeconds = 20*time.Second, "3"
	f.run(slow.Deployment())
	a := f.aksnth("-taint.node", "-web.token-file="+testbed.WriteTempFile(f.t, "token", "s3cret\n"))
	remote := http.Header{"X-Forwarded-For": {"10.0.0.9"}}
	for path, method := range map[string]string{"/drainNode": http.MethodPost, "/debug/pprof/": http.MethodGet} {
		if code, body := f.ask(a, method, path, remote); code != http.StatusForbidden {
			t.Errorf("%s for a remote client: %d %s, want 403", path, code, body)
		}
	}
	f.awaitPods(1)
	remote.Set("Authorization", "Bearer s3cret")
	began := time.Now()
	if code, body := f.ask(a, http.MethodPost, "/drainNode", remote); code != 200 || body != "done" {
		t.Fatalf("with the token: %d %s", code, body)
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("answered after %s, while the pod takes 3 s to stop", took)
	}
	f.awaitPods(0)
	f.awaitNode("tainted for a manual drain", tainted("aks-node-termination-handler/preempt", "manual", corev1.TaintEffectNoSchedule))
	if code, body := f.ask(a, http.MethodPost, "/drainNode", nil); code != 200 || body != "done" {
		t.Errorf("a second request: %d %s", code, body)
	}
	if code, _ := f.ask(a, http.MethodDelete, "/drainNode", nil); code != 200 {
		t.Errorf("DELETE: %d", code)
	}
	f.awaitNode("restored", isRestored)
}

func TestDrainNodeReportsTimeoutAfterNodeGracePeriod(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "timeout")
	blocked := f.app("blocked", 1)
	blocked.MinAvailable = "1"
	f.run(blocked.Deployment(), blocked.PodDisruptionBudget())
	a := f.aksnth("-nodeGracePeriodSeconds=2")
	for range 2 { // W13: the second call answers as correctly as the first
		code, body := f.ask(a, http.MethodPost, "/drainNode", nil)
		if code != http.StatusInternalServerError || !strings.Contains(body, "is not drained") {
			t.Errorf("%d %s", code, body)
		}
	}
	f.awaitPods(1)
}

// phase returns the phase of an event from the node's labels.
func phase(n *corev1.Node, id string) string { return n.Labels["notice.slipway.dev/azure-"+id] }

// TestW16NoExecuteTaintFollowsDrain adds a pod that tolerates every taint, as the agents' own
// DaemonSet does.
func TestW16NoExecuteTaintFollowsDrain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w16")
	slow := f.app("slow", 2)
	slow.StopSeconds = "2" // some time passes between the first eviction and the last pod's end
	tolerant := f.app("tolerant", 1).DaemonSet()
	tolerant.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	f.run(slow.Deployment(), tolerant)
	before, err := f.Client().CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(tolerant.Spec.Selector)})
	f.check(err)
	history, err := f.RecordNodeStates(f.ctx, f.node())
	f.check(err)
	defer history.StopRecording()
	f.aksnth("-taint.node", "-taint.effect=NoExecute")
	r := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Second})
	is := tainted("aks-node-termination-handler/redeploy", r.EventID, corev1.TaintEffectNoExecute)
	f.awaitNode("tainted", is)
	f.awaitEnd(r.EventID)
	f.awaitNode("restored, without the taint", func(n *corev1.Node) bool { return isRestored(n) && !is(n) })
	seen := 0
	for _, n := range history.States() {
		if !is(n) {
			continue
		}
		if seen++; phase(n, r.EventID) != "drained" {
			t.Errorf("the node has the taint NoExecute in phase %q, want drained", phase(n, r.EventID))
		}
	}
	if seen == 0 {
		t.Error("no state of the node has the taint")
	}
	after, err := f.Client().CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(tolerant.Spec.Selector)})
	f.check(err)
	if len(before.Items) != 1 || len(after.Items) != 1 || before.Items[0].UID != after.Items[0].UID {
		t.Errorf("the pod that tolerates every taint was replaced: %d pods before, %d after", len(before.Items), len(after.Items))
	}
}

func TestW17SIGTERMWaitsForRunningDrain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w17")
	slow := f.app("slow", 1)
	slow.GracePeriod, slow.StopSeconds = 20*time.Second, "3"
	f.run(slow.Deployment())
	a := f.aksnth("-gracePeriodSeconds=30")
	// The return of the instance would start the agent again.
	f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Hour})
	f.awaitEvent("Draining")
	f.check(syscall.Kill(a.PID(), syscall.SIGTERM))
	f.check(testbed.PollUntil(f.ctx, "the process has exited", func() bool { return !a.IsAlive() }))
	if !a.HasLogged("drained") {
		t.Error("the process exited before the node was drained")
	}
}

func TestW22DisableEvictionDeletesPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w22")
	blocked := f.app("blocked", 1)
	blocked.MinAvailable = "1"
	f.run(blocked.Deployment(), blocked.PodDisruptionBudget())
	f.aksnth("-disableEviction", "-podGracePeriodSeconds=3")
	f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Hour})
	f.awaitPods(0)
	if evicted, deleted := len(f.requests("create", "pods/eviction")), len(f.requests("delete", "pods")); evicted > 0 || deleted == 0 {
		t.Errorf("%d evictions and %d deletions, want deletions only", evicted, deleted)
	}
}

// TestW05W24BlockedDrainFollowsNewEvents drains for an event while a PDB blocks the drain. The agent must
// notice the event's cancellation, and then a more urgent event, whose deadline overrides the PDB and the grace period.
func TestW05W24BlockedDrainFollowsNewEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w24")
	blocked := f.app("blocked", 1)
	blocked.MinAvailable, blocked.GracePeriod, blocked.StopSeconds = "1", 10*time.Minute, "1"
	f.run(blocked.Deployment(), blocked.PodDisruptionBudget())
	a := f.aksnth()
	cancelled := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: time.Hour})
	f.awaitEvent("DrainBlocked")
	polls, _ := a.ReadMetric(f.ctx, `slipway_agent_polls_total{result="ok"}`)
	f.awaitMetric(a, `slipway_agent_polls_total{result="ok"}`, polls+3)
	f.check(f.Azure.CancelEvent(cancelled.EventID))
	f.awaitNode("restored", isRestored)
	f.awaitPods(1)
	later := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: time.Hour})
	f.awaitNode("draining for the later event", func(n *corev1.Node) bool { return phase(n, later.EventID) == "draining" })
	urgent := f.announce(azure.Announcement{Type: azure.Preempt, Notice: 30 * time.Second})
	f.awaitPods(0)
	if deleted := f.requests("delete", "pods"); len(deleted) == 0 || !deleted[0].RequestReceivedTimestamp.Time.Before(urgent.NotBefore) {
		t.Errorf("W5: %d deletions, want the first before %s", len(deleted), urgent.NotBefore)
	}
}

func TestSimulatedEvictionDrainsNode(t *testing.T) {
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
	if out, err := f.slipway("simulate-eviction", "unknown", "--kubeconfig", f.Kubeconfig(), "--arm-endpoint", f.ARMURL()); err == nil ||
		!strings.Contains(out, "unknown") {
		t.Errorf("a missing node: %v, %s", err, out)
	}
}
