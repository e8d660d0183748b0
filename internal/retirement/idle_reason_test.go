package retirement

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// newIdleGroup returns a group of two nodes that CI pods keep.
func newIdleGroup(t *testing.T) *sim {
	s := newGroupOfTwo(t)
	s.groups[0].Spec.ScaleDown = &v1alpha1.ScaleDown{IdleByLabel: &v1alpha1.IdleByLabel{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"ci": "true"}}, Namespaces: []string{"ns"},
	}}
	s.groups[0].Spec.Drain.PlaceholderPods = &metav1.LabelSelector{MatchLabels: map[string]string{"placeholder": "true"}}
	return s
}

func setRunnerLabels(p *simPod) { p.Labels = map[string]string{"ci": "true"} }

func TestIdleRetirementIsRefusedIfPodKeepsNode(t *testing.T) {
	for name, tt := range map[string]struct {
		pod    func(*simPod)
		reason v1alpha1.Reason
		want   v1alpha1.Phase
	}{
		"a pod of the kind":            {setRunnerLabels, v1alpha1.Idle, v1alpha1.Refused},
		"a finished one":               {func(p *simPod) { setRunnerLabels(p); p.Status.Phase = "Succeeded" }, v1alpha1.Idle, v1alpha1.Succeeded},
		"one of another namespace":     {func(p *simPod) { setRunnerLabels(p); p.Namespace = "web" }, v1alpha1.Idle, v1alpha1.Succeeded},
		"a placeholder of the kind":    {func(p *simPod) { setRunnerLabels(p); p.Labels["placeholder"] = "true" }, v1alpha1.Idle, v1alpha1.Succeeded},
		"when another client wants it": {setRunnerLabels, v1alpha1.Requested, v1alpha1.Succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newIdleGroup(t)
				s.addPod("a", "job", tt.pod)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: tt.reason})
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
				if rt.Status.Phase != tt.want {
					t.Fatalf("%s: %s, want %s", rt.Status.Phase, rt.Status.Message, tt.want)
				}
				if tt.want == v1alpha1.Refused {
					if rt.Status.Reasons[0].Code != KeepingPod {
						t.Errorf("%+v", rt.Status.Reasons)
					}
					s.checkNodeRestored(t, "a")
				}
			})
		})
	}
}

func TestI1PodArrivingDuringIdleDrainKeepsNode(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newIdleGroup(t)
		s.addPod("a", "web", func(p *simPod) { p.stopsAfter = time.Minute })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
		time.AfterFunc(20*time.Second, func() { s.addPod("a", "job", setRunnerLabels) })
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || rt.Status.Reasons[0].Code != KeepingPod {
			t.Fatalf("%s: %+v", rt.Status.Phase, rt.Status.Reasons)
		}
		s.checkNodeRestored(t, "a")
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pods["uid-job"] == nil {
			t.Error("the pod was evicted")
		}
	})
}

func TestOverlappingNewerGroupOwnsNoNodes(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		younger := newGroup()
		younger.Name = "all"
		younger.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.OverlapsGroup, Message: "overlaps ci",
		}}
		s.groups = append(s.groups, younger)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		s.createRetirement(t, "s", v1alpha1.NodeRetirementSpec{NodeName: "b", Group: "all"})
		c := s.newController(t)
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || rt.Status.Captured.Group != "ci" {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		if rt := s.reconcileUntilDone(ctx, c, "s", time.Hour); rt.Status.Phase != v1alpha1.Refused {
			t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
	})
}
