package agent_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

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
		Type: corev1.NodeConditionType(kind), Status: status, Reason: "Test", Message: "says the test",
		LastTransitionTime: now, LastHeartbeatTime: now,
	}}}})
	f.check(err)
	_, err = f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(0), types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	f.check(err)
}

func TestM02AConditionDrainsTheNodeAndItsEndGivesItBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "deadlock", 1)
	f.run(f.app("web", 2).Deployment())
	f.bare(f.app("bare", 1))
	f.setCondition("KernelDeadlock", corev1.ConditionFalse)
	was := f.marksOf(0)
	a := f.agent(0, brisk, "--condition=KernelDeadlock=drain,hold=1s,release=1s")
	f.setCondition("KernelDeadlock", corev1.ConditionTrue)
	f.awaitEvent(0, "Drained")
	n := f.awaitNode(0, "drained", func(n *corev1.Node) bool { return condition(n, "Drained") != nil })
	if !cordoned(n) || !heldBy("KernelDeadlock")(n) {
		t.Errorf("the node is not held: %s", marks(n))
	}
	if stay := strings.Join(f.onNode(), " "); stay != "bare" {
		t.Errorf("there are %q, want the pod that nobody would replace", stay)
	}
	f.setCondition("KernelDeadlock", corev1.ConditionFalse)
	f.awaitAsItWas(0, was)
	f.awaitMetric(a, `slipway_agent_notices_ended_total{type="Condition"}`, atLeast(1))
	f.awaitEvent(0, "Uncordoned")
}

func TestI8NextAgentRestoresNodeAfterAnEndedCondition(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "recovered", 1)
	f.setCondition("KernelDeadlock", corev1.ConditionFalse)
	was := f.marksOf(0)
	a := f.agent(0, brisk, "--condition=KernelDeadlock=drain,hold=0s,release=1s")
	f.setCondition("KernelDeadlock", corev1.ConditionTrue)
	f.awaitNode(0, "drained", func(n *corev1.Node) bool { return condition(n, "Drained") != nil })
	f.check(a.KillIfAlive())
	f.setCondition("KernelDeadlock", corev1.ConditionFalse)
	f.check(a.RestartIfDead(f.ctx))
	f.awaitAsItWas(0, was)
}

func TestI2NoBudgetIsBypassedForACondition(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "unhurried", 1)
	f.blocked(time.Second)
	f.setCondition("KubeletProblem", corev1.ConditionFalse)
	was := f.marksOf(0)
	f.agent(0, brisk, "--condition=KubeletProblem=drain,hold=0s,release=0s", "--condition-drain-timeout=10s")
	f.setCondition("KubeletProblem", corev1.ConditionTrue)
	f.awaitEvent(0, "DrainBlocked")
	f.awaitEvent(0, "DrainFailed")
	if n := len(f.requests("delete", "pods")); n != 0 {
		t.Errorf("%d deletions for a condition", n)
	}
	f.awaitPods(0, 1)
	f.setCondition("KubeletProblem", corev1.ConditionFalse)
	f.awaitAsItWas(0, was)
}

// TestM14AHintHasTheMetadataServiceAskedAndDoesNothingElse checks that a hint only triggers a query. The detector
// raises some hints without an event.
func TestM14AHintHasTheMetadataServiceAskedAndDoesNothingElse(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "hint", 1)
	f.run(f.app("web", 2).Deployment())
	f.setCondition("RebootScheduled", corev1.ConditionFalse)
	history := f.record(0)
	a := f.agent(0, "--poll-interval=1m", patient)
	const read = `slipway_agent_polls_total{result="ok"}`
	f.setCondition("RebootScheduled", corev1.ConditionTrue)
	f.awaitMetric(a, read, atLeast(2)) // long before the minute ends
	e := f.announce(azure.Announcement{Type: azure.Reboot})
	f.setCondition("RebootScheduled", corev1.ConditionFalse)
	for _, n := range history.States() {
		if cordoned(n) || heldBy("RebootScheduled")(n) {
			t.Errorf("a hint was acted on: %s", marks(n))
		}
	}
	f.setCondition("VMEventScheduled", corev1.ConditionTrue)
	f.awaitNode(0, "held by the event that the hint was for", heldBy(e.EventID))
}

