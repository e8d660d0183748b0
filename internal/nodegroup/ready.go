package nodegroup

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// newReadyCondition summarizes the other conditions of a group. A condition that is False counts before one that is Unknown.
// Tools that follow kstatus, such as Flux, wait until it is True for the current generation:
// https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md
func newReadyCondition(conditions []metav1.Condition, generation int64) metav1.Condition {
	ready := metav1.Condition{
		Type: v1alpha1.GroupReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason, Message: "the group is managed",
		ObservedGeneration: generation,
	}
	for _, kind := range []string{v1alpha1.GroupScaleUpAllowed, v1alpha1.GroupCloudReachable, v1alpha1.GroupAccepted} {
		c := meta.FindStatusCondition(conditions, kind)
		if c == nil || c.Status == metav1.ConditionTrue || c.Status == metav1.ConditionUnknown && ready.Status == metav1.ConditionFalse {
			continue
		}
		ready.Status, ready.Reason = c.Status, c.Reason
		ready.Message = cmp.Or(c.Message, "the condition "+kind+" is "+string(c.Status))
	}
	return ready
}
