package agent_test

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
)

// setCondition patches a condition of the first instance's node, as node-problem-detector does.
func (f *fixture) setCondition(kind string, status corev1.ConditionStatus) {
	f.t.Helper()
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeConditionType(kind), Status: status, Reason: "Test", Message: "set by the test",
		LastTransitionTime: now, LastHeartbeatTime: now,
	}}}})
	f.check(err)
	_, err = f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(0), types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	f.check(err)
}

func TestM02ConditionDrainsNodeUntilItEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "deadlock", 1)
	f.run(f.app("web", 2).Deployment())
	f.createPod(f.app("unmanaged", 1))
	f.setCondition("KernelDeadlock", corev1.ConditionFalse)
	was := f.marksOf(0)
	a := f.agent(0, shortPolls, "--condition=KernelDeadlock=drain,hold=1s,release=1s")
	f.setCondition("KernelDeadlock", corev1.ConditionTrue)
	f.awaitEvent(0, "Drained")
	n := f.awaitNode(0, "drained", hasCondition("Drained"))
	if !cordoned(n) || !claimedBy("KernelDeadlock")(n) {
		t.Errorf("without a cordon claim: %s", marks(n))
	}
	if stay := strings.Join(f.podsOnNode(), " "); stay != "unmanaged" {
		t.Errorf("pods on the node: %q, want only the pod without a controller", stay)
	}
	f.setCondition("KernelDeadlock", corev1.ConditionFalse)
	f.awaitRestored(0, was)
	f.awaitMetric(a, `slipway_agent_notices_ended_total{type="Condition"}`, atLeast(1))
	f.awaitEvent(0, "Uncordoned")
}

// TestM14HintOnlyPollsTheMetadataService covers hints that the detector raises without an event.
func TestM14HintOnlyPollsTheMetadataService(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "hint", 1)
	f.run(f.app("web", 2).Deployment())
	f.setCondition("RebootScheduled", corev1.ConditionFalse)
	history := f.record(0)
	a := f.agent(0, "--poll-interval=1m", noApproval)
	const read = `slipway_agent_polls_total{result="ok"}`
	f.setCondition("RebootScheduled", corev1.ConditionTrue)
	f.awaitMetric(a, read, atLeast(2)) // long before the minute ends
	e := f.announce(azure.Announcement{Type: azure.Reboot})
	f.setCondition("RebootScheduled", corev1.ConditionFalse)
	for _, n := range history.States() {
		if cordoned(n) || claimedBy("RebootScheduled")(n) {
			t.Errorf("a hint changed the node: %s", marks(n))
		}
	}
	f.setCondition("VMEventScheduled", corev1.ConditionTrue)
	f.awaitNode(0, "cordoned for the event", claimedBy(e.EventID))
}

// TestIdleAgentSendsThreeRequests limits the load on the API server, because every node has an agent.
func TestIdleAgentSendsThreeRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "idle", 1)
	a := f.agent(0, append(f.drainSlotFlags(), "--condition=KernelDeadlock=drain")...)
	f.awaitPolls(a, 10)
	f.setCondition("KernelDeadlock", corev1.ConditionFalse) // the agent watches it
	f.awaitPolls(a, 10)
	events, err := f.ReadAuditLog(controlplane.AuditFilter{User: agentUser})
	f.check(err)
	count := map[string]int{}
	for _, e := range events {
		if e.ObjectRef != nil && e.ObjectRef.Resource == "leases" && e.ObjectRef.Namespace == f.ns {
			t.Errorf("%s %s: a request for drain slots without a drain", e.Verb, e.RequestURI)
		}
		if strings.Contains(e.RequestURI, f.node(0)) {
			count[e.Verb]++
		}
	}
	if count["watch"] != 1 || count["get"]+count["list"] != 2 || len(count) != 3 {
		t.Errorf("requests: %v", count)
	}
}
