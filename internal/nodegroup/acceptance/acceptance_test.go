package acceptance

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func TestAcceptanceFollowsTheCondition(t *testing.T) {
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	for _, tt := range []struct {
		status                                        metav1.ConditionStatus
		reason                                        string
		state                                         State
		owns, mayRetire, trusts, trustsOnceNodeIsGone bool
	}{
		{yes, v1alpha1.AcceptedReason, Accepted, true, true, true, true},
		{no, v1alpha1.CloudRightsMissing, RightsMissing, true, true, true, true},
		{no, v1alpha1.CloudRefused, CloudRefused, true, false, false, false},
		{no, v1alpha1.CloudGroupNotFound, Refused, true, false, false, true},
		{no, v1alpha1.UnknownCloud, Refused, true, false, false, true},
		{no, v1alpha1.InvalidSpec, Refused, false, false, false, true},
		{no, v1alpha1.SelectsControlPlane, Refused, false, false, false, true},
		{no, v1alpha1.OverlapsGroup, Refused, false, false, false, true},
		{unknown, "CloudUnreadable", CloudNotRead, true, false, false, true},
	} {
		g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Generation: 2}}
		g.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.GroupAccepted, Status: tt.status, Reason: tt.reason, Message: "why", ObservedGeneration: 2,
		}}
		a := FromGroup(g)
		if a.State != tt.state || a.OwnsNodes() != tt.owns || a.MayRetire() != tt.mayRetire || a.CanTrustNotFound(false) != tt.trusts ||
			a.CanTrustNotFound(true) != tt.trustsOnceNodeIsGone || !a.IsObserved() || (a.Message == "") != (tt.status == yes) {
			t.Errorf("%s: %+v", tt.reason, a)
		}
		if g.Generation = 3; FromGroup(g).IsObserved() {
			t.Errorf("%s: its status is of an earlier generation", tt.reason)
		}
	}
	if a := FromGroup(&v1alpha1.NodeGroup{}); a.State != NotObserved || a.IsObserved() || !a.OwnsNodes() || !a.MayRetire() || !a.CanTrustNotFound(false) {
		t.Errorf("no manager has observed it: %+v", a)
	}
}
