package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// agentUser is the agents' name in the audit log.
const agentUser = "system:serviceaccount:" + testbed.AgentNamespace + ":" + testbed.AgentAccount

// requests returns the agents' requests with one verb and resource for the test's own pods.
func (f *fixture) requests(verb, resource string) []auditv1.Event {
	f.t.Helper()
	events, err := f.ReadAuditLog(controlplane.AuditFilter{
		User: agentUser, Verb: verb, Resource: resource, Namespace: f.ns,
	})
	f.check(err)
	return events
}

// podsOnNode returns the name prefixes of the test's pods on the first instance.
func (f *fixture) podsOnNode() []string {
	f.t.Helper()
	list, err := f.Client().CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + f.node(0)})
	f.check(err)
	var names []string
	for _, p := range list.Items {
		name, _, _ := strings.Cut(p.Name, "-")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// runEachPodKind runs one pod of each kind that a type of notice can treat differently. It returns their number.
func (f *fixture) runEachPodKind() int {
	f.t.Helper()
	scratch := f.app("scratch", 1)
	scratch.EmptyDir = true
	protected := f.app("protected", 1)
	protected.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"}
	f.run(f.app("web", 1).Deployment(), scratch.Deployment(), protected.Deployment())
	f.createPod(f.app("unmanaged", 1))
	return 4
}

func TestNoticeTypeDecidesWhichPodsAreEvicted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		e    azure.Announcement
		// stay lists the pods that are still on the node when the event begins.
		stay string
	}{
		{"freeze-short", azure.Announcement{Type: azure.Freeze, DurationSeconds: new(5)}, "protected scratch unmanaged web"},
		{"freeze-long", azure.Announcement{Type: azure.Freeze, DurationSeconds: new(60)}, "protected scratch unmanaged"},
		{"reboot", azure.Announcement{Type: azure.Reboot}, "unmanaged"},
		{"redeploy", azure.Announcement{Type: azure.Redeploy}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "type-"+tc.name, 1)
			pods := f.runEachPodKind()
			was := f.marksOf(0)
			history := f.record(0)
			a := f.agent(0, shortPolls)
			drained := tc.stay != "protected scratch unmanaged web"
			// The event lasts until the test has checked the node. Afterwards the pods return, as if they had stayed.
			tc.e.Notice, tc.e.Outage = 15*time.Second, time.Hour
			if drained {
				tc.e.Notice = 5 * time.Minute // the event begins when the agent approves it
			}
			e := f.announce(tc.e)
			f.awaitNotice(e.EventID, "started", func(r azure.EventRecord) bool { return r.Status == azure.Started })
			if stay := strings.Join(f.podsOnNode(), " "); stay != tc.stay {
				t.Errorf("pods at the start of the event: %q, want %q", stay, tc.stay)
			}
			f.check(f.Azure.FinishEvent(f.ctx, e.EventID))
			over := f.awaitEnd(e.EventID)
			f.awaitRestored(0, was)

			wasCordoned := slices.ContainsFunc(history.States(), cordoned)
			if wasCordoned != drained {
				t.Errorf("cordoned: %v, want %v", wasCordoned, drained)
			}
			if early := over.StartedBy == azure.ByApproval; early != drained {
				t.Errorf("started %s, drained: %v", over.StartedBy, drained)
			}
			if !strings.Contains(tc.stay, "unmanaged") {
				pods-- // it has no replacement
			}
			f.awaitPods(0, pods)
			if tc.e.Type == azure.Freeze { // in other events, the agent ended with its instance, and its counters restarted
				f.awaitMetric(a, `slipway_agent_notices_ended_total{type="Freeze"}`, atLeast(1))
			}
		})
	}
}

func TestPreemptedNodeIsDrainedAndStaysCordoned(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "preempt", 1)
	pods := f.runEachPodKind()
	f.agent(0, shortPolls)
	e := f.announce(azure.Announcement{Type: azure.Preempt, Notice: 5 * time.Minute})
	f.checkApproved(f.awaitEnd(e.EventID))
	f.checkDrainedInTime(e.EventID, pods)
	n := f.awaitNode(0, "there", func(*corev1.Node) bool { return true })
	if !cordoned(n) || !claimedBy(e.EventID)(n) {
		t.Errorf("the node of a deleted instance was restored: %s", marks(n))
	}
}

func TestStartedEventDrainsNodeWithoutApproval(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "started", 1)
	f.run(f.app("web", 2).Deployment())
	was := f.marksOf(0)
	history := f.record(0)
	f.agent(0, shortPolls)
	e := f.announce(azure.Announcement{
		Type: azure.Freeze, Status: azure.Started, DurationSeconds: new(60), Outage: time.Hour,
	})
	f.awaitEvent(0, "Drained")
	n := f.awaitNode(0, "drained", hasCondition("Drained"))
	if condition(n, "MaintenanceInProgress") == nil || condition(n, "MaintenancePlanned") != nil {
		t.Errorf("during the event: %s", marks(n))
	}
	f.check(f.Azure.FinishEvent(f.ctx, e.EventID))
	if end := f.awaitEnd(e.EventID); len(end.Approvals) != 0 {
		t.Errorf("a started event was approved: %v", end.Approvals)
	}
	f.awaitRestored(0, was)
	f.awaitPods(0, 2)
	if !slices.ContainsFunc(history.States(), cordoned) {
		t.Error("the node was never cordoned")
	}
}

// runBlockedPod runs a pod with a PDB that allows no eviction. Only the deadline decides when the pod ends.
func (f *fixture) runBlockedPod(grace time.Duration) {
	f.t.Helper()
	app := f.app("blocked", 1)
	app.MinAvailable, app.GracePeriod = "1", grace
	f.run(app.Deployment(), app.PodDisruptionBudget())
}
