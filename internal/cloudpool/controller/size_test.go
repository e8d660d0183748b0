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

// undeletable has the first retirement at a machine whose node is gone, and which its cloud does not delete.
func (s *sim) undeletable() {
	s.t.Helper()
	s.retired(s.retirements()[0].Name, func(rt *v1alpha1.NodeRetirement) {
		rt.Status.Phase = v1alpha1.NodeDeleted
		rt.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue, Reason: "Admitted", LastTransitionTime: metav1.Now()},
			{Type: v1alpha1.RetirementBlocked, Status: metav1.ConditionTrue, Reason: retirement.CloudFailed, Message: "no", LastTransitionTime: metav1.Now()},
		}
	})
}

// sizes are the requests that set a desired size.
func (s *server) sizes() []string {
	return slices.DeleteFunc(s.requests(), func(r string) bool { return !strings.HasPrefix(r, "size ") })
}

// TestTheSizeIsNotTouchedWhenOneMachineIsTerminated has the server keep or lower its size itself, as the client asks.
func TestTheSizeIsNotTouchedWhenOneMachineIsTerminated(t *testing.T) {
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
				a := s.replica("a")
				tt.update.MachineID = uuid(1)
				ticket := begun(t, a, tt.update)
				s.passes(5 * time.Second)
				if rts := s.retirements(); len(rts) != 1 || rts[0].Spec.KeepSize != tt.keep {
					t.Fatalf("%+v; want one with keepSize %t", rts, tt.keep)
				}
				s.undeletable()
				s.passes(2 * time.Minute)
				over, err := ticket.Wait(t.Context())
				busy, busyErr := busy(t.Context(), a)
				if err != nil || over.Outcome.Result != BackendUnavailable || busy != nil || busyErr != nil {
					t.Errorf("%+v, %v, busy with %+v; want the client told, and the pool free", over.Outcome, err, busy)
				}
				again := begun(t, a, tt.update) // the same request follows the retirement
				s.passes(5 * time.Second)
				s.manage()
				s.passes(10 * time.Second)
				is, err := a.Find(t.Context(), again.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != Done || len(s.retirements()) != 1 {
					t.Errorf("%+v, %v; want the machine gone", is, err)
				}
				if asked := s.pool.sizes(); len(asked) > 0 || s.pool.size != tt.size {
					t.Errorf("the desired size is %d after %q; want %d, by the terminations alone", s.pool.size, asked, tt.size)
				}
			})
		})
	}
}

func TestASizeIsNotRaisedAfterAFailedTermination(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		s.pool.add(machine(4, api.Requested, ""))
		s.pool.size, s.pool.stays = 4, true
		a := s.replica("a")
		ticket := begun(t, a, Update{Kind: SetSize, DesiredSize: 3})
		s.passes(12 * time.Minute)
		over, err := ticket.Wait(t.Context())
		if err != nil || over.Outcome.Result != BackendUnavailable {
			t.Errorf("%+v, %v; want the client told that the machine stays", over.Outcome, err)
		}
		if asked := s.pool.sizes(); len(asked) > 0 {
			t.Errorf("the server was asked %q", asked)
		}
	})
}

func TestANodeGroupReplacesATerminatedMachineOnce(t *testing.T) {
	for name, fails := range map[string]bool{"at once": false, "when its cloud takes it": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.replica("a", func(o *UpdaterOptions) { o.Backend = lowering{s.pool} })
				ticket := begun(t, a, Update{Kind: Terminate, MachineID: uuid(1)})
				s.passes(5 * time.Second)
				if fails {
					s.pool.fail("desired", errors.New("away"))
				}
				s.manage()
				s.passes(5 * time.Minute)
				s.pool.fail("desired", nil)
				s.passes(time.Minute)
				is, err := a.Find(t.Context(), ticket.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != Done || s.pool.size != 3 {
					t.Errorf("%+v, %v, a desired size of %d; want 3", is, err, s.pool.size)
				}
			})
		})
	}
}

// lowering is a pool that lowers its size with each deletion, as the clouds of NodeGroups do.
type lowering struct{ *server }

func (lowering) KeepsSize() bool { return false }

func TestTheLastReadyWorkerIsKept(t *testing.T) {
	for name, tt := range map[string]struct {
		ask  bool
		up   Update
		want Result
		left int
	}{
		"by size":           {false, Update{Kind: SetSize, DesiredSize: 0}, Partial, 1},
		"by size, as asked": {true, Update{Kind: SetSize, DesiredSize: 0}, Done, 0},
		"by its name":       {false, Update{Kind: Terminate, MachineID: uuid(1)}, NotPossible, 2},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, s *sim) {
				if tt.up.Kind == Terminate { // the other one takes no pods
					n, err := s.kube.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{})
					if err == nil {
						n.Spec.Unschedulable = true
						_, err = s.kube.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				a := s.replica("a", func(o *UpdaterOptions) { o.RemoveLastWorker = tt.ask })
				s.passes(time.Second)
				done := make(chan struct{})
				go func() {
					defer close(done)
					ends(t, a, tt.up, 10*time.Minute, tt.want)
				}()
				for range 90 {
					s.passes(2 * time.Second)
					s.manage()
				}
				<-done
				if n := len(s.pool.machines); n != tt.left {
					t.Errorf("%d machines are left, want %d", n, tt.left)
				}
			})
		})
	}
}
