package provisioning

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

func TestAWishIsCarriedOutOnceUntilItIsWithdrawn(t *testing.T) {
	f := newFixture(t, nil)
	wish := plan.Wish{ID: "plugin/pod/web", Group: "web", Count: 2, Why: "because"}
	for range 3 {
		f.o.Wishes.Ask(wish)
		f.look()
	}
	if got := f.pool.ordered(); len(got) != 1 || got[0].Count != 2 {
		t.Fatalf("orders are %v, want one of 2", got)
	}
	f.o.Wishes.Withdraw("plugin/pod/")
	f.o.Wishes.Ask(wish)
	f.look()
	if got := f.pool.ordered(); len(got) != 2 {
		t.Errorf("orders are %v, want another", got)
	}
}

func TestAWishThatItsCloudHasNotTakenStaysOpen(t *testing.T) {
	f := withoutSpot(t)
	f.o.Wishes.Ask(plan.Wish{ID: "w", Group: "web", Count: 1})
	f.look()
	if got := f.pool.ordered(); len(got) != 0 {
		t.Fatalf("orders are %v", got)
	}
	f.look()
	if got := f.pool.ordered(); len(got) != 1 || got[0].Template != "m4" {
		t.Errorf("orders are %v, want one of the next kind", got)
	}
}

func TestAWishAboveTheMaximumIsMetAsFarAsItGoesAndTheRestStaysOpen(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.Maximum = new(int32(3)) })
	f.o.Wishes.Ask(plan.Wish{ID: "w", Group: "web", Count: 5})
	f.look()
	f.look()
	if got := f.pool.ordered(); len(got) != 1 || got[0].Count != 3 { // I5
		t.Errorf("orders are %v, want one of 3", got)
	}
	if open := f.o.Wishes.open(); len(open) != 1 || open[0].Count != 2 {
		t.Errorf("open is %v", open)
	}
}

func TestOfTooManyWishesTheLastAreNotTaken(t *testing.T) {
	w := NewWishes()
	for i := range maxWishes {
		if !w.Ask(plan.Wish{ID: fmt.Sprint(i)}) {
			t.Fatalf("wish %d is not taken", i)
		}
	}
	if w.Ask(plan.Wish{ID: "one more"}) || len(w.open()) != maxWishes {
		t.Error("one more is taken")
	}
}

func TestAWishIsNotGrantedAgainWhenAnotherOrderOfItsGroupFails(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.ScaleUp.Policy = v1alpha1.ByPriority })
	f.pool.change(func() {
		f.pool.templates = []string{"spot", "m4"}
		f.pool.refuse["spot"] = &cloud.RefusedError{Reason: cloud.NoCapacity, Err: errors.New("no valid host was found")}
	})
	f.wait("a") // spot is ordered for it
	f.o.Wishes.Ask(plan.Wish{ID: "w", Group: "web", Template: "m4", Count: 1})
	f.look()
	if open := f.o.Wishes.open(); len(open) != 0 || f.calls() != 2 {
		t.Fatalf("open is %v after %d orders, want the wish met by the one that was taken", open, f.calls())
	}
}

func TestOfAWishWhoseOrderFailedOnlyWhatHasNotComeIsOrderedAgain(t *testing.T) {
	lost := errors.New("the connection was lost")
	refused := &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("quota of 8 cores is used up")}
	for name, c := range map[string]struct {
		err   error
		made  int
		names bool
		calls int
	}{
		"its answer was lost, and all came":              {err: lost, made: 2, calls: 1},
		"its answer was lost, and one came":              {err: lost, made: 1, calls: 2},
		"its answer was lost in part, and one was named": {err: lost, made: 1, names: true, calls: 2},
		"it was refused, and one came":                   {err: refused, made: 1, calls: 2},
		"it was refused, and one was named":              {err: refused, made: 1, names: true, calls: 2},
		"it was refused":                                 {err: refused, calls: 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pool.change(func() { f.pool.refuse["m4"], f.pool.partly, f.pool.names = c.err, c.made, c.names })
			f.o.Wishes.Ask(plan.Wish{ID: "w", Group: "web", Count: 2})
			f.look()
			f.forget()
			f.looks(2)
			for i := range f.memory["web"].asked {
				f.memory["web"].asked[i].Settled = time.Now() // as when that is over
			}
			f.looks(3)
			if f.calls() != c.calls || len(f.pool.machines) != 2 {
				t.Errorf("%d machines by %d orders, want 2 by %d", len(f.pool.machines), f.calls(), c.calls)
			}
			if open := f.o.Wishes.open(); len(open) != 0 {
				t.Errorf("open is %v", open)
			}
		})
	}
}

func TestWishesThatShareAnOrderWhichFailedInPartAreShortOfWhatHasNotComeTogether(t *testing.T) {
	f := newFixture(t, nil)
	f.pool.change(func() {
		f.pool.partly, f.pool.refuse["m4"] = 3, &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("quota of 12 cores is used up")}
	})
	for _, id := range []string{"v", "w"} {
		f.o.Wishes.Ask(plan.Wish{ID: id, Group: "web", Count: 2})
	}
	f.look()
	f.forget()
	f.looks(3)
	if len(f.pool.machines) != 4 || f.calls() != 2 {
		t.Errorf("%d machines by %d orders, want 4 by 2", len(f.pool.machines), f.calls())
	}
}
