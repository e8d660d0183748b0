package provisioning

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// blockLaunches blocks launches in the cloud until the returned function is called.
func (f *fixture) blockLaunches() (answer func()) {
	f.t.Helper()
	return f.blockCloud(func(until chan struct{}) { f.pool.busy = until })
}

// blockReads blocks reads in the cloud until the returned function is called.
func (f *fixture) blockReads() (answer func()) {
	f.t.Helper()
	return f.blockCloud(func(until chan struct{}) { f.pool.silent = until })
}

// blockDeletions blocks reads of single instances until the returned function is called. Other calls are answered.
func (f *fixture) blockDeletions() (answer func()) {
	f.t.Helper()
	answer = f.blockCloud(func(until chan struct{}) { f.pool.stuck = until })
	f.answerTimeout = time.Minute
	return answer
}

func (f *fixture) blockCloud(set func(chan struct{})) (release func()) {
	f.t.Helper()
	until := make(chan struct{})
	f.pool.change(func() { set(until) })
	f.answerTimeout = 0
	release = sync.OnceFunc(func() {
		f.pool.change(func() { set(nil) })
		close(until)
		f.calls.Wait()
		f.answerTimeout = time.Minute
	})
	f.t.Cleanup(release)
	return release
}

func (f *fixture) deletionChecks() []string {
	defer f.pool.lock()()
	return slices.Clone(f.pool.looked)
}

func (f *fixture) readCount() int { defer f.pool.lock()(); return f.pool.reads }

func (f *fixture) launchCount() int { defer f.pool.lock()(); return f.pool.asked }

func (f *fixture) reconcileAfterRead() {
	f.t.Helper()
	f.reconcile() // the group is known
	f.calls.Wait()
}

func TestUnansweredLaunchDelaysNoLaterPod(t *testing.T) {
	f := newFixture(t, nil)
	f.reconcileAfterRead()
	answer := f.blockLaunches()
	for i, pod := range []string{"a", "b", "c"} {
		f.addUnschedulable(pod)
		f.reconcile()
		f.waitUntil("a machine for pod "+pod+" is asked for", func() bool { return f.launchCount() == i+1 })
	}
	f.reconcile()
	if s := f.status(); s.Provisioning != 3 || f.launchCount() != 3 {
		t.Errorf("%d launches, and status is %+v: want three, with an instance each provisioning", f.launchCount(), s)
	}
	answer()
	for range 2 {
		f.reconcile()
	}
	if got := f.pool.launches(); len(got) != 3 || f.launchCount() != 3 {
		t.Errorf("launches are %v", got)
	}
	if s := f.status(); s.Provisioning != 3 || len(s.Awaited) != 3 {
		t.Errorf("status is %+v, want three instances that are ours", s)
	}
	if notes := f.eventNotes(eventBackedOff); len(notes) > 0 {
		t.Errorf("Events are %q", notes)
	}
}

func TestI5UnansweredLaunchesCountTowardsMaxSize(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.MaxSize = new(int32(2)) })
	f.reconcileAfterRead()
	answer := f.blockLaunches()
	f.addUnschedulable("a", "b")
	f.reconcile()
	f.addUnschedulable("c")
	for range 3 {
		f.reconcile()
		f.waitUntil("the cloud was asked", func() bool { return f.launchCount() == 1 })
	}
	answer()
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Count != 2 {
		t.Errorf("launches are %v, want one of 2", got)
	}
}

func TestLateRefusalLaunchesNextTemplate(t *testing.T) {
	f := newFixtureWithoutSpot(t)
	f.reconcileAfterRead()
	answer := f.blockLaunches()
	f.addUnschedulable("a")
	f.reconcile()
	f.reconcile()
	if s := f.status(); s.Provisioning != 1 || len(s.BackOffs) != 0 {
		t.Fatalf("status is %+v before the answer", s)
	}
	answer()
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Template != "m4" {
		t.Errorf("launches are %v, want one of m4", got)
	}
	if s := f.status(); s.Provisioning != 1 || len(s.BackOffs) != 1 || s.BackOffs[0].Template != "spot" {
		t.Errorf("status is %+v, want spot backed off", s)
	}
}

