package nodegroup

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestRemovedUnderutilizedRuleCancelsPendingRetirements(t *testing.T) {
	for name, c := range map[string]struct {
		down *v1alpha1.ScaleDown
		want []string
	}{
		"the rule exists":     {&v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}, []string{"admitted", "person", "waits"}},
		"the rule is removed": {&v1alpha1.ScaleDown{}, []string{"admitted", "person"}},
		"no rule is left":     {nil, []string{"admitted", "person"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup("ci")
			g.Name, g.UID = "ci", "group"
			g.Spec.Cloud.Provider = "sim"
			g.Spec.ScaleDown = c.down
			n := newNode("a", "ci")
			s := newFixture(t, g, &n)
			for _, rt := range []struct {
				name, by string
				admitted metav1.ConditionStatus
			}{{"waits", UnderutilizedRequester, "False"}, {"admitted", UnderutilizedRequester, "True"}, {"person", "me", "False"}} {
				o := &v1alpha1.NodeRetirement{
					ObjectMeta: metav1.ObjectMeta{Name: rt.name, UID: types.UID(rt.name)},
					Spec:       v1alpha1.NodeRetirementSpec{NodeName: "a", Group: "ci", Reason: v1alpha1.Underutilized, RequestedBy: rt.by},
				}
				must.NoError(t, s.Create(t.Context(), o))
				o.Status.Phase = v1alpha1.Pending
				o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.RetirementAdmitted, Status: rt.admitted, Reason: "x"}}
				must.NoError(t, s.Status().Update(t.Context(), o))
			}
			s.reconcile(s.newController(), "ci")
			var left []string
			for _, rt := range s.listRetirements() {
				left = append(left, rt.Name)
			}
			slices.Sort(left)
			if !slices.Equal(left, c.want) {
				t.Errorf("left are %v, want %v", left, c.want)
			}
		})
	}
}

func TestFutureScaleUpTimeDelaysNoRetirement(t *testing.T) {
	now := time.Date(2026, 11, 2, 8, 0, 0, 0, time.UTC)
	g := newGroup("ci")
	g.Spec.Cooldowns.AfterScaleUp = &metav1.Duration{Duration: time.Minute}
	future := metav1.NewTime(now.Add(24 * time.Hour))
	g.Status.LastScaleUp = &future
	n := newNode("a", "ci")
	n.CreationTimestamp = future
	failed := v1alpha1.NodeRetirement{Spec: v1alpha1.NodeRetirementSpec{NodeName: "a"}}
	failed.Status.Phase, failed.Status.Times.Finished = v1alpha1.Aborted, &future
	w := GroupSnapshot{Group: g, Now: now, Nodes: []Node{{Object: &n, QuietFor: -1, Retirements: []v1alpha1.NodeRetirement{failed}}}}
	if last := w.lastScaleUp(); last.After(now) {
		t.Errorf("the group last got a node %s from now", last.Sub(now))
	}
	if until := w.FailureCooldownEnd(&w.Nodes[0]); until.After(now) {
		t.Errorf("after a failure in the future the node is kept for %s", until.Sub(now))
	}
}
