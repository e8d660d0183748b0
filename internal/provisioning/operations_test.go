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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
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
			check.Is(t, 1, s.Provisioning)
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
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
			u := &failingLater{outcomes: append(slices.Repeat([]cloud.OperationStatus{{RetryAfter: c.after}}, 200), cloud.OperationStatus{Done: true}), always: c.err}
			g := &managedGroup{GroupSnapshot: nodegroup.GroupSnapshot{Group: &v1alpha1.NodeGroup{}}}
			began := time.Now()
			New(Options{}).pollOperationUntilDone(t.Context(), g, plan.Launch{}, "1", u, cloud.Operation{ID: "operation"})
			if n := int(u.asked.Load()); n < c.least || n > c.most {
				t.Errorf("asked %d times in %s, want %d to %d", n, time.Since(began), c.least, c.most)
			}
		}))
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
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
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
		}))
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
		check.Is(t, 1, r.counted)
		if s := f.status(); len(s.BackOffs) != 1 || !strings.Contains(s.BackOffs[0].Message, "lower the size to the existing instances") {
			t.Errorf("status is %+v, want a back-off that says what to do", s)
		}
	})
}

// staleGroups lists the groups like a cache without the last write.
type staleGroups struct{ before []v1alpha1.NodeGroup }

func (l staleGroups) List(context.Context) ([]v1alpha1.NodeGroup, error) { return l.before, nil }

// launchReplacement launches an instance like a replacement after a notice.
func (f *fixture) launchReplacement(node string) error {
	f.t.Helper()
	var g v1alpha1.NodeGroup
	must.NoError(f.t, f.client.Get(f.t.Context(), client.ObjectKey{Name: "web"}, &g))
	_, err := f.options.Launches.RequestInstances(f.t.Context(), &g, f.options.Clouds["pool"], launch.LaunchRequest{Count: 1, Templates: []string{"m4"}, Owner: v1alpha1.LaunchOwner{
		Kind: v1alpha1.LaunchForRetirement, Name: node, UID: types.UID(node),
	}})
	return err
}

// TestI5NoticeAndUnschedulablePodsLaunchOnce launches a replacement after the cloud was last read, and then a pod becomes unschedulable.
func TestI5NoticeAndUnschedulablePodsLaunchOnce(t *testing.T) {
	for name, lags := range map[string]bool{"the cache knows the launch": false, "the cache lags": true} {
		for limit, maximum := range map[string]int32{"below the maximum": 10, "at the maximum": 1} {
			t.Run(name+", "+limit, func(t *testing.T) {
				f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.MaxSize = &maximum })
				f.reconcileAfterRead()
				before := must.Get(f.options.Groups.List(t.Context()))(t)
				must.NoError(t, f.launchReplacement("n1"))
				answer := f.blockReads()
				defer answer()
				f.answerTimeout = time.Millisecond
				f.addUnschedulable("a")
				current := f.options.Groups
				if lags {
					f.options.Groups = staleGroups{before}
				}
				if _, err := f.Controller.reconcile(t.Context(), f.sources, true); lags != errors.Is(err, errConcurrentLaunch) {
					t.Errorf("the reconcile ends with %v", err)
				}
				f.options.Groups = current
				f.reconcile()
				if n, s := len(f.pool.launches()), f.status(); n != 1 || s.Provisioning != 1 {
					t.Errorf("%d launches, and status is %+v; want the replacement to be for the pod", n, s)
				}
			})
		}
	}
}

// TestI5ReplacementCountsLaunchesForPods has a recorded launch without an answer, which counts for a replacement too.
func TestI5ReplacementCountsLaunchesForPods(t *testing.T) {
	one := int32(1)
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.MaxSize = &one })
	f.reconcileAfterRead()
	answer := f.blockLaunches()
	defer answer()
	f.addUnschedulable("a")
	f.answerTimeout = time.Millisecond
	f.reconcile()
	f.waitUntil("the cloud is asked", func() bool { return f.launchCount() == 1 })
	f.pool.change(func() { f.pool.busy = nil }) // another request is answered at once
	if err := f.launchReplacement("n1"); err == nil || f.launchCount() != 1 {
		t.Errorf("%v, and the cloud was asked %d times, want once", err, f.launchCount())
	}
}

// replacementLaunch returns the recorded launch of a replacement. It returns nil if there is none.
func (f *fixture) replacementLaunch() *v1alpha1.Launch {
	f.t.Helper()
	var g v1alpha1.NodeGroup
	must.NoError(f.t, f.client.Get(f.t.Context(), client.ObjectKey{Name: "web"}, &g))
	for _, l := range g.Status.Provisioning.Launches {
		if l.IsForRetirement() {
			return &l
		}
	}
	return nil
}

