package retirement

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// noGroups is a manager without any NodeGroup, such as one with another file of NodeGroups.
type noGroups struct{}

func (noGroups) List(context.Context) ([]v1alpha1.NodeGroup, error) { return nil, nil }

// TestI1RetirementWaitsForMissingGroup continues a retirement with a manager that does not know the group, at each
// stage. The retirement must not use defaults: not at the start of the drain, and not between the deletion of Node and
// instance.
func TestI1RetirementWaitsForMissingGroup(t *testing.T) {
	for name, tt := range map[string]struct {
		last  string // the last request of the first manager
		phase v1alpha1.Phase
	}{
		"when it is captured":                 {"update status of *v1alpha1.NodeRetirement", v1alpha1.Pending},
		"when it is cordoned":                 {"patch node", v1alpha1.Pending},
		"when the Node is deleted":            {"delete node", v1alpha1.Drained},
		"while the instance is being deleted": {"cloud delete", v1alpha1.NodeDeleted},
	} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.groups[0].Spec.ScaleDown = &v1alpha1.ScaleDown{IdleByLabel: &v1alpha1.IdleByLabel{
					PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"job": "ci"}},
				}}
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle, Group: "ci"})
				var dead atomic.Bool
				s.interceptRequests(func(moment, request string) error {
					if moment == "after" && request == tt.last {
						dead.Store(true)
					}
					if dead.Load() {
						return errKilled
					}
					return nil
				})
				processCtx, killProcess := context.WithCancel(ctx)
				for first := s.newController(t); !dead.Load() && !s.isFinished("r"); time.Sleep(time.Millisecond) {
					s.reconcileOnce(processCtx, first, "r")
				}
				killProcess()
				synctest.Wait()
				s.interceptRequests(func(string, string) error { return nil })
				s.addPod("a", "job", func(p *simPod) { p.Labels = map[string]string{"job": "ci"} })
				blind := s.newController(t)
				blind.options.Groups = noGroups{}
				touched := s.deletionRequested["sim://a"]
				rt := s.reconcileUntilDone(ctx, blind, "r", 3*time.Hour)
				if rt.Status.Phase != tt.phase || len(rt.Status.Reasons) != 1 || rt.Status.Reasons[0].Code != GroupNotFound {
					t.Fatalf("%s %+v, want it to wait in %s for its NodeGroup", rt.Status.Phase, rt.Status.Reasons, tt.phase)
				}
				if !strings.Contains(rt.Status.Message, "NodeGroup ci") {
					t.Errorf("the group is not named: %s", rt.Status.Message)
				}
				if len(s.listPodsOn("a")) != 1 || s.deletionRequested["sim://a"] != touched {
					t.Errorf("pods %v, instance deleted: %t", s.listPodsOn("a"), s.deletionRequested["sim://a"])
				}
				s.removePod("uid-job")
				if rt = s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.checkRetired(t, "a")
			})
		})
	}
}

func TestRetirementWithMissingGroupCanBeCancelled(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
		s.addPod("a", "web", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.groups = nil
		if rt := s.reconcileUntilDone(ctx, c, "r", 3*time.Hour); rt.Status.Phase != v1alpha1.Draining || c.drains.isRunning("r") {
			t.Fatalf("%s: %s, its drain goes on: %t", rt.Status.Phase, rt.Status.Message, c.drains.isRunning("r"))
		}
		if err := s.retirements.Delete(ctx, s.getRetirement("r")); err != nil {
			t.Fatal(err)
		}
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt != nil {
			t.Errorf("still there: %s", rt.Status.Message)
		}
		s.checkNodeRestored(t, "a")
	})
}
