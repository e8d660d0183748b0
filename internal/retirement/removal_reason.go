package retirement

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// MarkIfBeingRemoved returns a copy of the node with [drainability.BeingRemovedMark] if the node is being taken out of
// service, so that no plan offers it or moves pods to it. Otherwise it returns the node itself.
func MarkIfBeingRemoved(n *corev1.Node, all []v1alpha1.NodeRetirement) *corev1.Node {
	reason := FindRemovalReason(n, all)
	if reason == "" {
		return n
	}
	n = n.DeepCopy()
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, drainability.BeingRemovedMark, reason)
	return n
}

// FindRemovalReason returns why a node is already being taken out of service, as a predicate such as "is being deleted".
// It returns "" if it is not. The causes are the deletion of the Node, an unfinished NodeRetirement, another tool, and a
// cordon by Slipway. A NodeRetirement of an earlier Node of the same name does not count.
func FindRemovalReason(n *corev1.Node, all []v1alpha1.NodeRetirement) string {
	if n.DeletionTimestamp != nil {
		return "is being deleted"
	}
	for i := range all {
		rt := &all[i]
		ofNode := rt.Spec.NodeName == n.Name && MayTargetNode(rt, n.UID)
		if ofNode && !rt.Status.Phase.IsFinal() {
			return "is being retired by NodeRetirement " + rt.Name
		}
	}
	if others := fromcorev1.NodeFacts(n).RemovedBy; len(others) > 0 {
		return "is being removed by " + strings.Join(others, ", ")
	}
	claims, _ := cordon.ListRecords(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: n.Annotations}})
	for _, c := range claims {
		if c.Cordon != "" || len(c.Taints) > 0 {
			return "is cordoned by Slipway: " + cmp.Or(c.Reason, c.Owner)
		}
	}
	return ""
}
