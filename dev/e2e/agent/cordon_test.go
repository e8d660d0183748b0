package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// setUnschedulable cordons or uncordons a node, as a person does.
func (f *fixture) setUnschedulable(i int, to bool) {
	f.t.Helper()
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, to)
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(i), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	f.check(err)
}

// claimedBy reports whether the node carries the cordon claim of an event.
func claimedBy(id string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool {
		for key, value := range n.Annotations {
			if strings.HasPrefix(key, "cordon.slipway.dev/") && strings.Contains(value, id) {
				return true
			}
		}
		return false
	}
}

func not(is func(*corev1.Node) bool) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return !is(n) }
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

func TestI3ExistingCordonStays(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "cordoned-before", 1)
	f.run(f.app("web", 2).Deployment())
	f.setUnschedulable(0, true)
	settled := func(n *corev1.Node) bool {
		return cordoned(n) && slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Key == corev1.TaintNodeUnschedulable
		})
	}
	was := marks(f.awaitNode(0, "cordoned", settled))
	history := f.record(0)
	a := f.agent(0, shortPolls, noApproval, "--taint-effect=NoSchedule")
	e := f.announce(azure.Announcement{Type: azure.Reboot})
	f.awaitNode(0, "claimed", claimedBy(e.EventID))
	f.awaitEvent(0, "AlreadyCordoned")
	f.awaitPods(0, 0) // a cordoned node is not drained
	f.awaitEvent(0, "Drained")
	if n, ok := a.ReadMetric(f.ctx, `slipway_agent_cordons_total{type="Reboot"}`); n != 0 || !ok {
		t.Errorf("an existing cordon is counted: %v (there: %v)", n, ok)
	}
	f.check(f.Azure.CancelEvent(e.EventID))
	f.awaitEvent(0, "LeftCordoned")
	if is := marks(f.awaitNode(0, "without the claim", not(claimedBy(e.EventID)))); is != was {
		t.Errorf("node is  %s\nit was %s", is, was)
	}
	if slices.ContainsFunc(history.States(), func(n *corev1.Node) bool { return !cordoned(n) }) {
		t.Error("the node was uncordoned meanwhile")
	}
}

// TestI3ForeignChangesAreReportedAndUndone uncordons the node and adds another tool's taint during a notice.
func TestI3ForeignChangesAreReportedAndUndone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "foreign-changes", 1)
	f.agent(0, shortPolls, noApproval)
	e := f.announce(azure.Announcement{Type: azure.Reboot})
	f.awaitEvent(0, "Drained")
	history := f.record(0)
	f.setUnschedulable(0, false)
	f.awaitEvent(0, "Recordoned")
	f.awaitNode(0, "cordoned again", cordoned)
	if !slices.ContainsFunc(history.States(), func(n *corev1.Node) bool { return !cordoned(n) }) {
		t.Error("the node was never seen uncordoned")
	}
	f.addTaint(autoscalerTaint)
	if reported := f.awaitEvent(0, "OtherToolActive"); reported.Type != corev1.EventTypeWarning {
		t.Errorf("the Event has type %s", reported.Type)
	}
	f.check(f.Azure.CancelEvent(e.EventID))
	n := f.awaitNode(0, "restored", func(n *corev1.Node) bool { return len(slipwayKeys(n)) == 0 })
	if !slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == autoscalerTaint.Key }) {
		t.Errorf("the other tool's taint was removed: %v", n.Spec.Taints)
	}
}

var autoscalerTaint = corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}

func TestI6RedeployWaitsForTheOtherTool(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "other-tool", 1)
	f.run(f.app("web", 2).Deployment())
	was := f.marksOf(0)
	// AKS's own node auto-drain sets this taint.
	taint := corev1.Taint{Key: "remediator.kubernetes.azure.com/unschedulable", Effect: corev1.TaintEffectNoSchedule}
	f.addTaint(taint)
	history := f.record(0)
	// With this flag, no watch follows the node before a notice. The agent must still read the node in time.
	a := f.agent(0, shortPolls, "--on-unconfirmed=ignore")
	e := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: time.Hour})
	f.awaitEvent(0, "OtherToolActive")
	f.awaitMetric(a, "slipway_agent_notices_left_to_other_tools", atLeast(1))
	f.awaitPolls(a, 3)
	for _, n := range history.States() {
		if cordoned(n) || claimedBy(e.EventID)(n) {
			t.Errorf("the other tool's node was changed: %s", marks(n))
		}
	}
	f.awaitPods(0, 2)
	f.removeTaint(taint.Key)
	f.checkApproved(f.awaitEnd(e.EventID))
	f.awaitRestored(0, was)
}