func TestAHintCordonsWhileTheMetadataServiceIsAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "unconfirmed", 1)
	f.run(f.app("web", 2).Deployment())
	f.setCondition("PreemptionScheduled", corev1.ConditionFalse)
	was := f.marksOf(0)
	f.agent(0, brisk, "--unconfirmed-after=10s")
	f.check(f.Azure.InjectFaults(azure.Fault{
		Kind: azure.FaultStatus, Status: http.StatusInternalServerError, ScaleSet: f.pool.ScaleSetName(), Times: 80,
	}))
	f.setCondition("PreemptionScheduled", corev1.ConditionTrue)
	n := f.awaitNode(0, "held", heldBy("PreemptionScheduled"))
	if !cordoned(n) {
		t.Errorf("it is not cordoned: %s", marks(n))
	}
	f.awaitPods(0, 2)
	f.awaitEvent(0, "Uncordoned") // the service answers again and has no event
	f.setCondition("PreemptionScheduled", corev1.ConditionFalse)
	f.awaitAsItWas(0, was)
}

func TestOnlyPodsThatMindAreMovedWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "marked", 1)
	tcp := f.app("tcp", 1)
	tcp.Labels = map[string]string{"slipway.dev/evict-on": "live-migration.freeze"}
	azures := f.app("azures", 1)
	azures.Labels = map[string]string{"remediator.kubernetes.azure.com/onFreeze": "true"}
	other := f.app("other", 1)
	other.Labels = map[string]string{"slipway.dev/evict-on": "reboot"}
	f.run(f.app("web", 2).Deployment(), tcp.Deployment(), azures.Deployment(), other.Deployment())
	was := f.marksOf(0)
	f.agent(0, brisk, "--on-freeze=drain-marked")
	e := f.announce(azure.Announcement{Type: azure.Freeze, DurationSeconds: new(5), Outage: time.Hour})
	f.awaitNotice(e.EventID, "started", func(r azure.EventRecord) bool { return r.Status == azure.Started })
	if stay := strings.Join(f.onNode(), " "); stay != "other web web" {
		t.Errorf("when it begins, there are %q", stay)
	}
	f.check(f.Azure.FinishEvent(f.ctx, e.EventID))
	if over := f.awaitOver(e.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("started %s, want it acknowledged", over.StartedBy)
	}
	f.awaitAsItWas(0, was)
}

func TestAShortFreezeMayBeginAtOnceForAllItsMachines(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "brief", 2)
	f.run(f.on(0, "web").Deployment(), f.on(1, "db").Deployment())
	was := []string{f.marksOf(0), f.marksOf(1)}
	histories := []func() []*corev1.Node{f.record(0).States, f.record(1).States}
	f.agent(0, brisk, "--acknowledge-freeze-under=9s")
	e := f.announce(azure.Announcement{
		Type: azure.Freeze, Resources: f.resources(0, 1), DurationSeconds: new(5), Outage: time.Second,
	})
	f.awaitNode(0, "ready for it", heldBy(e.EventID))
	if r := f.awaitNotice(e.EventID, "there", func(azure.EventRecord) bool { return true }); len(r.Approvals) != 0 {
		t.Errorf("acknowledged for a machine that says nothing: %v", r.Approvals)
	}
	f.agent(1, brisk, "--acknowledge-freeze-under=9s")
	if over := f.awaitOver(e.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("started %s, want it acknowledged", over.StartedBy)
	}
	for i, states := range histories {
		f.awaitAsItWas(i, was[i])
		if slices.ContainsFunc(states(), cordoned) {
			t.Errorf("machine %d was cordoned", i)
		}
	}
}

// TestAnIdleAgentFollowsItsNodeAndAsksTwiceBesides limits the requests of an idle agent. Every node of the cluster
// makes them.
func TestAnIdleAgentFollowsItsNodeAndAsksTwiceBesides(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "idle", 1)
	a := f.agent(0, append(f.oneAtATime(), "--condition=KernelDeadlock=drain")...)
	f.awaitPolls(a, 10)
	f.setCondition("KernelDeadlock", corev1.ConditionFalse) // the agent watches it
	f.awaitPolls(a, 10)
	events, err := f.ReadAuditLog(controlplane.AuditFilter{User: agentUser})
	f.check(err)
	count := map[string]int{}
	for _, e := range events {
		if e.ObjectRef != nil && e.ObjectRef.Resource == "leases" && e.ObjectRef.Namespace == f.ns {
			t.Errorf("%s %s: it has nothing to drain", e.Verb, e.RequestURI)
		}
		if strings.Contains(e.RequestURI, f.node(0)) {
			count[e.Verb]++
		}
	}
	if count["watch"] != 1 || count["get"]+count["list"] != 2 || len(count) != 3 {
		t.Errorf("requests: %v", count)
	}
}
