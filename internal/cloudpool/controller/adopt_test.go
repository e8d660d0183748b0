package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// retire begins the retirement of a machine's node, as somebody else does.
func (s *sim) retire(i int, node string) {
	s.t.Helper()
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: "others-" + node},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: node, ProviderID: "openstack:///" + uuid(i)},
	}
	if err := s.objects.Create(s.t.Context(), rt); err != nil {
		s.t.Fatal(err)
	}
	s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Draining })
}

func TestI5AMachineThatSomebodyElseRetiresCountsAsOneThatLeaves(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a := s.replica("a")
		s.retire(2, "n2")
		d, err := a.Decide(t.Context(), 3)
		if err != nil || d.Active != 3 || len(d.Victims) > 0 {
			t.Errorf("the plan is %+v, %v; want nobody else to go", d, err)
		}
		ticket, err := a.Submit(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, a.JudgeSize)
		if err != nil {
			t.Fatal(err)
		}
		s.passes(10 * time.Second)
		if n := len(s.retirements()); n != 1 {
			t.Errorf("%d retirements are under way; want one at a time, and that of somebody else be one", n)
		}
		s.manage()
		s.passes(10 * time.Second)
		s.manage()
		over, err := ticket.Wait(t.Context())
		if err != nil || over.Outcome.Result != Done || over.Outcome.Removed != 2 || s.pool.size != 2 || len(s.retirements()) != 2 {
			t.Errorf("%+v, %v; %d retirements and a desired size of %d, want 2 and 2", over.Outcome, err, len(s.retirements()), s.pool.size)
		}
		if asked := s.pool.requests(); len(asked) > 0 {
			t.Errorf("the pool's server was asked for %q; want its size not to be raised again", asked)
		}
	})
}

func TestTheTerminationOfAMachineThatLeavesAlreadyIsFollowed(t *testing.T) {
	for name, nodeGone := range map[string]bool{"it is drained": false, "its node is gone": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.replica("a")
				s.retire(2, "n2")
				if nodeGone {
					if err := s.kube.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
					s.passes(time.Second)
				}
				ticket, err := a.Submit(t.Context(), Update{Kind: Terminate, MachineID: uuid(2), Decrement: true}, a.JudgeMachine)
				if err != nil {
					t.Fatal(err)
				}
				s.passes(10 * time.Second)
				if nodeGone {
					s.node("n2", 0) // what manage takes away
				}
				s.manage()
				if over, err := ticket.Wait(t.Context()); err != nil || over.Outcome.Result != Done || over.Outcome.Removed != 1 || len(s.retirements()) != 1 {
					t.Errorf("%+v, %v, %d retirements", over, err, len(s.retirements()))
				}
			})
		})
	}
}

func TestTheRetirementOfSomebodyElseIsNotCalledOff(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.replica("a")
		s.retire(2, "n2")
		s.retired("others-n2", func(rt *v1alpha1.NodeRetirement) {
			rt.Status.Phase = v1alpha1.Pending
			rt.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.RetirementBlocked, Status: metav1.ConditionTrue, Reason: "GroupBudget", Message: "not now", LastTransitionTime: metav1.Now(),
			}}
		})
		over, err := submit(t, a, Update{Kind: Terminate, MachineID: uuid(2)}, 10*time.Minute)
		if err != nil || over.Outcome.Result != NotPossible || !strings.Contains(over.Outcome.Detail, "others-n2, which is not of this update, waits: not now") {
			t.Errorf("%+v, %v", over, err)
		}
		if n := len(s.retirements()); n != 1 {
			t.Errorf("%d retirements, want 1", n)
		}
	})
}
