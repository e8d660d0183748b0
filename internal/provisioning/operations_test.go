package provisioning

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// failingLater is a cloud that accepts and counts launches of one template, and later cannot create the instances.
type failingLater struct {
	*pool
	template string
	counted  atomic.Int32
	asked    atomic.Int32
	outcomes []cloud.OperationStatus // the last one repeats
	unread   error                   // instead of the first outcome
	always   error                   // instead of every outcome
}

func (u *failingLater) Grow(ctx context.Context, group string, o cloud.LaunchRequest) (cloud.Operation, error) {
	if o.Template != u.template {
		return u.pool.Grow(ctx, group, o)
	}
	u.change(func() { u.orders = append(u.orders, o) })
	u.counted.Add(int32(o.Count))
	return cloud.Operation{ID: "operation", Started: time.Now()}, nil
}

func (u *failingLater) Group(ctx context.Context, name string) (cloud.Group, error) {
	g, err := u.pool.Group(ctx, name)
	g.Size += int(u.counted.Load())
	return g, err
}

func (u *failingLater) Status(context.Context, cloud.Operation) (cloud.OperationStatus, error) {
	n := int(u.asked.Add(1))
	if u.always != nil && n <= 200 {
		return cloud.OperationStatus{}, u.always
	}
	if n == 1 && u.unread != nil {
		return cloud.OperationStatus{}, u.unread
	}
	return u.outcomes[min(n, len(u.outcomes))-1], nil
}

func TestLateLaunchFailureTriesNextTemplate(t *testing.T) {
	soon := cloud.OperationStatus{RetryAfter: time.Millisecond}
	failed := func(reason cloud.Refusal) cloud.OperationStatus {
		return cloud.OperationStatus{Done: true, Err: &cloud.RefusedError{Reason: reason, Err: errors.New("it has none")}}
	}
	for name, c := range map[string]struct {
		outcomes []cloud.OperationStatus
		unread   error
		reason   string
	}{
		"no capacity":               {[]cloud.OperationStatus{failed(cloud.NoCapacity)}, nil, "NoCapacity"},
		"no quota, after a while":   {[]cloud.OperationStatus{soon, soon, failed(cloud.NoQuota)}, nil, "NoQuota"},
		"no capacity, read again":   {[]cloud.OperationStatus{soon, failed(cloud.NoCapacity)}, &cloud.ThrottledError{RetryAfter: time.Millisecond}, "NoCapacity"},
		"an error without a reason": {[]cloud.OperationStatus{{Done: true, Err: errors.New("internal error")}}, nil, "Unclear"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(g *v1alpha1.NodeGroup) {
				g.Spec.ScaleUp.Policy, g.Spec.MaxSize = v1alpha1.FirstTemplate, new(int32(3))
			})
			f.pool.change(func() { f.pool.templates = []string{"spot", "m4"} })
			u := &failingLater{pool: f.pool, template: "spot", outcomes: c.outcomes, unread: c.unread}
			f.options.Clouds["pool"] = u
			f.addUnschedulable("a")
			f.reconcile()
			f.calls.Wait()
			for range 4 {
				f.reconcile()
				f.calls.Wait()
			}
			got := f.pool.launches()
			if len(got) != 2 || got[0].Template != "spot" || got[1].Template != "m4" || got[1].Count != 1 {
				t.Errorf("launches are %v, want one of spot, and one of m4 instead", got)
			}
			s := f.status()
			if len(s.BackOffs) != 1 || s.BackOffs[0].Template != "spot" || s.BackOffs[0].Reason != c.reason {
				t.Errorf("status is %+v, want spot backed off for %s", s, c.reason)
			}
			if s.Provisioning != 1 {
				t.Errorf("%d instances are provisioning, want that of m4 alone", s.Provisioning)
			}
		})
	}
}

func TestSuccessfulOperationIsFollowedToItsEnd(t *testing.T) {
	f := newFixture(t, nil)
	u := &failingLater{pool: f.pool, template: "m4", outcomes: []cloud.OperationStatus{{RetryAfter: time.Millisecond}, {Done: true}}}
	f.options.Clouds["pool"] = u
	f.addUnschedulable("a")
	f.reconcile()
	f.calls.Wait()
	for range 2 {
		f.reconcile()
	}
	if s := f.status(); u.asked.Load() != 2 || len(f.pool.launches()) != 1 || s.Provisioning != 1 || len(s.BackOffs) != 0 {
		t.Errorf("asked %d times, launches %v, status %+v; want the instance provisioning", u.asked.Load(), f.pool.launches(), s)
	}
}

// hidingSize is a cloud that does not show a launch in its size or its instances while the operation runs.
type hidingSize struct{ *failingLater }

func (h hidingSize) Group(ctx context.Context, name string) (cloud.Group, error) {
	return h.pool.Group(ctx, name)
}

func TestI5RunningOperationIsNotLaunchedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.pollInterval = minPollInterval
		u := hidingSize{&failingLater{pool: f.pool, template: "m4", outcomes: append(slices.Repeat([]cloud.OperationStatus{{}}, 60), cloud.OperationStatus{Done: true})}}
		f.options.Clouds["pool"] = u
		f.addUnschedulable("a")
		for range 50 {
			f.reconcile()
			time.Sleep(10 * time.Second)
		}
		if s := f.status(); len(f.pool.launches()) != 1 || s.Provisioning != 1 || len(s.BackOffs) != 0 {
			t.Errorf("%d launches, status %+v; want the one, provisioning", len(f.pool.launches()), s)
		}
		f.calls.Wait()
		f.reconcile()
		if s := f.status(); s.Provisioning != 0 || len(s.BackOffs) != 1 || s.BackOffs[0].Reason != launch.Failed {
			t.Errorf("status %+v; want a back-off once the operation is over and nothing has come", s)
		}
	})
}

