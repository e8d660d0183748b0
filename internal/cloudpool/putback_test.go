package cloudpool

import (
	"testing"
	"time"
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
