package compat_test

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// phase returns the phase of an event from the node's labels.
func phase(n *corev1.Node, id string) string { return n.Labels["notice.slipway.dev/azure-"+id] }

// TestW16NoExecuteComesAfterTheDrainAndSparesWhatTolerates adds a pod that tolerates every taint, as the agents' own
// DaemonSet does.
func TestW16NoExecuteComesAfterTheDrainAndSparesWhatTolerates(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w16")
	slow := f.app("slow", 2)
	slow.StopSeconds = "2" // some time passes between the first eviction and the last pod's end
	guard := f.app("guard", 1).DaemonSet()
	guard.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	f.run(slow.Deployment(), guard)
	before, err := f.Client().CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(guard.Spec.Selector)})
	f.check(err)
	history, err := f.RecordNodeStates(f.ctx, f.node())
	f.check(err)
	defer history.StopRecording()
	f.aksnth("-taint.node", "-taint.effect=NoExecute")
	r := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Second})
	is := tainted("aks-node-termination-handler/redeploy", r.EventID, corev1.TaintEffectNoExecute)
	f.awaitNode("tainted", is)
	f.awaitOver(r.EventID)
	f.awaitNode("restored, without the taint", func(n *corev1.Node) bool { return free(n) && !is(n) })
	seen := 0
	for _, n := range history.States() {
		if !is(n) {
			continue
		}
		if seen++; phase(n, r.EventID) != "drained" {
			t.Errorf("it is tainted with NoExecute while its record says %q", phase(n, r.EventID))
		}
	}
	if seen == 0 {
		t.Error("no state of the node has the taint")
	}
	after, err := f.Client().CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(guard.Spec.Selector)})
	f.check(err)
	if len(before.Items) != 1 || len(after.Items) != 1 || before.Items[0].UID != after.Items[0].UID {
		t.Errorf("what tolerates every taint was replaced: %d before, %d after", len(before.Items), len(after.Items))
	}
}

func TestW23NamesAreTheSameInAnyCase(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w23")
	shouted := f.pool.Node(1)
	id, _ := strings.CutPrefix(shouted.ProviderID, "azure://")
	shouted.ProviderID = "azure://" + strings.ToUpper(id)
	f.check(f.AddNodes(f.ctx, shouted))
	web := f.app("web", 1)
	web.Node = shouted.Name
	f.run(web.Deployment())
	f.aksnthOn(1)
	r, err := f.Azure.Announce(azure.Announcement{
		ScaleSet: f.pool.ScaleSetName(), Resources: []string{strings.ToLower(f.pool.ResourceName(1))}, Type: azure.Redeploy,
		Notice: 5 * time.Minute, Outage: time.Second,
	})
	f.check(err)
	if over := f.awaitOver(r.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("the event started %s, want it drained for and acknowledged", over.StartedBy)
	}
}

// TestW24WhatBecomesOfAnEventIsSeenWhileTheNodeIsDrained drains for an event while a PDB blocks the drain. The agent must
// notice the event's cancellation, and then a more urgent event.
func TestW24WhatBecomesOfAnEventIsSeenWhileTheNodeIsDrained(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w24")
	kept := f.app("kept", 1)
	kept.MinAvailable, kept.StopSeconds = "1", "1"
	f.run(kept.Deployment(), kept.PodDisruptionBudget())
	a := f.aksnth()
	calledOff := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: time.Hour})
	f.awaitEvent("DrainBlocked")
	polls, _ := a.ReadMetric(f.ctx, `slipway_agent_polls_total{result="ok"}`)
	f.awaitMetric(a, `slipway_agent_polls_total{result="ok"}`, polls+3)
	f.check(f.Azure.CancelEvent(calledOff.EventID))
	f.awaitNode("restored", free)
	f.awaitPods(1)
	waits := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: time.Hour})
	f.awaitNode("held for the event that can wait", func(n *corev1.Node) bool { return phase(n, waits.EventID) == "draining" })
	f.announce(azure.Announcement{Type: azure.Preempt, Notice: 30 * time.Second})
	f.awaitPods(0) // the PDB blocks the first event's drain, and only the second event forces the deletion
}

// TestW25NoMoreNodesAreDrainedAtOnceThanAllowed announces one event for two instances.
func TestW25NoMoreNodesAreDrainedAtOnceThanAllowed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w25b")
	f.check(f.AddNodes(f.ctx, f.pool.Node(1)))
	f.check(f.CopyRoleAndBinding(f.ctx, testbed.AgentNamespace, testbed.AgentAccount, f.ns)) // other tests use drain slots too
	var histories []*testbed.NodeHistory
	for i := range 2 {
		app := workload.App{Namespace: f.ns, Name: "web-" + strconv.Itoa(i), Replicas: 1, Node: f.pool.NodeName(i), StopSeconds: "2"}
		f.run(app.Deployment())
		h, err := f.RecordNodeStates(f.ctx, f.pool.NodeName(i))
		f.check(err)
		defer h.StopRecording()
		histories = append(histories, h)
		f.aksnthOn(i, "-maxConcurrentDrains=1", "-namespace="+f.ns)
	}
	r, err := f.Azure.Announce(azure.Announcement{
		ScaleSet: f.pool.ScaleSetName(), Resources: []string{f.pool.ResourceName(0), f.pool.ResourceName(1)}, Type: azure.Reboot,
		Notice: 15 * time.Minute, Outage: time.Second,
	})
	f.check(err)
	if over := f.awaitOver(r.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("the event started %s, want it acknowledged once both are drained", over.StartedBy)
	}
	var all []*corev1.Node
	for _, h := range histories {
		all = append(all, h.States()...)
	}
	version := func(n *corev1.Node) int { // resource versions show the API server's order
		v, err := strconv.Atoi(n.ResourceVersion)
		f.check(err)
		return v
	}
	slices.SortFunc(all, func(x, y *corev1.Node) int { return cmp.Compare(version(x), version(y)) })
	draining, drained := map[string]bool{}, map[string]bool{}
	for _, n := range all {
		draining[n.Name] = phase(n, r.EventID) == "draining"
		drained[n.Name] = drained[n.Name] || phase(n, r.EventID) == "drained"
		if draining[f.pool.NodeName(0)] && draining[f.pool.NodeName(1)] {
			t.Fatal("both are drained at once")
		}
	}
	if !drained[f.pool.NodeName(0)] || !drained[f.pool.NodeName(1)] {
		t.Errorf("drained: %v", drained)
	}
}
