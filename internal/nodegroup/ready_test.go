package nodegroup

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func TestReadySummarizesOtherConditions(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	accepted := condition(v1alpha1.GroupAccepted, metav1.ConditionTrue, "Accepted", "m")
	reachable := condition(v1alpha1.GroupCloudReachable, metav1.ConditionTrue, "Reachable", "")
	for name, tc := range map[string]struct {
		conditions []metav1.Condition
		status     metav1.ConditionStatus
		reason     string
	}{
		"all are True": {[]metav1.Condition{accepted, reachable}, metav1.ConditionTrue, "Ready"},
		"spec is refused": {
			[]metav1.Condition{condition(v1alpha1.GroupAccepted, metav1.ConditionFalse, "InvalidSpec", "m"), reachable},
			metav1.ConditionFalse, "InvalidSpec",
		},
		"cloud was not read yet": {
			[]metav1.Condition{
				condition(v1alpha1.GroupAccepted, metav1.ConditionUnknown, "CloudUnreadable", "m"),
				condition(v1alpha1.GroupCloudReachable, metav1.ConditionUnknown, "CloudUnreadable", ""),
			},
			metav1.ConditionUnknown, "CloudUnreadable",
		},
		"cloud fails": {
			[]metav1.Condition{accepted, condition(v1alpha1.GroupCloudReachable, metav1.ConditionFalse, "Failed", "")},
			metav1.ConditionFalse, "Failed",
		},
		"False counts before Unknown": {
			[]metav1.Condition{
				condition(v1alpha1.GroupAccepted, metav1.ConditionUnknown, "CloudUnreadable", "m"),
				condition(v1alpha1.GroupCloudReachable, metav1.ConditionFalse, "Failed", ""),
			},
			metav1.ConditionFalse, "Failed",
		},
		"scale-up is stopped": {
			[]metav1.Condition{accepted, reachable, condition(v1alpha1.GroupScaleUpAllowed, metav1.ConditionFalse, "NodeNotSelected", "m")},
			metav1.ConditionFalse, "NodeNotSelected",
		},
	} {
		got := newReadyCondition(tc.conditions, 7)
		if got.Status != tc.status || got.Reason != tc.reason || got.Message == "" || got.ObservedGeneration != 7 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
