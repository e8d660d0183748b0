package agent_test

import (
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestDryRunChangesAndApprovesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "dry-run", 1)
	f.run(f.app("web", 2).Deployment())
	was := f.marksOf(0)
	history := f.record(0)
	a := f.agent(0, shortPolls, "--dry-run")
	e := f.announce(azure.Announcement{Type: azure.Freeze, DurationSeconds: new(60), Notice: 5 * time.Second, Outage: time.Second})
	f.awaitMetric(a, `slipway_agent_notices_total{type="Freeze",action="drain"}`, atLeast(1))
	f.checkNotApproved(e)
	f.awaitEnd(e.EventID)
	f.awaitMetric(a, `slipway_agent_notices_ended_total{type="Freeze"}`, atLeast(1))
	for _, n := range history.States() {
		if is := marks(n); is != was {
			t.Errorf("the node became %s\nit was %s", is, was)
		}
	}
	if n := len(f.requests("create", "pods/eviction")); n != 0 {
		t.Errorf("%d evictions", n)
	}
	f.awaitPods(0, 2)
}

// TestI8NextAgentContinuesTheDrain covers each rollout of the DaemonSet.
func TestI8NextAgentContinuesTheDrain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "rollout", 1)
	slow := f.app("slow", 2)
	slow.StopSeconds = "10"
	f.run(slow.Deployment())
	was := f.marksOf(0)
	a := f.agent(0, shortPolls)
	e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 5 * time.Minute})
	f.awaitEvent(0, "Draining")
	f.check(syscall.Kill(a.PID(), syscall.SIGTERM))
	f.check(testbed.PollUntil(f.ctx, "the agent has ended", func() bool { return !a.IsAlive() }))
	if a.HasLogged("stopping: waiting for the running drain") {
		t.Error("the agent has waited for its drain")
	}
	if n := f.awaitNode(0, "there", func(*corev1.Node) bool { return true }); !claimedBy(e.EventID)(n) {
		t.Errorf("the cordon claim was removed: %s", marks(n))
	}
	f.check(a.RestartIfDead(f.ctx))
	f.checkApproved(f.awaitEnd(e.EventID))
	f.checkDrainedInTime(e.EventID, 2)
	f.awaitRestored(0, was)
}
