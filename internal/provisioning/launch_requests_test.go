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

func TestLaunchRequestIsLaunchedOnceUntilRemoved(t *testing.T) {
	f := newFixture(t, nil)
	wish := plan.LaunchRequest{ID: "plugin/pod/web", Group: "web", Count: 2, Reason: "because"}
	for range 3 {
		f.options.LaunchRequests.Add(wish)
		f.reconcile()
	}
	if got := f.pool.launches(); len(got) != 1 || got[0].Count != 2 {
		t.Fatalf("launches are %v, want one of 2", got)
	}
	f.options.LaunchRequests.RemoveByPrefix("plugin/pod/")
	f.options.LaunchRequests.Add(wish)
	f.reconcile()
	if got := f.pool.launches(); len(got) != 2 {
		t.Errorf("launches are %v, want another", got)
	}
}

func TestRefusedLaunchRequestStaysOpen(t *testing.T) {
	f := newFixtureWithoutSpot(t)
	f.options.LaunchRequests.Add(plan.LaunchRequest{ID: "w", Group: "web", Count: 1})
	f.reconcile()
	if got := f.pool.launches(); len(got) != 0 {
		t.Fatalf("launches are %v", got)
	}
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Template != "m4" {
		t.Errorf("launches are %v, want one of the next kind", got)
	}
}

func TestLaunchRequestAboveMaxSizeIsLaunchedInPart(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.MaxSize = new(int32(3)) })
	f.options.LaunchRequests.Add(plan.LaunchRequest{ID: "w", Group: "web", Count: 5})
	f.reconcile()
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Count != 3 { // I5
		t.Errorf("launches are %v, want one of 3", got)
	}
	if open := f.options.LaunchRequests.dropExpiredAndListOpen(); len(open) != 1 || open[0].Count != 2 {
		t.Errorf("open is %v", open)
	}
}

func TestTooManyLaunchRequestsAreRejected(t *testing.T) {
	w := NewLaunchRequests()
	for i := range maxRequests {
		if !w.Add(plan.LaunchRequest{ID: fmt.Sprint(i)}) {
			t.Fatalf("wish %d is not taken", i)
		}
	}
	if w.Add(plan.LaunchRequest{ID: "one more"}) || len(w.dropExpiredAndListOpen()) != maxRequests {
		t.Error("one more is taken")
	}
}

func TestAnotherLaunchsFailureDoesNotRepeatALaunchRequest(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.ScaleUp.Policy = v1alpha1.FirstTemplate })
	f.pool.change(func() {
		f.pool.templates = []string{"spot", "m4"}
		f.pool.refuse["spot"] = &cloud.RefusedError{Reason: cloud.NoCapacity, Err: errors.New("no valid host was found")}
	})
	f.addUnschedulable("a") // spot is launched for it
	f.options.LaunchRequests.Add(plan.LaunchRequest{ID: "w", Group: "web", Template: "m4", Count: 1})
	f.reconcile()
	if open := f.options.LaunchRequests.dropExpiredAndListOpen(); len(open) != 0 || f.launchCount() != 2 {
		t.Fatalf("open is %v after %d launches, want the launch request met by the one that was taken", open, f.launchCount())
	}
}

func TestPartlyFailedLaunchRequestLaunchesOnlyTheRest(t *testing.T) {
	lost := errors.New("the connection was lost")
	refused := &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("quota of 8 cores is used up")}
	for name, c := range map[string]struct {
		err   error
		made  int
		names bool
		calls int
	}{
		"answer lost, all instances appeared": {err: lost, made: 2, calls: 1},
		"answer lost, one instance appeared":  {err: lost, made: 1, calls: 2},
		"answer lost, one instance named":     {err: lost, made: 1, names: true, calls: 2},
		"refused, one instance appeared":      {err: refused, made: 1, calls: 2},
		"refused, one instance named":         {err: refused, made: 1, names: true, calls: 2},
		"refused":                             {err: refused, calls: 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pool.change(func() { f.pool.refuse["m4"], f.pool.partly, f.pool.names = c.err, c.made, c.names })
			f.options.LaunchRequests.Add(plan.LaunchRequest{ID: "w", Group: "web", Count: 2})
			f.reconcile()
			f.endBackOffs()
			f.reconcileTimes(2)
			for i := range f.states["web"].pending {
				f.states["web"].pending[i].SettledAt = time.Now() // as after that time
			}
			f.reconcileTimes(3)
			if f.launchCount() != c.calls || len(f.pool.machines) != 2 {
				t.Errorf("%d instances by %d launches, want 2 by %d", len(f.pool.machines), f.launchCount(), c.calls)
			}
			if open := f.options.LaunchRequests.dropExpiredAndListOpen(); len(open) != 0 {
				t.Errorf("open is %v", open)
			}
		})
	}
}

func TestLaunchRequestsSharingAFailedLaunchMissItsInstancesOnce(t *testing.T) {
	f := newFixture(t, nil)
	f.pool.change(func() {
		f.pool.partly, f.pool.refuse["m4"] = 3, &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("quota of 12 cores is used up")}
	})
	for _, id := range []string{"v", "w"} {
		f.options.LaunchRequests.Add(plan.LaunchRequest{ID: id, Group: "web", Count: 2})
	}
	f.reconcile()
	f.endBackOffs()
	f.reconcileTimes(3)
	if len(f.pool.machines) != 4 || f.launchCount() != 2 {
		t.Errorf("%d instances by %d launches, want 4 by 2", len(f.pool.machines), f.launchCount())
	}
}
