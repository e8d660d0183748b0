package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// TestPodsDoNotWaitForARetiringInstance has an instance within its join timeout with a Node that is not Ready.
func TestPodsDoNotWaitForARetiringInstance(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		launch int
	}{
		"it stays":                 {func(*corev1.Node) {}, 0},
		"a person has cordoned it": {func(n *corev1.Node) { n.Spec.Unschedulable = true }, 0},
		"its notice has cordoned it": {func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Annotations = map[string]string{"cordon.slipway.dev/azure-e": `{"owner":"azure-e","since":"2026-01-01T00:00:00Z"}`}
		}, 1},
		"it is being deleted": {func(n *corev1.Node) {
			n.DeletionTimestamp, n.Finalizers = &metav1.Time{Time: start}, []string{"example.com/wait"}
		}, 1},
		"another tool removes it": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		}, 1},
	} {
		for _, selected := range []bool{true, false} {
			of := newNodeGroup("web", 10)
			g := newGroup(of, newKind(of, "m4", "4", "16Gi"))
			n := newNode("web", "new", machineResources("4", "16Gi"), c.change)
			n.CreationTimestamp = metav1.NewTime(start.Add(-time.Minute))
			n.Status.Conditions[0].Status = corev1.ConditionFalse
			if !selected {
				n.Labels[groupLabel] = "none"
			}
			g.LaunchedInstances = []LaunchedInstance{{ProvisioningInstance: launch.ProvisioningInstance{ID: "new", Template: "m4"}, Node: n}}
			d := decideUp(t, newWorld(t, []Group{g}, []*corev1.Node{n}, newPendingPods(1, "3", "1Gi")))
			if got := launchCounts(d)["web/m4"]; got != c.launch {
				t.Errorf("%s, selected: %t: %d launched, want %d: %+v", name, selected, got, c.launch, d.Pods)
			}
		}
	}
}
