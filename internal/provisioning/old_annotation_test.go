package provisioning

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

func TestI3OldSinceAnnotationIsReplaced(t *testing.T) {
	mine, theirs := newIdleNode("mine", ""), newIdleNode("theirs", "")
	theirs.Labels = nil
	for _, n := range []*corev1.Node{mine, theirs} {
		n.Annotations = map[string]string{plan.OldSinceAnnotation: "2026-01-01T00:00:00Z"}
	}
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
	}, mine, theirs)
	f.reconcile()
	for name, marked := range map[string]bool{"mine": true, "theirs": false} {
		var n corev1.Node
		if err := f.client.Get(t.Context(), types.NamespacedName{Name: name}, &n); err != nil {
			t.Fatal(err)
		}
		_, hasOld := n.Annotations[plan.OldSinceAnnotation]
		if hasOld || (n.Annotations[plan.UnderutilizedSinceAnnotation] != "") != marked {
			t.Errorf("%s has the annotations %v", name, n.Annotations)
		}
	}
}
