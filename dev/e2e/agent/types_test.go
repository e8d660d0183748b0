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

// onNode returns the name prefixes of the test's pods on the first instance.
func (f *fixture) onNode() []string {
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

// everyKind runs one pod of each kind that a type of notice can treat differently. It returns their number.
func (f *fixture) everyKind() int {
	f.t.Helper()
	scratch := f.app("scratch", 1)
	scratch.EmptyDir = true
	kept := f.app("kept", 1)
	kept.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"}
	f.run(f.app("web", 1).Deployment(), scratch.Deployment(), kept.Deployment())
	f.bare(f.app("bare", 1))
	return 4
}

const liveMigration = "Virtual machine is going to be paused because of a memory-preserving Live Migration operation."

func TestEachTypeMovesWhatTheInterruptionWouldCost(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		e    azure.Announcement
		// stay lists the pods that are still on the node when the event begins.
		stay string
	}{
		{"freeze-short", azure.Announcement{Type: azure.Freeze, DurationSeconds: new(5)}, "bare kept scratch web"},
		{"freeze-none", azure.Announcement{Type: azure.Freeze, DurationSeconds: new(0)}, "bare kept scratch web"},
		{"freeze-long", azure.Announcement{Type: azure.Freeze, DurationSeconds: new(60)}, "bare kept scratch"},
		{"freeze-unknown", azure.Announcement{Type: azure.Freeze, DurationSeconds: new(-1)}, "bare kept scratch web"},
		{"live-migration", azure.Announcement{
			Type: azure.Freeze, DurationSeconds: new(60), Description: new(liveMigration),
		}, "bare kept scratch web"},
		{"reboot", azure.Announcement{Type: azure.Reboot}, "bare"},
		{"redeploy", azure.Announcement{Type: azure.Redeploy}, ""},
		{"user-reboot", azure.Announcement{Type: azure.Reboot, Source: azure.User}, "bare"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "type-"+tc.name, 1)
			pods := f.everyKind()
			was := f.marksOf(0)
			history := f.record(0)
			a := f.agent(0, brisk)
			drained := tc.stay != "bare kept scratch web"
			// The event lasts until the test has checked the node. Afterwards the pods return, as if they had stayed.
			tc.e.Notice, tc.e.Outage = 15*time.Second, time.Hour
			if drained {
				tc.e.Notice = 5 * time.Minute // the event begins when the agent approves it
			}
			e := f.announce(tc.e)
			f.awaitNotice(e.EventID, "started", func(r azure.EventRecord) bool { return r.Status == azure.Started })
			if stay := strings.Join(f.onNode(), " "); stay != tc.stay {
				t.Errorf("when it begins, there are %q, want %q", stay, tc.stay)
			}
			f.check(f.Azure.FinishEvent(f.ctx, e.EventID))
			over := f.awaitOver(e.EventID)
			f.awaitAsItWas(0, was)

			wasCordoned := slices.ContainsFunc(history.States(), cordoned)
			if want := drained || tc.name == "freeze-unknown"; wasCordoned != want {
				t.Errorf("cordoned: %v, want %v", wasCordoned, want)
			}
			if early := over.StartedBy == azure.ByApproval; early != drained {
				t.Errorf("started %s, drained: %v", over.StartedBy, drained)
			}
			if !strings.Contains(tc.stay, "bare") {
				pods-- // it has no replacement
			}
			f.awaitPods(0, pods)
			if tc.e.Type == azure.Freeze { // in other events, the agent ended with its instance, and its counters restarted
				f.awaitMetric(a, `slipway_agent_notices_ended_total{type="Freeze"}`, atLeast(1))
			}
		})
	}
}

func TestAMachineThatIsTakenAwayLosesNothingAndIsNotUncordoned(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]azure.EventType{"preempt": azure.Preempt, "terminate": azure.Terminate} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "gone-"+name, 1)
			pods := f.everyKind()
			f.agent(0, brisk)
			e := f.announce(azure.Announcement{Type: kind, Notice: 5 * time.Minute})
			over := f.awaitOver(e.EventID)
			f.drainedInTime(e.EventID, pods)
			if over.StartedBy != azure.ByApproval {
				t.Errorf("started %s, want it acknowledged", over.StartedBy)
			}
			n := f.awaitNode(0, "there", func(*corev1.Node) bool { return true })
			if !cordoned(n) || !heldBy(e.EventID)(n) {
				t.Errorf("the node of a machine that is gone was restored: %s", marks(n))
			}
		})
	}
}

