package agent_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestADryRunChangesNothingAndApprovesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "rehearsal", 1)
	f.run(f.app("web", 2).Deployment())
	was := f.marksOf(0)
	history := f.record(0)
	a := f.agent(0, brisk, "--dry-run")
	e := f.announce(azure.Announcement{Type: azure.Freeze, DurationSeconds: new(60), Notice: 15 * time.Second, Outage: time.Second})
	f.awaitMetric(a, `slipway_agent_notices_total{type="Freeze",action="drain"}`, atLeast(1))
	f.neverApproved(e)
	f.awaitOver(e.EventID)
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

func TestAnotherToolAtWorkOnTheNodeIsSaid(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "others", 1)
	f.agent(0, brisk, patient)
	e := f.announce(azure.Announcement{Type: azure.Reboot})
	f.awaitEvent(0, "Drained")
	f.addTaint(corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule})
	if said := f.awaitEvent(0, "OtherToolActive"); said.Type != corev1.EventTypeWarning {
		t.Errorf("it is said as %s", said.Type)
	}
	f.check(f.Azure.CancelEvent(e.EventID))
	n := f.awaitNode(0, "free", func(n *corev1.Node) bool { return len(ours(n)) == 0 })
	if !slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == "ToBeDeletedByClusterAutoscaler" }) {
		t.Errorf("the other's taint is gone: %v", n.Spec.Taints)
	}
}

// addTaint taints the node as another controller does: it reads, adds, writes, and retries on a conflict.
func (f *fixture) addTaint(taint corev1.Taint) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the node could be tainted", func() bool {
		n, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.node(0), metav1.GetOptions{})
		if err != nil {
			return false
		}
		n.Spec.Taints = append(n.Spec.Taints, taint)
		_, err = f.Client().CoreV1().Nodes().Update(f.ctx, n, metav1.UpdateOptions{})
		return err == nil
	}))
}

// TestI8AnAgentThatIsToldToStopLeavesTheRestToTheNext covers each rollout of the DaemonSet.
func TestI8AnAgentThatIsToldToStopLeavesTheRestToTheNext(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "rollout", 1)
	slow := f.app("slow", 2)
	slow.StopSeconds = "10"
	f.run(slow.Deployment())
	was := f.marksOf(0)
	a := f.agent(0, brisk)
	e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 5 * time.Minute})
	f.awaitEvent(0, "Draining")
	f.check(syscall.Kill(a.PID(), syscall.SIGTERM))
	f.check(testbed.PollUntil(f.ctx, "the agent has ended", func() bool { return !a.IsAlive() }))
	if a.HasLogged("stopping: waiting for the running drain") {
		t.Error("it has waited for its drain")
	}
	if n := f.awaitNode(0, "there", func(*corev1.Node) bool { return true }); !heldBy(e.EventID)(n) {
		t.Errorf("the node was released: %s", marks(n))
	}
	f.check(a.RestartIfDead(f.ctx))
	if over := f.awaitOver(e.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("started %s, want it acknowledged", over.StartedBy)
	}
	f.drainedInTime(e.EventID, 2)
	f.awaitAsItWas(0, was)
}

// TestI3ANodeThatIsRegisteredAnewIsHeldAnew checks a new Node during a notice. The record ended with the old Node, and
// the notice did not.
func TestI3ANodeThatIsRegisteredAnewIsHeldAnew(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "reborn", 1)
	pod, err := f.CreateAgentPod(f.ctx, f.node(0)) // a token that is bound to the Node ends with it
	f.check(err)
	kubeconfig, err := f.ServiceAccountKubeconfig(f.ctx, testbed.AgentNamespace, testbed.AgentAccount,
		controlplane.TokenOptions{Pod: pod})
	f.check(err)
	f.agent(0, brisk, patient, "--kubeconfig", kubeconfig)
	e := f.announce(azure.Announcement{Type: azure.Reboot})
	f.awaitEvent(0, "Drained")
	old := f.awaitNode(0, "held", heldBy(e.EventID)).UID
	f.check(f.Client().CoreV1().Nodes().Delete(f.ctx, f.node(0), metav1.DeleteOptions{}))
	f.check(f.create(f.node(0)))
	f.awaitNode(0, "held anew", func(n *corev1.Node) bool { return n.UID != old && heldBy(e.EventID)(n) && cordoned(n) })
	f.check(f.Azure.CancelEvent(e.EventID))
	f.awaitNode(0, "free", func(n *corev1.Node) bool { return len(ours(n)) == 0 })
}

// create registers a node as a kubelet on a known instance does. AddNodes waits until the node takes pods.
func (f *fixture) create(name string) error {
	_, err := f.Client().CoreV1().Nodes().Create(f.ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.NodeSpec{ProviderID: f.pool.ProviderID(0)},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("registering %s anew: %w", name, err)
	}
	return nil
}