func TestReplacementLaunchIsKeptUntilItsResultIsRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		then      func(*fixture)
		state     v1alpha1.LaunchState
		reason    string
		instances int
	}{
		"its Node is usable":            {func(f *fixture) { f.joinAll(func(*corev1.Node) {}) }, v1alpha1.LaunchReady, "", 1},
		"its Node is not Ready":         {func(f *fixture) { f.setNode(newRegisteredNode(func(*corev1.Node) {})); f.reconcile(); f.makeOverdue() }, v1alpha1.LaunchFailed, launch.NeverReady, 1},
		"it has no Node":                {(*fixture).makeOverdue, v1alpha1.LaunchFailed, launch.NeverJoined, 1},
		"the cloud could not create it": {func(f *fixture) { f.failInstance("id-0") }, v1alpha1.LaunchFailed, launch.Failed, 1},
		"the cloud dropped it":          {func(f *fixture) { f.pool.change(func() { f.pool.machines = nil }) }, v1alpha1.LaunchFailed, launch.InstanceVanished, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.reconcileAfterRead()
			must.NoError(t, f.launchReplacement("n1"))
			f.reconcileTimes(2)
			if l := f.replacementLaunch(); l == nil || l.State != v1alpha1.LaunchProvisioning || len(l.Instances) != 1 {
				t.Fatalf("the launch is %+v, want it provisioning, with its instance", l)
			}
			c.then(f)
			f.reconcileTimes(2)
			l := f.replacementLaunch()
			if l == nil || l.State != c.state || l.Reason != c.reason || len(l.Instances) != c.instances {
				t.Fatalf("the launch is %+v, want %s, %q and %d instances", l, c.state, c.reason, c.instances)
			}
			f.states = map[string]*groupState{} // as after a restart
			f.reconcileTimes(2)
			if is := f.replacementLaunch(); is == nil || is.State != c.state || is.Reason != c.reason {
				t.Errorf("after a restart the launch is %+v, want %s, %q", is, c.state, c.reason)
			}
			g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "group"}}
			must.NoError(t, f.options.Launches.RemoveLaunch(t.Context(), g, l.ID))
			f.reconcileTimes(2)
			if is := f.replacementLaunch(); is != nil {
				t.Errorf("the launch is %+v, want none once its result is noted", is)
			}
		})
	}
}

func TestReplacementAndScaleUpShareBackOffs(t *testing.T) {
	noQuota := &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("no cores")}
	t.Run("of a replacement", func(t *testing.T) {
		f := newFixture(t, nil)
		f.reconcileAfterRead()
		f.pool.change(func() { f.pool.refuse["m4"] = noQuota })
		if err := f.launchReplacement("n1"); !errors.Is(err, noQuota) {
			t.Fatal(err)
		}
		f.pool.change(func() { f.pool.refuse = nil })
		f.addUnschedulable("a")
		f.reconcileTimes(2)
		if s := f.status(); f.launchCount() != 1 || len(s.BackOffs) != 1 || s.BackOffs[0].Reason != string(cloud.NoQuota) || s.Provisioning != 0 {
			t.Errorf("%d launches, status %+v; want the pod to wait for the back-off", f.launchCount(), s)
		}
	})
	t.Run("of scale-up", func(t *testing.T) {
		f := newFixture(t, nil)
		f.pool.change(func() { f.pool.refuse["m4"] = noQuota })
		f.addUnschedulable("a")
		f.reconcileTimes(2)
		f.pool.change(func() { f.pool.refuse = nil })
		var why *launch.NotRequestedError
		if err := f.launchReplacement("n1"); !errors.As(err, &why) || why.BackOff == nil || why.BackOff.Reason != string(cloud.NoQuota) || f.launchCount() != 1 {
			t.Errorf("%v after %d launches; want the replacement to wait for the back-off", err, f.launchCount())
		}
	})
}

// TestI5ReplacementStaysOpenWhileItsOperationRuns has a cloud that does not show the launch. Then the manager restarts meanwhile.
func TestI5ReplacementStaysOpenWhileItsOperationRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.pollInterval = minPollInterval
		f.options.Clouds["pool"] = hidingSize{&failingLater{pool: f.pool, template: "m4", outcomes: append(slices.Repeat([]cloud.OperationStatus{{}}, 60), cloud.OperationStatus{Done: true})}}
		f.reconcile()
		must.NoError(t, f.launchReplacement("n1"))
		for i := range 24 {
			f.reconcile()
			if i == 12 {
				f.states = map[string]*groupState{} // as after a restart
			}
			time.Sleep(10 * time.Second)
		}
		if l := f.replacementLaunch(); l == nil || !l.IsOpen() || l.OperationID == "" {
			t.Errorf("the launch is %+v, want it open", l)
		}
		f.calls.Wait()
		for range 9 {
			f.reconcile()
			time.Sleep(10 * time.Second)
		}
		if l := f.replacementLaunch(); l == nil || l.State != v1alpha1.LaunchFailed || l.Reason != launch.InstanceVanished || l.OperationID != "" {
			t.Errorf("the launch is %+v, want it failed once the operation is over and nothing has come", l)
		}
	})
}

var _ nodegroup.Groups = staleGroups{}

