package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// createForeignRetirement creates a Draining retirement of a machine's node, as another client does.
func (s *sim) createForeignRetirement(i int, node string) {
	s.t.Helper()
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: "others-" + node},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: node, ProviderID: "openstack:///" + newUUID(i)},
	}
	if err := s.objects.Create(s.t.Context(), rt); err != nil {
		s.t.Fatal(err)
	}
	s.updateRetirementStatus(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Draining })
}

func TestI5ForeignRetirementCountsTowardsSmallerSize(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		s.createForeignRetirement(2, "n2")
		d, err := a.PlanShrinkTo(t.Context(), 3)
		if err != nil || d.Active != 3 || len(d.Victims) > 0 {
			t.Errorf("the plan is %+v, %v; want no more victims", d, err)
		}
		submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, a.CheckCanShrink)
		if err != nil {
			t.Fatal(err)
		}
		s.advance(10 * time.Second)
		if n := len(s.listRetirements()); n != 1 {
			t.Errorf("%d retirements; want only the foreign one", n)
		}
		s.completeRetirements()
		s.advance(10 * time.Second)
		s.completeRetirements()
		result, err := submitted.WaitForOutcome(t.Context())
		if err != nil || result.Outcome.Result != Done || result.Outcome.Removed != 2 || s.pool.size != 2 || len(s.listRetirements()) != 2 {
			t.Errorf("%+v, %v; %d retirements and a desired size of %d, want 2 and 2", result.Outcome, err, len(s.listRetirements()), s.pool.size)
		}
		if asked := s.pool.changeRequests(); len(asked) > 0 {
			t.Errorf("the pool's server was asked for %q; want no change of its size", asked)
		}
	})
}

func TestTerminationFollowsExistingRetirement(t *testing.T) {
	for name, nodeGone := range map[string]bool{"node is draining": false, "node is gone": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.startReplica("a")
				s.createForeignRetirement(2, "n2")
				if nodeGone {
					if err := s.kube.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
					s.advance(time.Second)
				}
				submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: Terminate, MachineID: newUUID(2), Decrement: true}, a.CheckCanRemoveMachine)
				if err != nil {
					t.Fatal(err)
				}
				s.advance(10 * time.Second)
				if nodeGone {
					s.createNode("n2", 0) // completeRetirements deletes it
				}
				s.completeRetirements()
				if result, err := submitted.WaitForOutcome(t.Context()); err != nil || result.Outcome.Result != Done || result.Outcome.Removed != 1 || len(s.listRetirements()) != 1 {
					t.Errorf("%+v, %v, %d retirements", result, err, len(s.listRetirements()))
				}
			})
		})
	}
}

func TestForeignRetirementIsNotCancelled(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		s.createForeignRetirement(2, "n2")
		s.updateRetirementStatus("others-n2", func(rt *v1alpha1.NodeRetirement) {
			rt.Status.Phase = v1alpha1.Pending
			rt.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.RetirementBlocked, Status: metav1.ConditionTrue, Reason: "GroupBudget", Message: "not now", LastTransitionTime: metav1.Now(),
			}}
		})
		result, err := submitAndWait(t, a, Update{Kind: Terminate, MachineID: newUUID(2)}, 10*time.Minute)
		if err != nil || result.Outcome.Result != NotPossible || !strings.Contains(result.Outcome.Detail, "others-n2, which this update did not create, waits: not now") {
			t.Errorf("%+v, %v", result, err)
		}
		if n := len(s.listRetirements()); n != 1 {
			t.Errorf("%d retirements, want 1", n)
		}
	})
}
