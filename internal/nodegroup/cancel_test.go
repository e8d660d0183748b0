package nodegroup

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestPendingPodCancelsADrain has a pod that was just created, and then an unschedulable pod.
func TestPendingPodCancelsADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newSizedNode("a", "ci", "8")
		n.ResourceVersion = ""
		c := newFixture(t, newGroup("ci"), &n)
		m := c.newController()
		c.reconcile(m, "ci")
		time.Sleep(11 * minute)
		c.reconcile(m, "ci")
		c.startDrain("a")

		made := newKeepingPod("a-job", "")
		made.Status.Phase = corev1.PodPending
		waits := newKeepingPod("b-job", "")
		waits.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		}}}
		for _, step := range []struct {
			pod     *corev1.Pod
			rescued bool
		}{{made, false}, {waits, true}} {
			must.NoError(t, c.Create(t.Context(), step.pod))
			c.reconcile(m, "ci")
			if rt := c.listRetirements()[0]; rt.DeletionTimestamp.IsZero() == step.rescued {
				t.Fatalf("with %s: the retirement is cancelled: %t", step.pod.Name, !step.rescued)
			}
		}
	})
}

// startDrain sets the retirement of a node to Draining, as package retirement does.
func (c *fixture) startDrain(node string) {
	c.t.Helper()
	for _, rt := range c.listRetirements() {
		if rt.Spec.NodeName != node {
			continue
		}
		rt.Finalizers = []string{retirement.Finalizer}
		must.NoError(c.t, c.Update(c.t.Context(), &rt))
		rt.Status.Phase = v1alpha1.Draining
		rt.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue, Reason: "Admitted", LastTransitionTime: metav1.Now(),
		}}
		must.NoError(c.t, c.Status().Update(c.t.Context(), &rt))
		return
	}
	c.t.Fatalf("no retirement of %s", node)
}
