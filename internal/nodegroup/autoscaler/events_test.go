package autoscaler

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAPodThatStaysWithoutHelpIsToldAgainBeforeItsEventIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.waitFor(huge("huge"))
		told := func(passed time.Duration, want int) {
			t.Helper()
			time.Sleep(passed)
			f.look()
			if notes := f.told(eventHelpless); len(notes) != want {
				t.Errorf("after %s more the Events are %q, want %d", passed, notes, want)
			}
		}
		told(0, 1)
		told(29*time.Minute, 0)
		told(time.Minute, 1)
		for range 3 { // from the last one on
			told(10*time.Second, 0)
		}
		told(29*time.Minute, 0)
		told(time.Minute, 1)
	})
}
