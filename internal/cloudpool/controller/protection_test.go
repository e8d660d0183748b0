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

// TestDeletedFinishedRetirementIsNotCancelled deletes a succeeded retirement before the update reads it.
func TestDeletedFinishedRetirementIsNotCancelled(t *testing.T) {
	for name, unread := range map[string]bool{"at once": false, "while the pool cannot be read": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.startReplica("a")
				submitted := mustSubmit(t, a, Update{Kind: Terminate, MachineID: newUUID(1)})
				s.advance(5 * time.Second)
				if unread {
					s.pool.setFailure("pool", errors.New("away"))
				}
				rt := s.listRetirements()[0]
				err := s.kube.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{})
				if err = errors.Join(err, s.objects.Delete(t.Context(), &rt)); err != nil {
					t.Fatal(err)
				}
				s.pool.removeMachine(newUUID(1), cloud.DeleteOptions{KeepSize: rt.Spec.KeepSize})
				s.advance(30 * time.Second)
				s.pool.setFailure("pool", nil)
				result, err := submitted.WaitForOutcome(t.Context())
				if err != nil || result.Outcome.Result != Done || result.Outcome.Removed != 1 || s.pool.size != 3 {
					t.Errorf("%+v, %v, a desired size of %d; want Done, and the machine replaced", result, err, s.pool.size)
				}
			})
		})
	}
}

// TestRetirementThatNeverStartsTimesOut has a retirement that waits without being blocked, for example for a notice.
func TestRetirementThatNeverStartsTimesOut(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		s.createForeignRetirement(2, "n2")
		s.updateRetirementStatus("others-n2", func(rt *v1alpha1.NodeRetirement) {
			rt.Status.Phase, rt.Status.Message = v1alpha1.Pending, "awaits its notice"
		})
		submitted := mustSubmit(t, a, Update{Kind: SetSize, DesiredSize: 2})
		s.advance(4 * time.Minute)
		if nodes := s.retiringNodes(); len(nodes) != 1 {
			t.Errorf("%v are retired before --admission-wait is result", nodes)
		}
		s.advance(2 * time.Minute)
		if nodes := s.retiringNodes(); len(nodes) != 2 {
			t.Fatalf("%v are retired, want one more than n2", nodes)
		}
		is, err := a.FindUpdate(t.Context(), submitted.ID)
		if err != nil || !strings.Contains(is.object.FindMachineExceptPlanned(newUUID(2)).Reason, "others-n2, which this update did not create, waits: awaits its notice") {
			t.Errorf("%+v, %v", is, err)
		}
	})
	simulate(t, 2, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		submitted := mustSubmit(t, a, Update{Kind: Terminate, MachineID: newUUID(1)})
		s.advance(5 * time.Second)
		s.updateRetirementStatus(s.listRetirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase, rt.Status.Message = v1alpha1.Pending, "waits" })
		s.advance(6 * time.Minute)
		if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome == nil || is.Outcome.Result != NotPossible || len(s.listRetirements()) != 0 {
			t.Errorf("%+v, %v, %v; want its own retirement cancelled", is, err, s.retiringNodes())
		}
	})
}

// TestProtectionOfKeptMachineIsRestored lets the server refuse memberships for a while.
func TestProtectionOfKeptMachineIsRestored(t *testing.T) {
	for name, gone := range map[string]bool{"machine stays": false, "machine disappears": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, s *sim) {
				s.pool.machines[0].Membership = &api.MembershipStatus{Active: true}
				a := s.startReplica("a")
				submitted := mustSubmit(t, a, Update{Kind: Dispose, MachineID: newUUID(1)})
				s.advance(5 * time.Second)
				s.pool.setFailure("membership", errors.New("away"))
				s.updateRetirementStatus(s.listRetirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Aborted })
				s.advance(5 * time.Minute)
				result, err := submitted.WaitForOutcome(t.Context())
				if err != nil || result.Outcome.Result != BackendUnavailable || !strings.Contains(result.Outcome.Detail, "not evictable again") {
					t.Errorf("%+v, %v; want an error for the client meanwhile", result, err)
				}
				if gone {
					s.pool.removeMachine(newUUID(1), cloud.DeleteOptions{})
				} else {
					s.pool.setFailure("membership", nil)
				}
				s.advance(10 * time.Second)
				if !gone && s.pool.machines[0].Membership.Evictable {
					t.Errorf("the machine is evictable after %q", s.pool.changeRequests())
				}
				is, err := a.FindUpdate(t.Context(), submitted.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != NotPossible {
					t.Errorf("%+v, %v; want the update finished", is, err)
				}
			})
		})
	}
}

// TestUnchangedMembershipStaysProtected lets the server refuse memberships from the start.
func TestUnchangedMembershipStaysProtected(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.machines[0].Membership = &api.MembershipStatus{Active: true}
		s.pool.setFailure("membership", errors.New("away"))
		a := s.startReplica("a")
		up := Update{Kind: Dispose, MachineID: newUUID(1)}
		checkUpdateEnds(t, a, up, 5*time.Minute, BackendUnavailable, "continues until machine "+newUUID(1)+" is not evictable again")
		s.pool.setFailure("membership", nil)
		s.advance(10 * time.Second)
		busy, err := getUnfinishedUpdate(t.Context(), a)
		if is := s.pool.machines[0].Membership; err != nil || busy != nil || is.Evictable || len(s.listRetirements()) > 0 {
			t.Errorf("%+v after %q, busy with %v, %v; want it protected as before, and the pool free", is, s.pool.changeRequests(), busy, err)
		}
	})
}

// serverError returns an error answer of the pool's server.
func serverError(code int) error {
	return &api.StatusError{Code: code, FromServer: true, ErrorMessage: api.ErrorMessage{Message: "no"}}
}
