package provisioning

import (
	"context"
	"errors"
	"slices"
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
)

// staleGroups lists the groups like a cache without the last write.
type staleGroups struct{ before []v1alpha1.NodeGroup }

func (l staleGroups) List(context.Context) ([]v1alpha1.NodeGroup, error) { return l.before, nil }

// launchReplacement launches an instance like a replacement after a notice.
func (f *fixture) launchReplacement(node string) error {
	f.t.Helper()
	var g v1alpha1.NodeGroup
	if err := f.client.Get(f.t.Context(), client.ObjectKey{Name: "web"}, &g); err != nil {
		f.t.Fatal(err)
	}
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
				before, err := f.options.Groups.List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := f.launchReplacement("n1"); err != nil {
					t.Fatal(err)
				}
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
	if err := f.client.Get(f.t.Context(), client.ObjectKey{Name: "web"}, &g); err != nil {
		f.t.Fatal(err)
	}
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
			if err := f.launchReplacement("n1"); err != nil {
				t.Fatal(err)
			}
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
			if err := f.options.Launches.RemoveLaunch(t.Context(), g, l.ID); err != nil {
				t.Fatal(err)
			}
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
		if err := f.launchReplacement("n1"); err != nil {
			t.Fatal(err)
		}
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
				if err := f.client.Create(t.Context(), c.lost); err != nil {
					t.Fatal(err)
				}
			}
			f.reconcileAfterRead()
			f.reconcile()
			if n := len(f.pool.launches()); n != c.want {
				t.Errorf("%d launches, want %d", n, c.want)
			}
		})
	}
}

// TestI8FailedReplacementInstanceIsDeletedAfterARestart ends the manager between the result of the launch and the
// deletion.
func TestI8FailedReplacementInstanceIsDeletedAfterARestart(t *testing.T) {
	f := newFixture(t, nil)
	f.reconcileAfterRead()
	if err := f.launchReplacement("n1"); err != nil {
		t.Fatal(err)
	}
	f.reconcileTimes(2)
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "group"}}
	err := f.options.Launches.Update(t.Context(), g, func(s *v1alpha1.ProvisioningStatus) error {
		l := &s.Launches[0]
		l.State, l.Reason, l.Instances[0].Since = v1alpha1.LaunchFailed, launch.NeverJoined, metav1.NewTime(time.Now().Add(-time.Hour))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f.states = map[string]*groupState{}
	f.reconcileTimes(1)
	f.makeOverdue()
	f.expectDeleted("id-0")
}

// TestLaunchWithFutureTimesEnds sets the clock back after the cloud's answer. Then the cloud drops the launch.
func TestLaunchWithFutureTimesEnds(t *testing.T) {
	for name, restart := range map[string]bool{"restart": true, "same process": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, nil)
				f.options.Clouds["pool"] = hidingSize{&failingLater{pool: f.pool, template: "m4", outcomes: []cloud.OperationStatus{{Done: true}}}}
				f.reconcileAfterRead()
				if err := f.launchReplacement("n1"); err != nil {
					t.Fatal(err)
				}
				if restart {
					f.states = map[string]*groupState{}
				}
				g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "group"}}
				future := metav1.NewTime(time.Now().Add(48 * time.Hour)).Rfc3339Copy()
				err := f.options.Launches.Update(t.Context(), g, func(s *v1alpha1.ProvisioningStatus) error {
					s.Launches[0].RequestedAt, s.Launches[0].AnsweredAt, s.Launches[0].OperationID = future, &future, ""
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				for range 30 {
					f.reconcile()
					f.calls.Wait()
					time.Sleep(time.Minute)
				}
				if l := f.replacementLaunch(); l == nil || l.IsOpen() {
					t.Errorf("the launch is %+v, want it to have failed", l)
				}
			})
		})
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
		if err := f.launchReplacement("n1"); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			f.reconcile()
			time.Sleep(time.Minute)
		}
		if l := f.replacementLaunch(); l == nil || l.Reason != launch.InstanceVanished {
			t.Errorf("the launch is %+v, want it Failed as %s", l, launch.InstanceVanished)
		}
	})
}
