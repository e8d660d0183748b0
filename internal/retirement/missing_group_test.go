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

// withoutGroups is a manager that is not told of any NodeGroup, as one is whose file of NodeGroups is another.
type withoutGroups struct{}

func (withoutGroups) List(context.Context) ([]v1alpha1.NodeGroup, error) { return nil, nil }

// TestI1ARetirementWhoseGroupIsNotSeenWaits begins a retirement by one manager, and has another take it up which does not
// see the group: neither at the beginning of the drain nor between the Node's deletion and the machine's may it go by
// defaults.
func TestI1ARetirementWhoseGroupIsNotSeenWaits(t *testing.T) {
	for name, tt := range map[string]struct {
		last  string // the last request of the first manager
		phase v1alpha1.Phase
	}{
		"when it is captured":       {"update status of *v1alpha1.NodeRetirement", v1alpha1.Pending},
		"when it is cordoned":       {"patch node", v1alpha1.Pending},
		"when the Node is deleted":  {"delete node", v1alpha1.Drained},
		"when the machine is going": {"cloud delete", v1alpha1.NodeDeleted},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.groups[0].Spec.ScaleDown = &v1alpha1.ScaleDown{IdleByLabel: &v1alpha1.IdleByLabel{
					PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"job": "ci"}},
				}}
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle, Group: "ci"})
				var dead atomic.Bool
				s.atEach(func(moment, request string) error {
					if moment == "after" && request == tt.last {
						dead.Store(true)
					}
					if dead.Load() {
						return errKilled
					}
					return nil
				})
				life, die := context.WithCancel(ctx)
				for first := s.controller(t); !dead.Load() && !s.over("r"); time.Sleep(time.Millisecond) {
					s.turn(life, first, "r")
				}
				die()
				synctest.Wait()
				s.atEach(func(string, string) error { return nil })
				s.addPod("a", "job", func(p *simPod) { p.Labels = map[string]string{"job": "ci"} })
				blind := s.controller(t)
				blind.o.Groups = withoutGroups{}
				touched := s.touched["sim://a"]
				rt := s.settled(ctx, blind, "r", 3*time.Hour)
				if rt.Status.Phase != tt.phase || len(rt.Status.Reasons) != 1 || rt.Status.Reasons[0].Code != GroupNotFound {
					t.Fatalf("%s %+v, want it to wait in %s for its NodeGroup", rt.Status.Phase, rt.Status.Reasons, tt.phase)
				}
				if !strings.Contains(rt.Status.Message, "NodeGroup ci") {
					t.Errorf("the group is not named: %s", rt.Status.Message)
				}
				if len(s.podsOn("a")) != 1 || s.touched["sim://a"] != touched {
					t.Errorf("pods %v, machine touched: %t", s.podsOn("a"), s.touched["sim://a"])
				}
				s.removePod("uid-job")
				if rt = s.settled(ctx, s.controller(t), "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded {
					t.Errorf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				s.hasLeft(t, "a")
			})
		})
	}
}

func TestARetirementWhoseGroupIsNotSeenCanBeCalledOff(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		s.addPod("a", "web", func(p *simPod) { p.denied = true })
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.controller(t)
		s.settled(ctx, c, "r", time.Minute)
		s.groups = nil
		if rt := s.settled(ctx, c, "r", 3*time.Hour); rt.Status.Phase != v1alpha1.Draining || c.drains.underWay("r") {
			t.Fatalf("%s: %s, its drain goes on: %t", rt.Status.Phase, rt.Status.Message, c.drains.underWay("r"))
		}
		if err := s.records.Delete(ctx, s.record("r")); err != nil {
			t.Fatal(err)
		}
		if rt := s.settled(ctx, c, "r", time.Hour); rt != nil {
			t.Errorf("still there: %s", rt.Status.Message)
		}
		s.isAsItWas(t, "a")
	})
}
