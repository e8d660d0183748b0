package autoscaler

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// secondGroup makes another group that gets machines.
func (f *fixture) secondGroup(name string, change func(*v1alpha1.NodeGroup)) {
	f.t.Helper()
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: "second", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour)),
	}}
	g.Spec = v1alpha1.NodeGroupSpec{
		Cloud: v1alpha1.CloudGroup{Provider: "pool", Group: name}, Maximum: new(int32(10)), ScaleUp: &v1alpha1.ScaleUp{},
	}
	g.Spec.NodeSelector.MatchLabels = map[string]string{"pool": name}
	g.Status.Conditions = []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason}}
	change(g)
	if err := f.client.Create(f.t.Context(), g); err != nil {
		f.t.Fatal(err)
	}
}

func TestI10AGroupWithASelectorThatCannotBeReadStopsNoOtherGroup(t *testing.T) {
	like := []metav1.LabelSelectorRequirement{{Key: "app", Operator: "in", Values: []string{"x"}}}
	for name, change := range map[string]func(*v1alpha1.NodeGroup){
		"of pods that keep nodes": func(g *v1alpha1.NodeGroup) {
			g.Spec.ScaleDown = &v1alpha1.ScaleDown{IdleByLabel: &v1alpha1.IdleByLabel{}}
			g.Spec.ScaleDown.IdleByLabel.PodSelector.MatchExpressions = like
		},
		"of placeholders": func(g *v1alpha1.NodeGroup) {
			g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underused: &v1alpha1.UnderusedNodes{}}
			g.Spec.Drain.PlaceholderPods = &metav1.LabelSelector{MatchExpressions: like}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.secondGroup("bad", change)
			f.wait("a")
			for range 3 {
				f.look()
			}
			if got := f.pool.ordered(); len(got) != 1 || got[0] != (cloud.Order{Count: 1, Template: "m4"}) {
				t.Errorf("orders are %v, want one for the other group", got)
			}
			if s := f.status(); s.OnTheWay != 1 {
				t.Errorf("status is %+v, want the machine", s)
			}
		})
	}
}
