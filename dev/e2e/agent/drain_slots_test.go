package agent_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// drainSlotFlags returns the flags of agents that drain one at a time. Their Leases are in the test's own namespace,
// because other tests also use drain slots.
func (f *fixture) drainSlotFlags() []string {
	f.t.Helper()
	f.check(f.CopyRoleAndBinding(f.ctx, testbed.AgentNamespace, testbed.AgentAccount, f.ns))
	return []string{shortPolls, "--max-concurrent-drains=1", "--namespace=" + f.ns}
}

// draining reports whether the label of the node's agent says draining.
func draining(n *corev1.Node) bool {
	for key, value := range n.Labels {
		if strings.HasPrefix(key, "notice.slipway.dev/") && value == "draining" {
			return true
		}
	}
	return false
}

// holder returns the holder of the only drain slot.
func (f *fixture) holder() string {
	f.t.Helper()
	l, err := f.Client().CoordinationV1().Leases(f.ns).Get(f.ctx, "slipway-drain-0", metav1.GetOptions{})
	f.check(err)
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func TestDeadAgentsDrainSlotIsTakenOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "drain-slots", 3)
	flags := f.drainSlotFlags()
	endless := f.on(0, "endless")
	endless.StopSeconds, endless.GracePeriod = "600", 10*time.Minute
	f.run(endless.Deployment(), f.on(1, "web").Deployment(), f.on(2, "spot").Deployment())
	var agents []*testbed.Agent
	for i := range 3 {
		agents = append(agents, f.agent(i, append(flags, noApproval)...))
	}
	f.announce(azure.Announcement{Type: azure.Reboot, Notice: time.Hour})
	f.awaitNode(0, "being drained", draining)
	if holder := f.holder(); holder != f.node(0) {
		t.Fatalf("the holder of the drain slot is %q", holder)
	}
	f.announce(azure.Announcement{Type: azure.Reboot, Resources: f.resources(1), Notice: time.Hour})
	f.awaitEvent(1, "WaitingForDrainSlot")
	f.awaitMetric(agents[1], "slipway_agent_notices_waiting_for_drain_slot", atLeast(1))
	if n := f.awaitNode(1, "cordoned", cordoned); draining(n) {
		t.Errorf("drained without a drain slot: %s", marks(n))
	}

	preempt := f.announce(azure.Announcement{Type: azure.Preempt, Resources: f.resources(2), Notice: 30 * time.Second})
	f.awaitEvent(2, "Drained")
	f.awaitEnd(preempt.EventID)
	f.checkDrainedInTime(preempt.EventID, 1)

	began := time.Now()
	f.check(agents[0].KillIfAlive())
	f.awaitEvent(1, "Drained")
	if took := time.Since(began); took < 15*time.Second {
		t.Errorf("taken over after %s, before the Lease had expired", took)
	}
}
