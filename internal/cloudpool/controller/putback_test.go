package controller

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// TestARetirementThatIsOverAndForgottenIsNotTakenForCalledOff has the record be gone before it was seen to have succeeded.
func TestARetirementThatIsOverAndForgottenIsNotTakenForCalledOff(t *testing.T) {
	for name, unread := range map[string]bool{"at once": false, "while the pool cannot be read": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.replica("a")
				ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(1)})
				s.passes(5 * time.Second)
				if unread {
					s.pool.fail("pool", errors.New("away"))
				}
				rt := s.retirements()[0]
				err := s.kube.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{})
				if err = errors.Join(err, s.objects.Delete(t.Context(), &rt)); err != nil {
					t.Fatal(err)
				}
				s.pool.end(uuid(1), cloud.DeleteOptions{KeepSize: rt.Spec.KeepSize})
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
		ticket := begun(t, a, Update{Kind: SetSize, DesiredSize: 2})
		s.passes(4 * time.Minute)
		if nodes := s.retiring(); len(nodes) != 1 {
			t.Errorf("%v are retired before --admission-wait is over", nodes)
		}
		s.passes(2 * time.Minute)
		if nodes := s.retiring(); len(nodes) != 2 {
			t.Fatalf("%v are retired, want one more than n2", nodes)
		}
		is, err := a.Find(t.Context(), ticket.ID)
		if err != nil || !strings.Contains(is.object.Machine(uuid(2)).Reason, "others-n2, which is not of this update, waits: awaits its notice") {
			t.Errorf("%+v, %v", is, err)
		}
	})
	simulate(t, 2, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(1)})
		s.passes(5 * time.Second)
		s.retired(s.retirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase, rt.Status.Message = v1alpha1.Pending, "waits" })
		s.passes(6 * time.Minute)
		if is, err := a.Find(t.Context(), ticket.ID); err != nil || is.Outcome == nil || is.Outcome.Result != NotPossible || len(s.retirements()) != 0 {
			t.Errorf("%+v, %v, %v; want its own called off", is, err, s.retiring())
		}
	})
}

// TestTheProtectionOfAMachineThatStaysIsPutBackHoweverLongItTakes has the server take no membership for a while.
func TestTheProtectionOfAMachineThatStaysIsPutBackHoweverLongItTakes(t *testing.T) {
	for name, gone := range map[string]bool{"it stays": false, "it goes by itself meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, s *sim) {
				s.pool.machines[0].Membership = &api.MembershipStatus{Active: true}
				a := s.replica("a")
				ticket := begun(t, a, Update{Kind: Dispose, MachineID: uuid(1)})
				s.passes(5 * time.Second)
				s.pool.fail("membership", errors.New("away"))
				s.retired(s.retirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Aborted })
				s.passes(5 * time.Minute)
				over, err := ticket.Wait(t.Context())
				if err != nil || over.Outcome.Result != BackendUnavailable || !strings.Contains(over.Outcome.Detail, "not evictable again") {
					t.Errorf("%+v, %v; want the client to be told meanwhile", over, err)
				}
				if gone {
					s.pool.end(uuid(1), cloud.DeleteOptions{})
				} else {
					s.pool.fail("membership", nil)
				}
				s.passes(10 * time.Second)
				if !gone && s.pool.machines[0].Membership.Evictable {
					t.Errorf("the machine is evictable after %q", s.pool.requests())
				}
				is, err := a.Find(t.Context(), ticket.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != NotPossible {
					t.Errorf("%+v, %v; want the update to be over", is, err)
				}
			})
		})
	}
}

// TestAMachineThatWasNotMadeEvictableStaysAsItWas has the server take no membership from the start.
func TestAMachineThatWasNotMadeEvictableStaysAsItWas(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.machines[0].Membership = &api.MembershipStatus{Active: true}
		s.pool.fail("membership", errors.New("away"))
		a := s.replica("a")
		up := Update{Kind: Dispose, MachineID: uuid(1)}
		ends(t, a, up, 5*time.Minute, BackendUnavailable, "goes on until machine "+uuid(1)+" is not evictable again")
		s.pool.fail("membership", nil)
		s.passes(10 * time.Second)
		busy, err := busy(t.Context(), a)
		if is := s.pool.machines[0].Membership; err != nil || busy != nil || is.Evictable || len(s.retirements()) > 0 {
			t.Errorf("%+v after %q, busy with %v, %v; want it kept as before, and the pool free", is, s.pool.requests(), busy, err)
		}
	})
}

// own is a no of the pool's own server.
func own(code int) error {
	return &api.StatusError{Code: code, Own: true, ErrorMessage: api.ErrorMessage{Message: "no"}}
}