func TestI7FailedLaunchRereadsGroupBeforeTheNext(t *testing.T) {
	f := newFixture(t, nil)
	f.reconcileAfterRead()
	f.pool.change(func() { f.pool.refuse["m4"] = &cloud.ThrottledError{Err: errors.New("429")} })
	f.addUnschedulable("a")
	f.reconcile()
	f.states["web"].backOffs = map[string]v1alpha1.BackOff{} // as after their end
	f.pool.change(func() { f.pool.refuse = nil })
	answer := f.blockReads()
	f.reconcile()
	if got := f.launchCount(); got != 1 {
		t.Fatalf("%d launches, the second before the group was read", got)
	}
	answer()
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 {
		t.Errorf("launches are %v once it has been read", got)
	}
}

func TestThrottledCloudIsNotReadUntilItAllows(t *testing.T) {
	const wish = 7 * time.Minute
	throttled := fmt.Errorf("creating a server: %w", &cloud.ThrottledError{RetryAfter: wish, Err: errors.New("429")})
	for name, set := range map[string]func(*pool){
		"when the group is read":       func(p *pool) { p.unread = throttled },
		"when templates are listed":    func(p *pool) { p.unlisted = throttled },
		"when an instance is launched": func(p *pool) { p.refuse["m4"] = throttled },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pool.change(func() { set(f.pool) })
			f.addUnschedulable("a")
			from := time.Now()
			for range 3 {
				f.reconcile()
			}
			check.Is(t, 1, f.readCount())
			m := f.states["web"]
			if b, there := m.backOffs["m4"]; there != (f.launchCount() > 0) || there && b.Until.Before(&metav1.Time{Time: from.Add(wish)}) {
				t.Errorf("after %d launches the template is backed off until %s, want %s at the least from %s", f.launchCount(), b.Until, wish, from)
			}
			f.pool.change(func() { f.pool.unread, f.pool.unlisted, f.pool.refuse = nil, nil, nil })
			m.quietUntil, m.backOffs = time.Now(), map[string]v1alpha1.BackOff{} // as after their end
			f.reconcile()
			if got := f.pool.launches(); len(got) != 1 {
				t.Errorf("launches are %v after that", got)
			}
		})
	}
}

func TestBackOffStartsWhenTheLaunchIsRefused(t *testing.T) {
	f := newFixtureWithoutSpot(t)
	f.reconcileAfterRead()
	answer := f.blockLaunches()
	f.addUnschedulable("a")
	f.reconcile()
	f.waitUntil("the cloud was asked", func() bool { return f.launchCount() == 1 })
	answered := time.Now()
	answer()
	f.reconcile()
	b := f.states["web"].backOffs["spot"]
	if least := answered.Add(launch.BackOffDuration(b.Reason, 1)); b.Until.Before(&metav1.Time{Time: least}) {
		t.Errorf("it is backed off until %s, want %s at the least", b.Until, least)
	}
}

func TestSlowCloudReadDelaysNoLaunch(t *testing.T) {
	f := newFixture(t, nil)
	f.reconcileAfterRead()
	answer := f.blockReads()
	f.addUnschedulable("a")
	f.reconcile()
	f.waitUntil("a machine is asked for", func() bool { return f.launchCount() == 1 })
	f.reconcile()
	answer()
	for range 2 {
		f.reconcile()
	}
	if got := f.pool.launches(); len(got) != 1 {
		t.Errorf("launches are %v, want one", got)
	}
	if notes := f.eventNotes(eventBackedOff); len(notes) > 0 {
		t.Errorf("Events are %q", notes)
	}
}

func TestLaunchRequestIsRepeatedOnlyAfterItsLaunchFailed(t *testing.T) {
	f := newFixtureWithoutSpot(t)
	f.reconcileAfterRead()
	answer := f.blockLaunches()
	f.options.LaunchRequests.Add(plan.LaunchRequest{ID: "w", Group: "web", Count: 1})
	for range 3 {
		f.reconcile()
		f.waitUntil("the cloud was asked", func() bool { return f.launchCount() == 1 })
	}
	answer()
	f.reconcile()
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Template != "m4" {
		t.Errorf("launches are %v, want one of m4", got)
	}
	f.reconcile()
	if open := f.options.LaunchRequests.dropExpiredAndListOpen(); len(open) != 0 || f.launchCount() != 2 {
		t.Errorf("open is %v after %d launches", open, f.launchCount())
	}
}

