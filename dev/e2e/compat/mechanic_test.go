package compat_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func isLabelled(n *corev1.Node) bool { return n.Labels["mechanic.cordoned"] == "true" }

// shipped is the configuration of mechanic's own manifests. It keeps the spelling that mechanic ignored.
const shipped = "vmEvents:\n  freeze: false\n  reboot: true\n  redeploy: false\n  preempt: true\n  terminate: true\n  liveMigration: true\n"

// TestMechanicOutputsMatchTool checks a Reboot, which the shipped configuration drains for (M1, M3), until the node
// returns (M2).
func TestMechanicOutputsMatchTool(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "mechanic")
	f.run(f.app("web", 2).Deployment())
	history, err := f.RecordNodeStates(f.ctx, f.node())
	f.check(err)
	defer history.StopRecording()
	f.mechanic(testbed.WriteTempFile(f.t, "mechanic.yaml", shipped))
	r := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 5 * time.Minute})
	for _, want := range []struct{ reason, message string }{
		{"CordonNode", "Node " + f.node() + " cordoned by mechanic"},
		{"DrainNode", "Node " + f.node() + " drained by mechanic"},
		{"UncordonNode", "Node " + f.node() + " uncordoned by mechanic"},
	} {
		if e := f.awaitEvent(want.reason); e.Type != "Normal" || e.Message != want.message || e.Source.Component != "mechanic" {
			t.Errorf("%s: %+v", want.reason, e)
		}
	}
	f.awaitEnd(r.EventID)
	f.awaitNode("restored, without the label", func(n *corev1.Node) bool { return isRestored(n) && !isLabelled(n) })
	if !slices.ContainsFunc(history.States(), func(n *corev1.Node) bool { return isLabelled(n) && isCordoned(n) }) {
		t.Error("the node never had the label mechanic.cordoned")
	}
	f.awaitPods(2)
}

// TestM04M15ChangedFileIsAppliedUnlessInvalid also ends the process by SIGTERM.
func TestM04M15ChangedFileIsAppliedUnlessInvalid(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "reload")
	path := testbed.WriteTempFile(f.t, "mechanic.yaml", "scheduledEvents:\n  redeploy: false\n")
	a := f.mechanic(path)
	f.check(os.WriteFile(path, []byte("scheduledEvents: {redeploy: perhaps}\n"), 0o600))
	f.check(testbed.PollUntil(f.ctx, "the invalid file is refused", func() bool {
		return a.HasLogged("the changed configuration is invalid; keeping the previous one")
	}))
	f.check(os.WriteFile(path, []byte("runtimeEnv: prod\n"), 0o600)) // a missing key has its default: drain
	f.check(testbed.PollUntil(f.ctx, "the agent has restarted", func() bool {
		n := 0
		for _, line := range a.ReadLog() {
			if line["msg"] == "guarding the node" {
				n++
			}
		}
		return n == 2
	}))
	f.run(f.app("web", 1).Deployment())
	r := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute})
	f.awaitNode("cordoned and labelled", func(n *corev1.Node) bool { return isLabelled(n) && isCordoned(n) })
	f.awaitEnd(r.EventID)
	f.awaitNode("restored", isRestored)
	f.check(syscall.Kill(a.PID(), syscall.SIGTERM))
	f.check(testbed.PollUntil(f.ctx, "the process has exited", func() bool { return !a.IsAlive() }))
}

// TestM22WarningsAreNotLoggedAsErrors drains pods that kubectl's library warned about: a DaemonSet pod, an emptyDir, and a
// pod without a controller. It also covers a warning of Slipway: a PDB that blocks a pod for a while.
func TestM22WarningsAreNotLoggedAsErrors(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m22")
	blocked, scratch := f.app("blocked", 1), f.app("scratch", 1)
	blocked.MinAvailable, scratch.EmptyDir = "1", true
	f.run(blocked.Deployment(), blocked.PodDisruptionBudget(), scratch.Deployment(), f.app("everywhere", 1).DaemonSet(), f.app("bare", 1).Pod())
	a := f.mechanic(testbed.WriteTempFile(f.t, "mechanic.yaml", ""))
	r := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Second})
	f.check(testbed.PollUntil(f.ctx, "the blocked drain is logged", func() bool { return a.HasLogged("drain is blocked") }))
	f.check(f.Client().PolicyV1().PodDisruptionBudgets(f.ns).Delete(f.ctx, blocked.Name, metav1.DeleteOptions{}))
	f.awaitEvent("DrainNode")
	warned := false
	for _, line := range a.ReadLog() {
		switch msg, _ := line["msg"].(string); {
		case line["level"] == "ERROR" && !strings.HasPrefix(msg, "reconcile failed, will retry"): // a busy host can cause this error
			t.Errorf("%v", line)
		case msg == "drain is blocked":
			warned = line["level"] == "WARN"
		}
	}
	if !warned {
		t.Error("the blocked drain is not logged as a warning")
	}
	f.awaitEnd(r.EventID)
}

// TestW18M23DryRunIsReportedAndChangesNothing also sets an endpoint and reads metrics, which the original tool lacked.
func TestW18M23DryRunIsReportedAndChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m23")
	f.run(f.app("web", 1).Deployment())
	a := f.mechanic(testbed.WriteTempFile(f.t, "mechanic.yaml", ""), "--dry-run")
	r := f.announce(azure.Announcement{Type: azure.Terminate, Notice: 20 * time.Second})
	f.awaitMetric(a, `slipway_agent_notices_total{type="Terminate",action="drain"}`, 1)
	f.check(testbed.PollUntil(f.ctx, "the cordon is logged", func() bool { return a.HasLogged("dry run: the cordon claim would be written") }))
	ended := f.awaitEnd(r.EventID)
	if n := len(f.requests("create", "pods/eviction")) + len(f.requests("delete", "pods")); n > 0 {
		t.Errorf("%d pods were evicted or deleted", n)
	}
	if n := len(ended.Approvals); n > 0 {
		t.Errorf("%d acknowledgements in a dry run", n)
	}
}

// TestW01ForeignCordonStaysAndGetsNoLabel drains a node that another user has cordoned. Only Slipway's own cordon sets
// mechanic's label. Mechanic also started with an invalid value in its file, and logged a warning.
func TestW01ForeignCordonStaysAndGetsNoLabel(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "found")
	f.run(f.app("web", 1).Deployment())
	f.cordon()
	history, err := f.RecordNodeStates(f.ctx, f.node())
	f.check(err)
	defer history.StopRecording()
	path := testbed.WriteTempFile(f.t, "mechanic.yaml", "scheduledEvents: {freeze: perhaps, reboot: true}\n")
	a := f.mechanic(path)
	if !slices.ContainsFunc(a.ReadLog(), func(line map[string]any) bool {
		return strings.Contains(fmt.Sprint(line["msg"]), "scheduledEvents.freeze")
	}) {
		t.Error("the ignored value is not logged")
	}
	r := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 5 * time.Minute, Outage: time.Second})
	f.awaitEvent("DrainNode")
	f.awaitEnd(r.EventID)
	f.awaitNode("without a claim", func(n *corev1.Node) bool { return n.Annotations["cordon.slipway.dev/azure-"+r.EventID] == "" })
	if slices.ContainsFunc(history.States(), isLabelled) {
		t.Error("the node had the label mechanic.cordoned, want none for a foreign cordon")
	}
	if n := f.getNode(); !isCordoned(n) {
		t.Error("the foreign cordon was removed")
	}
}
