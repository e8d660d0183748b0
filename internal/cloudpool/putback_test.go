package cloudpool

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

// TestI8AnUpdateWhoseSlotWasGivenBackHasItAgain has the slot given back by what came before the update.
func TestI8AnUpdateWhoseSlotWasGivenBackHasItAgain(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: SetSize, DesiredSize: 2})
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

// TestI5AMachineIsReplacedWhateverElseHasChangedTheSize changes the size during the termination of a machine that is to be
// replaced.
func TestI5AMachineIsReplacedWhateverElseHasChangedTheSize(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*sim)
		want   int
	}{
		"nothing has":                  {func(*sim) {}, 4},
		"another machine has left":     {func(s *sim) { s.pool.end(uuid(2)) }, 3},
		"it was raised":                {func(s *sim) { s.pool.size += 2 }, 6},
		"the server takes it later":    {func(s *sim) { s.pool.fail("desired", errors.New("away")) }, 4},
		"another one leaves and later": {func(s *sim) { s.pool.end(uuid(2)); s.pool.fail("desired", errors.New("away")) }, 3},
		"later, and another one leaves": {func(s *sim) {
			s.pool.fail("desired", errors.New("away"))
			time.AfterFunc(5*time.Second, func() { s.pool.end(uuid(2)) })
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 4, func(t *testing.T, s *sim) {
				a := s.replica("a")
				ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(1)})
				s.passes(5 * time.Second)
				tt.change(s)
				s.retired(s.retirements()[0].Name, func(rt *v1alpha1.NodeRetirement) {
					rt.Status.Phase, rt.Status.Operation = v1alpha1.NodeDeleted, &v1alpha1.CloudOperation{ID: "o"}
				})
				s.manage()
				s.passes(10 * time.Second)
				s.pool.fail("desired", nil)
				over, err := ticket.Wait(t.Context())
				if err != nil || over.Outcome.Result != Done || s.pool.size != tt.want {
					t.Errorf("%+v, %v, a desired size of %d after %q; want %d", over, err, s.pool.size, s.pool.requests(), tt.want)
				}
			})
		})
	}
}

// TestI8AMachineIsReplacedOnce has a process end right before, and right after, it has raised the size again.
func TestI8AMachineIsReplacedOnce(t *testing.T) {
	for size, want := range map[int][]string{2: {"size 3"}, 3: {}, 4: {}} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				s.pool.end(uuid(1))
				s.pool.size = size
				s.leave(Update{Kind: Terminate, MachineID: uuid(1), SizeBefore: 4, RestoreTo: 3})
				s.rewrite(recordName("workers"), func(r *record) { r.Current.Turns[0].State, r.Current.Turns[0].Lowered = Gone, true })
				a := s.replica("a")
				s.passes(30 * time.Second)
				up, err := a.Find(t.Context(), "left")
				if err != nil || up.Outcome == nil || up.Outcome.Result != Done || !slices.Equal(s.pool.requests(), want) {
					t.Errorf("%+v, %v, after %q; want %q", up, err, s.pool.requests(), want)
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
		is, err := a.Find(t.Context(), ticket.Update.ID)
		if err != nil || !strings.Contains(is.turn(uuid(2)).Why, "others-n2, which is not of this update, waits: awaits its notice") {
			t.Errorf("%+v, %v", is, err)
		}
	})
	simulate(t, 2, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(1)})
		s.passes(5 * time.Second)
		s.retired(s.retirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase, rt.Status.Message = v1alpha1.Pending, "waits" })
		s.passes(6 * time.Minute)
		if is, err := a.Find(t.Context(), ticket.Update.ID); err != nil || is.Outcome == nil || is.Outcome.Result != NotPossible || len(s.retirements()) != 0 {
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
				if err != nil || over.Outcome.Result != BackendAway || !strings.Contains(over.Outcome.Detail, "not evictable again") {
					t.Errorf("%+v, %v; want the client to be told meanwhile", over, err)
				}
				if gone {
					s.pool.end(uuid(1))
				} else {
					s.pool.fail("membership", nil)
				}
				s.passes(10 * time.Second)
				if !gone && s.pool.machines[0].Membership.Evictable {
					t.Errorf("the machine is evictable after %q", s.pool.requests())
				}
				is, err := a.Find(t.Context(), ticket.Update.ID)
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
		ends(t, a, up, 5*time.Minute, BackendAway, "goes on until machine "+uuid(1)+" is not evictable again")
		s.pool.fail("membership", nil)
		s.passes(10 * time.Second)
		busy, err := a.Busy(t.Context())
		if is := s.pool.machines[0].Membership; err != nil || busy != nil || is.Evictable || len(s.retirements()) > 0 {
			t.Errorf("%+v after %q, busy with %v, %v; want it kept as before, and the pool free", is, s.pool.requests(), busy, err)
		}
	})
}