// isRequeued reports whether the next reconcile starts soon, and resets that.
func (f *fixture) isRequeued() bool {
	select {
	case <-f.wake:
		return true
	default:
		return false
	}
}

func TestLateReplyTriggersReconcile(t *testing.T) {
	f := newFixtureWithoutSpot(t)
	answer := f.blockReads()
	f.reconcile() // the group was never read
	f.isRequeued()
	answer()
	check.Not(t, !f.isRequeued(), "a group that has been read at last waits for the next reconcile")
	f.reconcile()
	answer = f.blockReads()
	f.reconcile()
	f.isRequeued()
	answer()
	check.Not(t, f.isRequeued(), "a group that was read again has a reconcile begin")
	f.reconcile()
	answer = f.blockLaunches()
	f.addUnschedulable("a")
	f.reconcile()
	f.isRequeued()
	answer()
	check.Not(t, !f.isRequeued(), "a launch that was refused at last waits for the next reconcile")
}

func TestUnansweredDeletionDelaysNoLaunchAndIsNotRepeated(t *testing.T) {
	f := newFixtureWithFailedInstance(t)
	f.pool.change(func() { f.pool.templates = []string{"m4", "m8"} }) // m4 is in a back-off
	answer := f.blockDeletions()
	for i, pod := range []string{"b", "c", "d"} {
		f.addUnschedulable(pod)
		f.reconcile()
		f.waitUntil("a machine for pod "+pod+" is asked for", func() bool { return f.launchCount() == i+2 })
	}
	f.waitUntil("the machine is asked for", func() bool { return len(f.deletionChecks()) > 0 })
	if got := f.deletionChecks(); len(got) != 1 {
		t.Errorf("instances that are deleted: %q", got)
	}
	answer()
	check.Not(t, !f.isRequeued(), "what may come in the place of an instance that is deleted waits for the next reconcile")
	f.reconcile()
	if notes := f.eventNotes(eventInstanceDeleted); !slices.Equal(f.pool.deleted, []string{"id-0"}) || len(notes) != 1 {
		t.Errorf("deleted is %v, Events are %q", f.pool.deleted, notes)
	}
}

func TestManyFailedInstancesAreDeletedInBatches(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		g.Spec.MinSize, g.Spec.MaxSize = 2*maxConcurrentDeletions+1, new(int32(100))
	})
	f.reconcile()
	f.reconcile() // finds and records the instances
	f.pool.change(func() {
		for i := range f.pool.machines {
			f.pool.machines[i].State = cloud.Failed
		}
	})
	answer := f.blockDeletions()
	for range 3 {
		f.reconcile()
		f.waitUntil("machines are asked for", func() bool { return len(f.deletionChecks()) == maxConcurrentDeletions })
	}
	answer()
	for range 2 {
		f.reconcile()
		f.calls.Wait()
	}
	check.Is(t, 2*maxConcurrentDeletions+1, len(f.pool.deleted))
}

func TestRefusalDuringReadRereadsGroupSoon(t *testing.T) {
	f := newFixture(t, nil)
	f.reconcileAfterRead()
	f.pool.change(func() { f.pool.refuse["m4"] = &cloud.ThrottledError{Err: errors.New("429")} })
	read := f.blockReads()
	f.addUnschedulable("a")
	f.reconcile() // the cloud is being read, and then refuses the launch
	f.waitUntil("the order is refused", func() bool { f.applyReplies(f.lastGroups); return f.states["web"].needsReread() })
	f.reconcile()
	f.isRequeued()
	read()
	check.Not(t, !f.isRequeued(), "a group that nothing is launched for until it has been read waits for the next reconcile")
	f.applyReplies(f.lastGroups)
	check.Not(t, !f.isRequeued(), "what was read is older than the refusal, and the next reconcile does not begin soon")
}

