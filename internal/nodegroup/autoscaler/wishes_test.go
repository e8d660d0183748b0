package autoscaler

import (
	"errors"
	"fmt"
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup/scaling"
)

func TestAWishIsCarriedOutOnceUntilItIsWithdrawn(t *testing.T) {
	f := newFixture(t, nil)
	wish := scaling.Wish{ID: "plugin/pod/web", Group: "web", Count: 2, Why: "because"}
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
	f.o.Wishes.Ask(scaling.Wish{ID: "w", Group: "web", Count: 1})
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
	f.o.Wishes.Ask(scaling.Wish{ID: "w", Group: "web", Count: 5})
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
		if !w.Ask(scaling.Wish{ID: fmt.Sprint(i)}) {
			t.Fatalf("wish %d is not taken", i)
		}
	}
	if w.Ask(scaling.Wish{ID: "one more"}) || len(w.open()) != maxWishes {
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
	f.o.Wishes.Ask(scaling.Wish{ID: "w", Group: "web", Template: "m4", Count: 1})
	f.look()
	if open := f.o.Wishes.open(); len(open) != 0 || f.calls() != 2 {
		t.Fatalf("open is %v after %d orders, want the wish met by the one that was taken", open, f.calls())
	}
}