// TestI5MinSizeAndReplacementLaunchOnce has a group at its minimum that loses an instance after a notice. The manager
// reads the cloud first.
func TestI5MinSizeAndReplacementLaunchOnce(t *testing.T) {
	lost := func(change func(*v1alpha1.NodeRetirement)) *v1alpha1.NodeRetirement {
		rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1"}, Spec: v1alpha1.NodeRetirementSpec{
			NodeName: "n1", NodeUID: "node", ProviderID: "pool://lost", Group: "web", Notice: &v1alpha1.NoticeReference{},
		}}
		change(rt)
		return rt
	}
	inState := func(state v1alpha1.ReplacementState) func(*v1alpha1.NodeRetirement) {
		return func(rt *v1alpha1.NodeRetirement) { rt.Status.Replacement = &v1alpha1.Replacement{State: state} }
	}
	for name, c := range map[string]struct {
		lost   *v1alpha1.NodeRetirement
		policy v1alpha1.ReplacementPolicy
		want   int
	}{
		"nothing is retired":           {want: 1},
		"a replacement is wanted":      {lost: lost(func(*v1alpha1.NodeRetirement) {})},
		"the replacement waits":        {lost: lost(inState(v1alpha1.ReplacementWaiting))},
		"no replacement is needed":     {lost: lost(inState(v1alpha1.ReplacementNotNeeded)), want: 1},
		"the replacement failed":       {lost: lost(inState(v1alpha1.ReplacementFailed)), want: 1},
		"the policy is Never":          {lost: lost(func(*v1alpha1.NodeRetirement) {}), policy: v1alpha1.ReplaceNever, want: 1},
		"the retirement has no notice": {lost: lost(func(rt *v1alpha1.NodeRetirement) { rt.Spec.Notice = nil }), want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.MinSize, g.Spec.Replacement = 1, c.policy })
			if c.lost != nil {
				must.NoError(t, f.client.Create(t.Context(), c.lost))
			}
			f.reconcileAfterRead()
			f.reconcile()
			check.Is(t, c.want, len(f.pool.launches()))
		})
	}
}

// TestI8FailedReplacementInstanceIsDeletedAfterARestart ends the manager between the result of the launch and the
// deletion.
func TestI8FailedReplacementInstanceIsDeletedAfterARestart(t *testing.T) {
	f := newFixture(t, nil)
	f.reconcileAfterRead()
	must.NoError(t, f.launchReplacement("n1"))
	f.reconcileTimes(2)
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "group"}}
	f.pool.change(func() { f.pool.machines[0].Created = time.Now().Add(-time.Hour) })
	err := f.options.Launches.Update(t.Context(), g, func(s *v1alpha1.ProvisioningStatus) error {
		l := &s.Launches[0]
		l.State, l.Reason, l.Instances[0].Since = v1alpha1.LaunchFailed, launch.NeverJoined, metav1.NewTime(time.Now().Add(-time.Hour))
		return nil
	})
	must.NoError(t, err)
	f.states = map[string]*groupState{}
	f.reconcileTimes(1)
	f.makeOverdue()
	f.expectDeleted("id-0")
}

// TestLaunchWithFutureTimesEnds sets the clock back after the cloud's answer. Then the cloud drops the launch.
func TestLaunchWithFutureTimesEnds(t *testing.T) {
	for name, restart := range map[string]bool{"restart": true, "same process": false} {
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
			f := newFixture(t, nil)
			f.options.Clouds["pool"] = hidingSize{&failingLater{pool: f.pool, template: "m4", outcomes: []cloud.OperationStatus{{Done: true}}}}
			f.reconcileAfterRead()
			must.NoError(t, f.launchReplacement("n1"))
			if restart {
				f.states = map[string]*groupState{}
			}
			g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "group"}}
			future := metav1.NewTime(time.Now().Add(48 * time.Hour)).Rfc3339Copy()
			err := f.options.Launches.Update(t.Context(), g, func(s *v1alpha1.ProvisioningStatus) error {
				s.Launches[0].RequestedAt, s.Launches[0].AnsweredAt, s.Launches[0].OperationID = future, &future, ""
				return nil
			})
			must.NoError(t, err)
			for range 30 {
				f.reconcile()
				f.calls.Wait()
				time.Sleep(time.Minute)
			}
			if l := f.replacementLaunch(); l == nil || l.IsOpen() {
				t.Errorf("the launch is %+v, want it to have failed", l)
			}
		}))
	}
}

// TestLaunchEndsAfterItsOperationIsForgotten has a cloud that shows no instance and does not know the operation any
// more.
func TestLaunchEndsAfterItsOperationIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.pollInterval = minPollInterval
		f.options.Clouds["pool"] = hidingSize{&failingLater{pool: f.pool, template: "m4", always: &cloud.NotFoundError{Kind: "operation", Name: "operation"}}}
		f.reconcileAfterRead()
		must.NoError(t, f.launchReplacement("n1"))
		for range 5 {
			f.reconcile()
			time.Sleep(time.Minute)
		}
		if l := f.replacementLaunch(); l == nil || l.Reason != launch.InstanceVanished {
			t.Errorf("the launch is %+v, want it Failed as %s", l, launch.InstanceVanished)
		}
	})
}