func TestInstanceThatJoinedSinceTheReadCountsOnce(t *testing.T) {
	f := newFixture(t, nil)
	f.addUnschedulable("a")
	f.reconcile()
	f.reconcile()
	if s := f.status(); s.Provisioning != 1 {
		t.Fatalf("status is %+v, want the instance", s)
	}
	f.setNode(newRegisteredNode(func(*corev1.Node) {}))
	f.blockReads()
	f.reconcile()
	if s := f.status(); s.Provisioning != 0 || f.launchCount() != 1 {
		t.Errorf("%d launches, and status is %+v: want the instance as its Node alone", f.launchCount(), s)
	}
}

// TestInstanceThatJoinsDuringTheReadCountsAsProvisioning has an instance with a Node that joins after the reconcile
// began.
func TestInstanceThatJoinsDuringTheReadCountsAsProvisioning(t *testing.T) {
	f := newFixture(t, nil)
	f.addUnschedulable("a")
	f.reconcile()
	f.reconcile()
	answer := f.blockReads()
	f.answerTimeout = time.Minute
	reads, looked := f.readCount(), make(chan error)
	go func() {
		_, err := f.Controller.reconcile(t.Context(), f.sources, true)
		looked <- err
	}()
	f.waitUntil("the cloud is being read", func() bool { return f.readCount() > reads })
	f.setNode(newRegisteredNode(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	}))
	answer()
	must.NoError(t, <-looked)
	if s := f.status(); s.Provisioning != 0 || f.launchCount() != 1 {
		t.Errorf("%d launches, and status is %+v: want the instance as its Node alone", f.launchCount(), s)
	}
}

// TestLaunchesAfterAJoinHaveTheirOwnNames does not read the cloud meanwhile, so that no instance is listed yet.
func TestLaunchesAfterAJoinHaveTheirOwnNames(t *testing.T) {
	f := newFixture(t, nil)
	f.addUnschedulable("a")
	f.reconcileTimes(2)
	f.blockReads()
	f.addUnschedulable("b")
	f.reconcile()
	f.waitUntil("a second machine is asked for", func() bool { return f.launchCount() == 2 })
	f.setNode(newRegisteredNode(func(*corev1.Node) {}))
	f.addUnschedulable("c")
	f.reconcile()
	f.waitUntil("a third machine is asked for", func() bool { return f.launchCount() == 3 })
	f.reconcileTimes(2)
	seen := map[string]bool{}
	for _, w := range f.states["web"].tracking.Provisioning {
		check.Not(t, seen[w.ID], "two instances that are awaited are called %s", w.ID)
		seen[w.ID] = true
	}
	if f.launchCount() != 3 || len(seen) != 2 {
		t.Errorf("%d launches, and %v provisioning: want three, and the two that have no Node", f.launchCount(), seen)
	}
}

// changeCloudGroup gives the group another cloud group.
func (f *fixture) changeCloudGroup() {
	f.t.Helper()
	var g v1alpha1.NodeGroup
	must.NoError(f.t, f.client.Get(f.t.Context(), client.ObjectKey{Name: "web"}, &g))
	g.Spec.Cloud.Group = "other"
	must.NoError(f.t, f.client.Update(f.t.Context(), &g))
}

