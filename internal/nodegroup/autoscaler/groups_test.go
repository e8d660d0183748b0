package autoscaler

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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

func TestNodesOfAnotherKindTeachTheOnlyOneNothing(t *testing.T) {
	for name, c := range map[string]struct {
		says  string
		learn bool
	}{
		"the cloud says that it is another": {"m2", false},
		"the cloud says that it is the one": {"M4", true},
		"the cloud does not say":            {"", true},
	} {
		t.Run(name, func(t *testing.T) {
			small := idle("small", "")
			small.Labels["disk"] = "ssd"
			small.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("2")
			f := newFixture(t, nil, small)
			f.pool.made(cloud.Instance{ProviderID: "id-small", Name: "small", Type: c.says, State: cloud.Running})
			bound := waitingPodOf("apps", "a")
			bound.Spec.NodeSelector = map[string]string{"disk": "ssd"} // which the group's nodes have in common
			f.waitFor(bound)
			f.looks(2)
			if got := f.pool.ordered(); (len(got) == 1) == c.learn {
				t.Errorf("orders are %v for a pod that a node of 2 cores does not take, learned is %+v", got, f.memory["web"].learned)
			}
		})
	}
}