func TestOperationIsPolledAtTheMinimumInterval(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration
		err   error
		least int
		most  int
	}{
		"no interval":                  {0, nil, 50, 91},
		"1 ms":                         {time.Millisecond, nil, 50, 91},
		"a negative interval":          {-time.Hour, nil, 50, 91},
		"throttled for 1 ms":           {0, &cloud.ThrottledError{RetryAfter: time.Millisecond}, 50, 91},
		"a longer interval":            {time.Minute, nil, 10, 16},
		"longer than the join timeout": {1000 * time.Hour, nil, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &failingLater{outcomes: append(slices.Repeat([]cloud.OperationStatus{{RetryAfter: c.after}}, 200), cloud.OperationStatus{Done: true}), always: c.err}
				g := &managedGroup{GroupSnapshot: nodegroup.GroupSnapshot{Group: &v1alpha1.NodeGroup{}}}
				began := time.Now()
				New(Options{}).pollOperationUntilDone(t.Context(), g, plan.Launch{}, "1", u, cloud.Operation{ID: "operation"})
				if n := int(u.asked.Load()); n < c.least || n > c.most {
					t.Errorf("asked %d times in %s, want %d to %d", n, time.Since(began), c.least, c.most)
				}
			})
		})
	}
}

// resizable is a cloud that counts what it accepts, later finds no capacity, and keeps the size. A second request for
// the same size creates the missing instances if there is capacity, unless the cloud ignores it.
type resizable struct {
	*pool
	counted int
	room    bool
	ignores bool
}

func (r *resizable) Group(ctx context.Context, name string) (cloud.Group, error) {
	g, err := r.pool.Group(ctx, name)
	defer r.lock()()
	g.Size, g.CanRetryFailed = r.counted, true
	return g, err
}

func (r *resizable) Grow(_ context.Context, _ string, o cloud.LaunchRequest) (op cloud.Operation, err error) {
	defer r.lock()()
	r.orders = append(r.orders, o)
	same := o.RetryFailed == o.Count
	r.counted += o.Count - o.RetryFailed
	switch {
	case !r.room:
		op.ID = "operation"
	case !r.ignores || !same:
		r.launch(r.counted-len(r.machines), o.Template)
	}
	return op, nil
}

func (r *resizable) Status(context.Context, cloud.Operation) (cloud.OperationStatus, error) {
	return cloud.OperationStatus{Done: true, Err: &cloud.RefusedError{Reason: cloud.NoCapacity, Err: errors.New("it has none")}}, nil
}

// reconcileFor reconciles once per minute for the time d.
func (f *fixture) reconcileFor(d time.Duration) {
	f.t.Helper()
	for range d / time.Minute {
		time.Sleep(time.Minute)
		f.reconcile()
		f.calls.Wait()
	}
}

// restoreCapacity gives the cloud capacity. It reconciles until an instance exists, and as long afterwards as no instance is
// deleted.
func (f *fixture) restoreCapacity(r *resizable) {
	f.t.Helper()
	f.pool.change(func() { r.room = true })
	for range 40 {
		if f.reconcileFor(time.Minute); len(f.pool.machines) > 0 {
			break
		}
	}
	f.reconcileFor(10 * time.Minute)
}

func TestI5RetryUsesTheSizeThatCountsTheFailedLaunch(t *testing.T) {
	for name, most := range map[string]int32{"below the maximum": 10, "at the maximum": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.MaxSize = &most })
				r := &resizable{pool: f.pool}
				f.options.Clouds["pool"] = r
				f.addUnschedulable("a")
				f.reconcileFor(4 * time.Hour)
				if n := len(f.pool.launches()); n < 6 || r.counted != 1 {
					t.Fatalf("%d launches, and the size is %d; want one launch after each back-off, and a size of 1", n, r.counted)
				}
				if s := f.status(); len(s.BackOffs) != 1 || s.BackOffs[0].Reason != string(cloud.NoCapacity) || s.Provisioning != 0 {
					t.Errorf("status is %+v, want a back-off for NoCapacity and nothing provisioning", s)
				}
				f.restoreCapacity(r)
				if n := len(f.pool.machines); n != 1 || r.counted != 1 {
					t.Errorf("%d instances and a size of %d, want the one that is needed", n, r.counted)
				}
			})
		})
	}
}

func TestLaunchRaisesTheSizeOnlyBeyondUnmadeInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		r := &resizable{pool: f.pool}
		f.options.Clouds["pool"] = r
		f.addUnschedulable("a")
		f.reconcileFor(time.Hour)
		f.addUnschedulable("b", "c")
		f.restoreCapacity(r)
		if n := len(f.pool.machines); n != 3 || r.counted != 3 {
			t.Errorf("%d instances and a size of %d, want 3 for 3 pods", n, r.counted)
		}
	})
}

func TestIgnoredRetryOfTheSameSizeIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		r := &resizable{pool: f.pool, ignores: true}
		f.options.Clouds["pool"] = r
		f.addUnschedulable("a")
		f.reconcileFor(time.Hour)
		f.pool.change(func() { r.room = true })
		f.reconcileFor(2 * time.Hour)
		if r.counted != 1 {
			t.Errorf("the size is %d, want 1", r.counted)
		}
		if s := f.status(); len(s.BackOffs) != 1 || !strings.Contains(s.BackOffs[0].Message, "lower the size to the existing instances") {
			t.Errorf("status is %+v, want a back-off that says what to do", s)
		}
	})
}
