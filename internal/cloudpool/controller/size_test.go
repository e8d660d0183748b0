package controller

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// failDeletion puts the first retirement into a state where the node is gone and the cloud does not delete the machine.
func (s *sim) failDeletion() {
	s.t.Helper()
	s.updateRetirementStatus(s.listRetirements()[0].Name, func(rt *v1alpha1.NodeRetirement) {
		rt.Status.Phase = v1alpha1.NodeDeleted
		rt.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue, Reason: "Admitted", LastTransitionTime: metav1.Now()},
			{Type: v1alpha1.RetirementBlocked, Status: metav1.ConditionTrue, Reason: retirement.CloudFailed, Message: "no", LastTransitionTime: metav1.Now()},
		}
	})
}

// sizeRequests returns the requests that set a desired size.
func (s *fakeServer) sizeRequests() []string {
	return slices.DeleteFunc(s.changeRequests(), func(r string) bool { return !strings.HasPrefix(r, "size ") })
}

// TestTerminationDoesNotSetSize lets the server keep or lower its size, as the client requests.
func TestTerminationDoesNotSetSize(t *testing.T) {
	for name, tt := range map[string]struct {
		update Update
		keep   bool
		size   int
	}{
		"with decrement":    {Update{Kind: Terminate, Decrement: true}, false, 2},
		"without decrement": {Update{Kind: Terminate}, true, 3},
		"disposable":        {Update{Kind: Dispose}, true, 3},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.startReplica("a")
				tt.update.MachineID = newUUID(1)
				submitted := mustSubmit(t, a, tt.update)
				s.advance(5 * time.Second)
				if rts := s.listRetirements(); len(rts) != 1 || rts[0].Spec.KeepSize != tt.keep {
					t.Fatalf("%+v; want one with keepSize %t", rts, tt.keep)
				}
				s.failDeletion()
				s.advance(2 * time.Minute)
				result, err := submitted.WaitForOutcome(t.Context())
				busy, busyErr := getUnfinishedUpdate(t.Context(), a)
				if err != nil || result.Outcome.Result != BackendUnavailable || busy != nil || busyErr != nil {
					t.Errorf("%+v, %v, busy with %+v; want an error for the client, and the pool free", result.Outcome, err, busy)
				}
				repeated := mustSubmit(t, a, tt.update) // the same request follows the retirement
				s.advance(5 * time.Second)
				s.completeRetirements()
				s.advance(10 * time.Second)
				is, err := a.FindUpdate(t.Context(), repeated.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != Done || len(s.listRetirements()) != 1 {
					t.Errorf("%+v, %v; want the machine gone", is, err)
				}
				if asked := s.pool.sizeRequests(); len(asked) > 0 || s.pool.size != tt.size {
					t.Errorf("the desired size is %d after %q; want %d, changed by terminations only", s.pool.size, asked, tt.size)
				}
			})
		})
	}
}

func TestFailedTerminationDoesNotRaiseSize(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		s.pool.addMachine(newMachine(4, api.Requested, ""))
		s.pool.size, s.pool.ignoresDeletions = 4, true
		a := s.startReplica("a")
		submitted := mustSubmit(t, a, Update{Kind: SetSize, DesiredSize: 3})
		s.advance(12 * time.Minute)
		result, err := submitted.WaitForOutcome(t.Context())
		if err != nil || result.Outcome.Result != BackendUnavailable {
			t.Errorf("%+v, %v; want an error for the client", result.Outcome, err)
		}
		if asked := s.pool.sizeRequests(); len(asked) > 0 {
			t.Errorf("the server was asked %q", asked)
		}
	})
}

func TestNodeGroupReplacesTerminatedMachineOnce(t *testing.T) {
	for name, fails := range map[string]bool{"at once": false, "after cloud failures": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.startReplica("a", func(o *UpdaterOptions) { o.Backend = sizeLoweringPool{s.pool} })
				submitted := mustSubmit(t, a, Update{Kind: Terminate, MachineID: newUUID(1)})
				s.advance(5 * time.Second)
				if fails {
					s.pool.setFailure("desired", errors.New("away"))
				}
				s.completeRetirements()
				s.advance(5 * time.Minute)
				s.pool.setFailure("desired", nil)
				s.advance(time.Minute)
				is, err := a.FindUpdate(t.Context(), submitted.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != Done || s.pool.size != 3 {
					t.Errorf("%+v, %v, a desired size of %d; want 3", is, err, s.pool.size)
				}
			})
		})
	}
}

// sizeLoweringPool is a pool that lowers its size with each deletion, as the clouds of NodeGroups do.
type sizeLoweringPool struct{ *fakeServer }

func (sizeLoweringPool) KeepsSize() bool { return false }

func TestLastReadyWorkerIsKept(t *testing.T) {
	for name, tt := range map[string]struct {
		removeLast bool
		up         Update
		want       Result
		left       int
	}{
		"size":              {false, Update{Kind: SetSize, DesiredSize: 0}, Partial, 1},
		"size, with option": {true, Update{Kind: SetSize, DesiredSize: 0}, Done, 0},
		"termination":       {false, Update{Kind: Terminate, MachineID: newUUID(1)}, NotPossible, 2},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, s *sim) {
				if tt.up.Kind == Terminate { // the other node is unschedulable
					n, err := s.kube.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{})
					if err == nil {
						n.Spec.Unschedulable = true
						_, err = s.kube.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				a := s.startReplica("a", func(o *UpdaterOptions) { o.RemoveLastWorker = tt.removeLast })
				s.advance(time.Second)
				done := make(chan struct{})
				go func() {
					defer close(done)
					checkUpdateEnds(t, a, tt.up, 10*time.Minute, tt.want)
				}()
				for range 90 {
					s.advance(2 * time.Second)
					s.completeRetirements()
				}
				<-done
				if n := len(s.pool.machines); n != tt.left {
					t.Errorf("%d machines are left, want %d", n, tt.left)
				}
			})
		})
	}
}
