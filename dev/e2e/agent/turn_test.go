package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// oneAtATime returns the flags of agents that drain one at a time. Their Leases are in the test's own namespace,
// because other tests also use drain slots.
func (f *fixture) oneAtATime() []string {
	f.t.Helper()
	f.check(f.CopyRoleAndBinding(f.ctx, testbed.AgentNamespace, testbed.AgentAccount, f.ns))
	return []string{brisk, "--max-concurrent-drains=1", "--namespace=" + f.ns}
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

func TestADeadHoldersTurnPassesOnAndAPreemptWaitsForNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "succession", 3)
	flags := f.oneAtATime()
	endless := f.on(0, "endless")
	endless.StopSeconds, endless.GracePeriod = "600", 10*time.Minute
	f.run(endless.Deployment(), f.on(1, "web").Deployment(), f.on(2, "spot").Deployment())
	var agents []*testbed.Agent
	for i := range 3 {
		agents = append(agents, f.agent(i, append(flags, patient)...))
	}
	f.announce(azure.Announcement{Type: azure.Reboot, Notice: time.Hour})
	f.awaitNode(0, "being drained", draining)
	if holder := f.holder(); holder != f.node(0) {
		t.Fatalf("the slot is held by %q", holder)
	}
	f.announce(azure.Announcement{Type: azure.Reboot, Resources: f.resources(1), Notice: time.Hour})
	f.awaitEvent(1, "WaitingForDrainSlot")
	f.awaitMetric(agents[1], "slipway_agent_notices_waiting_for_drain_slot", atLeast(1))
	if n := f.awaitNode(1, "cordoned", cordoned); draining(n) {
		t.Errorf("it is being drained out of turn: %s", marks(n))
	}

	preempt := f.announce(azure.Announcement{Type: azure.Preempt, Resources: f.resources(2), Notice: 30 * time.Second})
	f.awaitEvent(2, "Drained")
	f.awaitOver(preempt.EventID)
	f.drainedInTime(preempt.EventID, 1)

	began := time.Now()
	f.check(agents[0].KillIfAlive())
	f.awaitEvent(1, "Drained")
	if took := time.Since(began); took < 15*time.Second {
		t.Errorf("taken over after %s, while the holder might have come back", took)
	}
}

func (f *fixture) removeTaint(key string) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the taint could be removed", func() bool {
		n, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.node(0), metav1.GetOptions{})
		if err != nil {
			return false
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
		_, err = f.Client().CoreV1().Nodes().Update(f.ctx, n, metav1.UpdateOptions{})
		return err == nil
	}))
}

// remediator is the taint of AKS's own node auto-drain.
var remediator = corev1.Taint{Key: "remediator.kubernetes.azure.com/unschedulable", Effect: corev1.TaintEffectNoSchedule}

func TestI6WhatCanWaitIsLeftToTheToolThatIsAtWorkOnTheNode(t *testing.T) {
	t.Parallel()
	for name, taint := range map[string]corev1.Taint{
		"remediator": remediator,
		"autoscaler": {Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule},
		"karpenter":  {Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "left-"+name, 1)
			f.run(f.app("web", 2).Deployment())
			was := f.marksOf(0)
			f.addTaint(taint)
			history := f.record(0)
			// With this flag, no watch follows the node before a notice. The agent must still read the node in time.
			a := f.agent(0, brisk, "--on-unconfirmed=ignore")
			e := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: time.Hour})
			f.awaitEvent(0, "OtherToolActive")
			f.awaitMetric(a, "slipway_agent_notices_left_to_other_tools", atLeast(1))
			f.awaitPolls(a, 3)
			for _, n := range history.States() {
				if cordoned(n) || heldBy(e.EventID)(n) {
					t.Errorf("the other tool's node was taken: %s", marks(n))
				}
			}
			f.awaitPods(0, 2)
			f.removeTaint(taint.Key)
			if over := f.awaitOver(e.EventID); over.StartedBy != azure.ByApproval {
				t.Errorf("started %s, want it acknowledged once the node was ours", over.StartedBy)
			}
			f.awaitAsItWas(0, was)
		})
	}
}

func TestI6APreemptSavesThePodsAndLeavesTheCordonToTheToolThatIsAtWork(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "both", 1)
	f.run(f.app("web", 2).Deployment())
	f.addTaint(remediator)
	history := f.record(0)
	f.agent(0, brisk, "--taint-effect=NoSchedule")
	e := f.announce(azure.Announcement{Type: azure.Preempt, Notice: 30 * time.Second})
	f.awaitEvent(0, "OtherToolActive")
	f.awaitOver(e.EventID)
	f.drainedInTime(e.EventID, 2)
	for _, n := range history.States() {
		ours := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "slipway.dev/notice" })
		if cordoned(n) || ours {
			t.Fatalf("the node was cordoned on top: %s", marks(n))
		}
	}
}
