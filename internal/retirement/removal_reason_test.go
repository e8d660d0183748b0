package retirement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestRemovalReasonNamesWhoTakesNodeOut(t *testing.T) {
	const claim = `{"owner":"azure-E1","since":"2026-03-01T12:00:00Z"`
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "1", Annotations: map[string]string{}}}
		change(n)
		return n
	}
	unchanged := node(func(*corev1.Node) {})
	of := func(name, uid string, phase v1alpha1.Phase) []v1alpha1.NodeRetirement {
		rt := v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Status: v1alpha1.NodeRetirementStatus{Phase: phase}}
		rt.Spec.NodeName, rt.Spec.NodeUID = name, "1"
		if uid != "" {
			rt.Spec.NodeUID = "2"
		}
		return []v1alpha1.NodeRetirement{rt}
	}
	for name, c := range map[string]struct {
		node        *corev1.Node
		retirements []v1alpha1.NodeRetirement
		want        string
	}{
		"ordinary":              {unchanged, nil, ""},
		"cordoned by a person":  {node(func(n *corev1.Node) { n.Spec.Unschedulable = true }), nil, ""},
		"unobserved retirement": {unchanged, of("n", "", ""), "is being retired by NodeRetirement r"},
		"pending retirement":    {unchanged, of("n", "", v1alpha1.Pending), "is being retired by NodeRetirement r"},
		"aborted retirement":    {unchanged, of("n", "", v1alpha1.Aborted), ""},
		"of another node":       {unchanged, of("o", "", v1alpha1.Draining), ""},
		"of an earlier node":    {unchanged, of("n", "2", v1alpha1.InstanceDeleted), ""},
		"of an earlier captured node": {unchanged, []v1alpha1.NodeRetirement{{
			Spec: v1alpha1.NodeRetirementSpec{NodeName: "n"}, Status: v1alpha1.NodeRetirementStatus{Captured: &v1alpha1.Captured{NodeUID: "2"}},
		}}, ""},
		"deleted": {node(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} }), nil, "is being deleted"},
		"taint of another tool": {node(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: "NoSchedule"}}
		}), nil, "is being removed by Karpenter (taint karpenter.sh/disrupted:NoSchedule)"},
		"cordoned for a notice": {node(func(n *corev1.Node) { n.Annotations["cordon.slipway.dev/azure-E1"] = claim + `,"cordon":"found"}` }), nil, "is cordoned by Slipway: azure-E1"},
		"tainted for a notice": {node(func(n *corev1.Node) {
			n.Annotations["cordon.slipway.dev/azure-E1"] = claim + `,"taints":[{"key":"k","effect":"NoExecute"}]}`
		}), nil, "is cordoned by Slipway: azure-E1"},
		"notice without effect":  {node(func(n *corev1.Node) { n.Annotations["cordon.slipway.dev/azure-E1"] = claim + `}` }), nil, ""},
		"claim that is not JSON": {node(func(n *corev1.Node) { n.Annotations["cordon.slipway.dev/azure-E1"] = "x" }), nil, ""},
	} {
		check.Is(t, c.want, FindRemovalReason(c.node, c.retirements), name)
	}
}
