package cloudpool

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
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

// TestI5AMachineThatIsToBeReplacedIsReplacedHoweverLongItTakes has the client told of the trouble meanwhile, and once more when
// it asks again.
func TestI5AMachineThatIsToBeReplacedIsReplacedHoweverLongItTakes(t *testing.T) {
	for name, tt := range map[string]struct {
		begin, end func(*sim)
	}{
		"its cloud does not delete it":     {(*sim).undeletable, (*sim).manage},
		"the server takes no size":         {func(s *sim) { s.pool.fail("desired", errors.New("away")); s.manage() }, func(s *sim) { s.pool.fail("desired", nil) }},
		"the server says no size any more": {func(s *sim) { s.pool.fail("size", errors.New("away")); s.manage() }, func(s *sim) { s.pool.fail("size", nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.replica("a")
				want := Update{Kind: Terminate, MachineID: uuid(1), Pool: "workers"}
				ticket, err := a.Submit(t.Context(), want, a.judgeMachine)
				if err != nil {
					t.Fatal(err)
				}
				s.passes(5 * time.Second)
				tt.begin(s)
				s.passes(10 * time.Minute)
				over, err := ticket.Wait(t.Context())
				if err != nil || over.Outcome.Result != BackendAway || !strings.Contains(over.Outcome.Detail, "the desired size is 3 again") {
					t.Fatalf("%+v, %v; want the client to be told", over.Outcome, err)
				}
				b := s.replica("b") // whoever is asked
				for _, u := range []*Updater{a, b} {
					ends(t, u, want, 10*time.Second, BackendAway, "goes on")
				}
				var busy *BusyError
				if _, err := a.Submit(t.Context(), Update{Kind: SetSize, DesiredSize: 1}, a.judgeSize); !errors.As(err, &busy) {
					t.Errorf("another update meanwhile: %v", err)
				}
				tt.end(s)
				s.passes(time.Minute)
				is, err := a.Find(t.Context(), ticket.Update.ID)
				if err != nil || is.Outcome == nil || is.Outcome.Result != Done || s.pool.size != 3 || !slices.Contains(s.pool.requests(), "size 3") {
					t.Errorf("%+v, %v, a desired size of %d after %q; want 3", is, err, s.pool.size, s.pool.requests())
				}
			})
		})
	}
}

func TestAnUpdateThatOwesNothingOrIsRefusedEndsWithItsTroubles(t *testing.T) {
	for name, tt := range map[string]struct {
		decrement bool
		begin     func(*sim)
	}{
		"fewer are wanted": {true, (*sim).undeletable},
		"the size is not allowed": {false, func(s *sim) {
			s.pool.fail("desired", &cloud.RefusedError{Reason: cloud.AtLimit, Err: errors.New("the maximum")})
			s.manage()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.replica("a")
				ticket, err := a.Submit(t.Context(), Update{Kind: Terminate, MachineID: uuid(1), Decrement: tt.decrement}, a.judgeMachine)
				if err != nil {
					t.Fatal(err)
				}
				s.passes(5 * time.Second)
				tt.begin(s)
				s.passes(10 * time.Minute)
				over, err := ticket.Wait(t.Context())
				busy, busyErr := a.Busy(t.Context())
				if err != nil || over.Outcome.Result != BackendAway || busy != nil || busyErr != nil {
					t.Errorf("%+v, %v, busy with %v", over.Outcome, err, busy)
				}
				if tt.decrement {
					s.manage() // the machine goes after all
				}
				// Whoever asks again then is told that it is done, but for a machine that is still to be replaced.
				past, err := a.Past(t.Context(), &Update{MachineID: uuid(1), Decrement: tt.decrement})
				if err != nil || (past != nil) != tt.decrement || past != nil && past.Outcome.Result != Done {
					t.Errorf("later: %+v, %v", past, err)
				}
				// Who wants the size to be another one then has asked for something else.
				if past, err := a.Past(t.Context(), &Update{MachineID: uuid(1), Decrement: !tt.decrement}); err != nil || past != nil {
					t.Errorf("with the other size: %+v, %v", past, err)
				}
			})
		})
	}
}
