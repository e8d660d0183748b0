package compat_test

import (
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}

func labelled(n *corev1.Node) bool { return n.Labels["mechanic.cordoned"] == "true" }

// shipped is the configuration of mechanic's own manifests. It keeps the spelling that mechanic ignored.
const shipped = "vmEvents:\n  freeze: false\n  reboot: true\n  redeploy: false\n  preempt: true\n  terminate: true\n  liveMigration: true\n"

// TestEveryOutputOfMechanicIsThere checks a Reboot, which the shipped configuration drains for (M1, M3), until the node
// returns (M2).
func TestEveryOutputOfMechanicIsThere(t *testing.T) {
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
	f.awaitOver(r.EventID)
	f.awaitNode("restored, without the label", func(n *corev1.Node) bool { return free(n) && !labelled(n) })
	if !slices.ContainsFunc(history.States(), func(n *corev1.Node) bool { return labelled(n) && cordoned(n) }) {
		t.Error("the node never had the label mechanic.cordoned")
	}
	f.awaitPods(2)
}

func TestM04AChangedFileCountsAndABrokenOneChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "reload")
	path := testbed.WriteTempFile(f.t, "mechanic.yaml", "scheduledEvents:\n  redeploy: false\n")
	a := f.mechanic(path)
	f.check(os.WriteFile(path, []byte("scheduledEvents: {redeploy: perhaps}\n"), 0o600))
	f.check(testbed.PollUntil(f.ctx, "the broken file is refused", func() bool {
		return a.HasLogged("the changed configuration is invalid; keeping the previous one")
	}))
	f.check(os.WriteFile(path, []byte("runtimeEnv: prod\n"), 0o600)) // a missing key has its default: drain
	f.check(testbed.PollUntil(f.ctx, "the agent has begun anew", func() bool {
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
	f.awaitNode("held", func(n *corev1.Node) bool { return labelled(n) && cordoned(n) })
	f.awaitOver(r.EventID)
	f.awaitNode("restored", free)
}