func TestAnEventThatBeginsStartedIsHandled(t *testing.T) {
	t.Parallel()
	t.Run("the machine is down at once", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "hardware", 1)
		was := f.marksOf(0)
		f.agent(0, brisk)
		e := f.announce(azure.Announcement{Type: azure.Redeploy, Status: azure.Started, Outage: 2 * time.Second})
		if over := f.awaitOver(e.EventID); len(over.Approvals) != 0 {
			t.Errorf("what had started was approved: %v", over.Approvals)
		}
		f.awaitAsItWas(0, was)
	})
	t.Run("the machine lives on", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "pause", 1)
		f.run(f.app("web", 2).Deployment())
		was := f.marksOf(0)
		history := f.record(0)
		f.agent(0, brisk)
		e := f.announce(azure.Announcement{
			Type: azure.Freeze, Status: azure.Started, DurationSeconds: new(60), Outage: time.Hour,
		})
		f.awaitEvent(0, "Drained")
		n := f.awaitNode(0, "drained", func(n *corev1.Node) bool { return condition(n, "Drained") != nil })
		if condition(n, "MaintenanceInProgress") == nil || condition(n, "MaintenancePlanned") != nil {
			t.Errorf("while it is under way: %s", marks(n))
		}
		f.check(f.Azure.FinishEvent(f.ctx, e.EventID))
		f.awaitAsItWas(0, was)
		f.awaitPods(0, 2)
		if !slices.ContainsFunc(history.States(), cordoned) {
			t.Error("the node was never cordoned")
		}
	})
}

func TestAnEventCancelledWhileDrainingStopsTheDrain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "cancelled", 1)
	web := f.app("web", 4)
	web.MaxUnavailable = "1" // while its replacement is unschedulable, the PDB allows no second eviction
	f.run(web.Deployment(), web.PodDisruptionBudget())
	was := f.marksOf(0)
	a := f.agent(0, brisk)
	e := f.announce(azure.Announcement{Type: azure.Reboot})
	f.awaitEvent(0, "DrainBlocked")
	f.awaitPods(0, 3)
	f.check(f.Azure.CancelEvent(e.EventID))
	f.awaitAsItWas(0, was)
	given := time.Now()
	f.awaitPods(0, 4)
	f.awaitPolls(a, 10)
	for _, r := range append(f.requests("create", "pods/eviction"), f.requests("delete", "pods")...) {
		if r.RequestReceivedTimestamp.After(given) {
			t.Errorf("after the node was restored: %s %s", r.Verb, r.RequestURI)
		}
	}
	if n := len(f.requests("delete", "pods")); n != 0 {
		t.Errorf("%d deletions for an event that was cancelled", n)
	}
}

// blocked runs a pod with a PDB that allows no eviction. Only the deadline decides when the pod ends.
func (f *fixture) blocked(grace time.Duration) {
	f.t.Helper()
	stubborn := f.app("stubborn", 1)
	stubborn.MinAvailable, stubborn.GracePeriod = "1", grace
	f.run(stubborn.Deployment(), stubborn.PodDisruptionBudget())
}

func TestAnEventMovedSoonerHastensTheDrain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "sooner", 1)
	// The agent deletes the pod when its grace and the margin are left. The pod stops in a second. The rest is for a
	// busy host.
	const grace = 2 * time.Minute
	f.blocked(grace)
	was := f.marksOf(0)
	f.agent(0, brisk)
	e := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 10 * time.Minute})
	f.awaitEvent(0, "DrainBlocked")
	if n := len(f.requests("delete", "pods")); n != 0 {
		t.Errorf("%d deletions ten minutes ahead", n)
	}
	f.check(f.Azure.RescheduleEvent(e.EventID, time.Now().Add(grace+14*time.Second)))
	f.awaitEvent(0, "NoticeChanged")
	f.awaitOver(e.EventID)
	f.drainedInTime(e.EventID, 1)
	f.awaitAsItWas(0, was)
}