// TestRecordOfAnotherCloudGroupIsRemoved has a record with a launch for pods, a launch for a PoolUpdate and a back-off of the
// earlier cloud group.
func TestRecordOfAnotherCloudGroupIsRemoved(t *testing.T) {
	record := &v1alpha1.ProvisioningStatus{
		BackOffs: []v1alpha1.BackOff{{Template: "m4", Reason: launch.NeverJoined, Message: "of web", Failures: 1, Until: metav1.NewTime(time.Now().Add(20 * time.Minute))}},
		Learned:  []v1alpha1.LearnedTemplate{{Name: "old"}},
		Launches: []v1alpha1.Launch{
			{ID: "for-pods", Template: "m4", State: v1alpha1.LaunchRequested, Count: 5, RequestedAt: metav1.Now()},
			{ID: "for-update", Template: "m4", State: v1alpha1.LaunchRequested, Count: 1, RequestedAt: metav1.Now(), For: &v1alpha1.LaunchOwner{Kind: "PoolUpdate", Name: "u", UID: "u"}},
		},
	}
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Status.Provisioning = record })
	f.pool.change(func() { f.pool.names = true }) // the instances belong to the new launch
	f.reconcileAfterRead()
	check.Not(t, f.states["web"].backOffs["m4"].Message != "of web" || len(f.states["web"].pending) != 2, "after a restart: %+v", f.states["web"])
	f.changeCloudGroup()
	f.addUnschedulable("a", "b", "c")
	f.reconcileTimes(3)
	s := f.status()
	check.Not(t, len(s.BackOffs) != 0 || len(s.Learned) != 0, "the record is %+v, want no back-off and no template of the other cloud group", s)
	check.Not(t, len(s.Orders) != 1 || s.Orders[0].ID != "for-update", "the record is %+v, want the launch for the PoolUpdate", s)
	if got := f.pool.launches(); len(got) != 1 || got[0].Count != 2 {
		t.Errorf("launches are %v, want one of 2 instances: the other launch provides the third", got)
	}
}

// TestI5RecreatedGroupKeepsItsLaunches has a cloud that has not created the instance of a launch yet.
func TestI5RecreatedGroupKeepsItsLaunches(t *testing.T) {
	f := newFixture(t, nil)
	f.reconcileAfterRead()
	answer := f.blockLaunches()
	f.addUnschedulable("a")
	f.reconcile()
	f.waitUntil("the cloud is asked", func() bool { return f.launchCount() == 1 })
	var g v1alpha1.NodeGroup
	must.NoError(t, f.client.Get(t.Context(), client.ObjectKey{Name: "web"}, &g))
	must.NoError(t, f.client.Delete(t.Context(), g.DeepCopy()))
	g.UID, g.ResourceVersion, g.Status.Provisioning = "anew", "", nil
	must.NoError(t, f.client.Create(t.Context(), &g))
	for range 2 {
		f.reconcile()
		f.waitUntil("the cloud is read", func() bool { f.applyReplies(f.lastGroups); return !f.states["web"].isReading })
	}
	if s := f.status(); s.Provisioning != 1 || len(s.Orders) != 1 {
		t.Errorf("the new record is %+v, want the launch", s)
	}
	answer()
	f.reconcileTimes(2)
	if s := f.status(); f.launchCount() != 1 || len(s.Awaited) != 1 {
		t.Errorf("%d launches, and the record is %+v: want one, with its instance", f.launchCount(), s)
	}
}

// TestStateOfAnotherCloudGroupIsDropped has a cloud that does not answer after the change.
func TestStateOfAnotherCloudGroupIsDropped(t *testing.T) {
	remove := func(f *fixture, g *v1alpha1.NodeGroup) {
		must.NoError(f.t, f.client.Delete(f.t.Context(), g.DeepCopy()))
	}
	create := func(f *fixture, g *v1alpha1.NodeGroup, cloudGroup string) {
		anew := g.DeepCopy()
		anew.UID, anew.ResourceVersion, anew.Status.Provisioning, anew.Spec.Cloud.Group = "anew", "", nil, cloudGroup
		must.NoError(f.t, f.client.Create(f.t.Context(), anew))
	}
	for name, change := range map[string]func(*fixture, *v1alpha1.NodeGroup){
		"deleted, and created later": func(f *fixture, g *v1alpha1.NodeGroup) {
			remove(f, g)
			f.reconcile()
			create(f, g, "web")
		},
		"created anew with another cloud group": func(f *fixture, g *v1alpha1.NodeGroup) {
			remove(f, g)
			create(f, g, "other")
		},
		"another cloud group": func(f *fixture, _ *v1alpha1.NodeGroup) { f.changeCloudGroup() },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.reconcileAfterRead()
			earlier := f.lastGroups[0]
			change(f, earlier.Group)
			f.addUnschedulable("a")
			f.blockReads()
			f.queueReply(earlier, false, func(*managedGroup) { t.Error("the new group of this name got it") })
			f.reconcile()
			check.Not(t, f.states["web"] == earlier.state, "the new group has the memory of the earlier one")
			check.Is(t, 0, f.launchCount())
		})
	}
}