// TestI5AMachineWithoutANodeIsReplacedThoughItsServerIsAwayMeanwhile has the server be away after it has taken the termination.
func TestI5AMachineWithoutANodeIsReplacedThoughItsServerIsAwayMeanwhile(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.add(machine(3, api.Requested, ""))
		s.pool.size, s.pool.stays = 3, true
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(3)})
		s.passes(5 * time.Second)
		s.pool.fail("pool", errors.New("away"))
		s.passes(3 * time.Minute)
		if over, err := ticket.Wait(t.Context()); err != nil || over.Outcome.Result != BackendAway {
			t.Errorf("%+v, %v; want the client to be told", over, err)
		}
		s.pool.end(uuid(3))
		unlock := s.pool.locked()
		s.pool.size++ // it was lowered when the termination was taken
		unlock()
		s.pool.fail("pool", nil)
		s.passes(10 * time.Second)
		is, err := a.Find(t.Context(), ticket.Update.ID)
		if err != nil || is.Outcome == nil || is.Outcome.Result != Done || s.pool.size != 3 {
			t.Errorf("%+v, %v, a desired size of %d; want 3", is, err, s.pool.size)
		}
	})
}

// own is a no of the pool's own server.
func own(code int) error {
	return &api.StatusError{Code: code, Own: true, ErrorMessage: api.ErrorMessage{Message: "no"}}
}

// TestAnUpdateWhoseDebtNobodyTakesEnds has the server say no for good to what an update owes: the pool is free for others.
func TestAnUpdateWhoseDebtNobodyTakesEnds(t *testing.T) {
	free := func(t *testing.T, s *sim, a *Updater) {
		t.Helper()
		s.passes(5 * time.Minute)
		if busy, err := a.Busy(t.Context()); busy != nil || err != nil {
			t.Errorf("busy with %v, %v, after %q; want the pool to be free", busy, err, s.pool.requests())
		}
	}
	t.Run("a size that it does not allow", func(t *testing.T) {
		simulate(t, 3, func(t *testing.T, s *sim) {
			a := s.replica("a")
			ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(1)})
			s.passes(5 * time.Second)
			s.pool.fail("desired", own(http.StatusBadRequest))
			s.manage()
			over, err := ticket.Wait(t.Context())
			if err != nil || over.Outcome.Result != BackendAway || strings.Contains(over.Outcome.Detail, "goes on") {
				t.Errorf("%+v, %v; want the server's no", over, err)
			}
			free(t, s, a)
		})
	})
	for name, no := range map[string]error{"a membership that it never takes": own(http.StatusNotImplemented), "or fails at for ever": errors.New("away")} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, s *sim) {
				s.pool.machines[0].Membership = &api.MembershipStatus{Active: true}
				s.pool.fail("membership", no)
				a := s.replica("a")
				ends(t, a, Update{Kind: Dispose, MachineID: uuid(1)}, 5*time.Minute, BackendAway, "setting the membership of machine "+uuid(1))
				free(t, s, a)
			})
		})
	}
	t.Run("a size that need not be put back after all", func(t *testing.T) {
		simulate(t, 3, func(t *testing.T, s *sim) {
			s.pool.add(machine(4, api.Requested, ""))
			s.pool.size, s.pool.stays = 4, true
			a := s.replica("a")
			begun(t, a, Update{Kind: SetSize, DesiredSize: 2})
			s.passes(5 * time.Second)
			s.pool.fail("desired", errors.New("away"))
			unlock := s.pool.locked()
			s.pool.status = cloud.Status{Done: true, Err: errors.New("it could not be ended")}
			unlock()
			s.passes(10 * time.Second)
			s.pool.end(uuid(4)) // it is gone, although its operation has failed
			s.pool.fail("desired", nil)
			for range 3 {
				s.passes(5 * time.Second)
				s.manage()
			}
			free(t, s, a)
		})
	})
}
