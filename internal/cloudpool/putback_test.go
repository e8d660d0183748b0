package cloudpool

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI8AnUpdateWhoseSlotWasGivenBackHasItAgain has the slot given back by what came before the update.
func TestI8AnUpdateWhoseSlotWasGivenBackHasItAgain(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket, err := a.Submit(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, a.judgeSize)
		if err != nil {
			t.Fatal(err)
		}
		a.slot.Want(false, time.Time{})
		s.passes(30 * time.Second)
		if n := len(s.retirements()); n != 1 {
			t.Fatalf("%d retirements, want 1: the update does not go on", n)
		}
		s.manage()
		if over, err := ticket.Wait(t.Context()); err != nil || over.Outcome.Result != Done {
			t.Errorf("%+v, %v", over, err)
		}
	})
}

// TestARetirementThatIsOverAndForgottenIsNotTakenForCalledOff has the record be gone before it was seen to have succeeded.
func TestARetirementThatIsOverAndForgottenIsNotTakenForCalledOff(t *testing.T) {
	for name, unread := range map[string]bool{"at once": false, "while the pool cannot be read": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.replica("a")
				ticket, err := a.Submit(t.Context(), Update{Kind: Terminate, MachineID: uuid(1)}, a.judgeMachine)
				if err != nil {
					t.Fatal(err)
				}
				s.passes(5 * time.Second)
				if unread {
					s.pool.fail("pool", errors.New("away"))
				}
				rt := s.retirements()[0]
				if err := errors.Join(s.kube.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}), s.objects.Delete(t.Context(), &rt)); err != nil {
					t.Fatal(err)
				}
				s.pool.end(uuid(1))
				s.passes(30 * time.Second)
				s.pool.fail("pool", nil)
				over, err := ticket.Wait(t.Context())
				if err != nil || over.Outcome.Result != Done || over.Outcome.Removed != 1 || s.pool.size != 3 {
					t.Errorf("%+v, %v, a desired size of %d; want it done, and the machine replaced", over, err, s.pool.size)
				}
			})
		})
	}
}

// TestARetirementThatDoesNotBeginIsNotWaitedForForEver has one that waits without being blocked, as for a notice.
func TestARetirementThatDoesNotBeginIsNotWaitedForForEver(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a := s.replica("a")
		s.retire(2, "n2")
		s.retired("others-n2", func(rt *v1alpha1.NodeRetirement) {
			rt.Status.Phase, rt.Status.Message = v1alpha1.Pending, "awaits its notice"
		})
		ticket, err := a.Submit(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, a.judgeSize)
		if err != nil {
			t.Fatal(err)
		}
		s.passes(4 * time.Minute)
		if nodes := s.retiring(); len(nodes) != 1 {
			t.Errorf("%v are retired before --admission-wait is over", nodes)
		}
		s.passes(2 * time.Minute)
		if nodes := s.retiring(); len(nodes) != 2 {
			t.Fatalf("%v are retired, want one more than n2", nodes)
		}
		is, err := a.Find(t.Context(), ticket.Update.ID)
		if err != nil || !strings.Contains(is.turn(uuid(2)).Why, "others-n2, which is not of this update, waits: awaits its notice") {
			t.Errorf("%+v, %v", is, err)
		}
	})
	simulate(t, 2, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket, err := a.Submit(t.Context(), Update{Kind: Terminate, MachineID: uuid(1)}, a.judgeMachine)
		if err != nil {
			t.Fatal(err)
		}
		s.passes(5 * time.Second)
		s.retired(s.retirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase, rt.Status.Message = v1alpha1.Pending, "waits" })
		s.passes(6 * time.Minute)
		if is, err := a.Find(t.Context(), ticket.Update.ID); err != nil || is.Outcome == nil || is.Outcome.Result != NotPossible || len(s.retirements()) != 0 {
			t.Errorf("%+v, %v, %v; want its own called off", is, err, s.retiring())
		}
	})
}
