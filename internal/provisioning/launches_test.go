package provisioning

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// failInstance makes the cloud report that it could not create an instance.
func (f *fixture) failInstance(id string) {
	f.t.Helper()
	f.pool.change(func() {
		for i := range f.pool.machines {
			if f.pool.machines[i].ProviderID == id {
				f.pool.machines[i].State = cloud.Failed
				return
			}
		}
		f.t.Fatalf("there is no instance %s", id)
	})
}

// expectDeleted reconciles, and compares the deleted instances.
func (f *fixture) expectDeleted(want ...string) {
	f.t.Helper()
	f.reconcile()
	f.calls.Wait() // deletions run in the background
	defer f.pool.lock()()
	must.Not(f.t, !slices.Equal(f.pool.deleted, want), "deleted is %v, want %v", f.pool.deleted, want)
}

func TestInstancesOfAPartialLaunchAreOurs(t *testing.T) {
	for name, names := range map[string]bool{"by name": true, "by what has come": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pool.change(func() {
				f.pool.names, f.pool.partly = names, 1
				f.pool.refuse["m4"] = &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("quota of 4 cores is used up")}
			})
			f.addUnschedulable("a", "b")
			f.reconcile()
			f.reconcile()
			if s := f.status(); s.Provisioning != 1 || len(s.Awaited) != 1 || len(s.Orders) != 0 {
				t.Fatalf("status is %+v, want the instance that was made, and no order left", s)
			}
			if notes := f.eventNotes(eventBackedOff); len(notes) != 1 {
				t.Errorf("Events are %q, want one: the rest of the launch has failed already", notes)
			}
			f.failInstance("id-0")
			f.expectDeleted("id-0")
		})
	}
}

// endBackOffs ends all back-offs.
func (f *fixture) endBackOffs() {
	f.states["web"].backOffs = map[string]v1alpha1.BackOff{}
	f.pool.change(func() { f.pool.refuse = nil })
}

func TestLostAnswerExpectsItsInstancesUntilItSettles(t *testing.T) {
	f := newFixture(t, nil)
	f.pool.change(func() { f.pool.refuse["m4"] = errors.New("the connection was lost") })
	f.addUnschedulable("a")
	f.reconcile()
	f.endBackOffs()
	for range 3 {
		f.reconcile()
	}
	if s := f.status(); f.launchCount() != 1 || s.Provisioning != 1 {
		t.Fatalf("%d launches, and status is %+v: want one, with its instance provisioning", f.launchCount(), s)
	}
	f.pool.add(cloud.Instance{ProviderID: "late", Type: "m4", State: cloud.Pending, Created: time.Now()})
	f.reconcile()
	if s := f.status(); f.launchCount() != 1 || s.Provisioning != 1 || len(s.Awaited) != 1 {
		t.Fatalf("%d launches, and status is %+v: want the instance that came late", f.launchCount(), s)
	}
	f.failInstance("late")
	f.expectDeleted("late")
}

func TestI5LaunchMadeDespiteAnErrorIsNotRepeated(t *testing.T) {
	for name, answer := range map[string]error{
		"the answer was lost":                errors.New("the connection was lost"),
		"the answer came too late":           context.DeadlineExceeded,
		"the cloud reported a size conflict": &cloud.ThrottledError{RetryAfter: time.Millisecond, Err: errors.New("412")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.MaxSize = new(int32(4)) })
			f.pool.change(func() { f.pool.partly, f.pool.refuse["m4"] = 2, answer })
			f.addUnschedulable("a", "b")
			f.reconcile()
			f.endBackOffs()
			f.states["web"].quietUntil = time.Time{} // as after the pause
			for range 5 {
				f.reconcile()
			}
			if s := f.status(); f.launchCount() != 1 || s.Provisioning != 2 {
				t.Errorf("%d launches, and status is %+v: want one, with its two instances provisioning", f.launchCount(), s)
			}
		})
	}
}

func TestLostLaunchWithoutInstancesIsRepeated(t *testing.T) {
	f := newFixture(t, nil)
	f.pool.change(func() { f.pool.refuse["m4"] = errors.New("the connection was lost") })
	f.addUnschedulable("a")
	f.reconcile()
	f.endBackOffs()
	f.states["web"].pending[0].SettledAt = time.Now() // as after that time
	f.reconcile()
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || f.launchCount() != 2 {
		t.Errorf("launches are %v after %d calls, want another one", got, f.launchCount())
	}
	if notes := f.eventNotes(eventBackedOff); len(notes) != 1 {
		t.Errorf("Events are %q, want one", notes)
	}
}

func TestI8LaunchIsRecordedBeforeTheCloudIsAsked(t *testing.T) {
	f := newFixture(t, nil)
	f.reconcileAfterRead()
	answer := f.blockLaunches()
	f.addUnschedulable("a", "b")
	f.reconcile()
	f.waitUntil("the cloud is asked", func() bool { return f.launchCount() == 1 })
	if s := f.status(); len(s.Orders) != 1 || s.Orders[0].Template != "m4" || s.Orders[0].Count != 2 {
		t.Errorf("status is %+v, want the launch", s)
	}
	answer()
	f.reconcile()
	f.reconcile()
	if s := f.status(); len(s.Orders) != 0 || len(s.Awaited) != 2 {
		t.Errorf("status is %+v, want the instances instead of the launch", s)
	}
}

func TestI8InstancesOfALaunchAreOursAfterARestart(t *testing.T) {
	for name, c := range map[string]struct{ answered, names bool }{
		"restart before the answer":          {},
		"restart after the answer":           {answered: true},
		"restart after an answer with names": {answered: true, names: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.reconcileAfterRead()
			f.pool.change(func() { f.pool.names = c.names })
			theirs := cloud.Instance{ProviderID: "theirs", Type: "m4", State: cloud.Pending, Created: time.Now().Add(-time.Hour)}
			f.pool.add(theirs) // not read yet
			answer := f.blockLaunches()
			f.addUnschedulable("a")
			f.reconcile()
			f.waitUntil("the cloud is asked", func() bool { return f.launchCount() == 1 })
			answer()
			if c.answered {
				blind := f.blockReads()
				f.reconcile() // applies the answer, and finds no instance
				f.states = map[string]*groupState{}
				blind()
			}
			f.states = map[string]*groupState{}
			f.reconcile()
			if s := f.status(); f.launchCount() != 1 || len(s.Awaited) != 1 || s.Awaited[0].ProviderID != "id-1" {
				t.Fatalf("%d launches, and status is %+v: want the instance of the one", f.launchCount(), s)
			}
			f.failInstance("theirs")
			f.failInstance("id-1")
			f.expectDeleted("id-1")
		})
	}
}

// unwritableClient fails to write a status.
type unwritableClient struct{ client.Client }

func (u unwritableClient) Status() client.SubResourceWriter {
	return failingStatusWriter{u.Client.Status()}
}

type failingStatusWriter struct{ client.SubResourceWriter }

func (failingStatusWriter) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return errors.New("the API server is away")
}

func TestI8UnrecordedLaunchIsNotRequested(t *testing.T) {
	f := newFixture(t, nil)
	f.reconcileAfterRead()
	f.options.Launches = launch.NewRecord(f.client, unwritableClient{f.client})
	f.addUnschedulable("a")
	if _, err := f.Controller.reconcile(t.Context(), f.sources, true); err == nil || f.launchCount() != 0 {
		t.Fatalf("%d launches, %v", f.launchCount(), err)
	}
	f.options.Launches = launch.NewRecord(f.client, f.client)
	f.reconcile()
	f.reconcile()
	if s := f.status(); f.launchCount() != 1 || s.Provisioning != 1 {
		t.Errorf("%d launches, and status is %+v, once it can be written", f.launchCount(), s)
	}
}

func TestI4InstanceNotNamedInTheAnswerIsNotOurs(t *testing.T) {
	f := newFixture(t, nil)
	f.reconcileAfterRead()
	f.pool.change(func() { f.pool.names = true })
	answer := f.blockLaunches()
	f.addUnschedulable("a")
	f.reconcile()
	f.waitUntil("the cloud is asked", func() bool { return f.launchCount() == 1 })
	f.pool.add(cloud.Instance{ProviderID: "theirs", Type: "m4", State: cloud.Pending, Created: time.Now()})
	f.reconcile()
	f.waitUntil("the cloud has said what there is", func() bool { f.applyReplies(f.lastGroups); return len(f.states["web"].tracking.FirstSeen) == 1 })
	answer()
	f.reconcile()
	f.reconcile()
	if s := f.status(); len(s.Awaited) != 1 || s.Awaited[0].ProviderID != "id-1" {
		t.Fatalf("status is %+v, want the instance that was named", s)
	}
	f.failInstance("theirs")
	f.failInstance("id-1")
	f.expectDeleted("id-1")
}

func TestI4AdoptedInstanceBelongsToNoLaunch(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.MaxSize = new(int32(1)) })
	f.reconcileAfterRead()
	f.pool.add(cloud.Instance{ProviderID: "theirs", Type: "m4", State: cloud.Pending, Created: time.Now(), OwnerUncertain: true})
	answer := f.blockLaunches()
	f.addUnschedulable("a")
	f.reconcile()
	f.waitUntil("a machine is asked for all the same", func() bool { return f.launchCount() == 1 })
	answer()
	f.reconcile()
	f.reconcile()
	if s := f.status(); s.Provisioning != 1 || len(s.Awaited) != 1 || s.Awaited[0].ProviderID != "id-1" {
		t.Fatalf("status is %+v, want the instance that was launched", s)
	}
	f.failInstance("theirs")
	f.failInstance("id-1")
	f.expectDeleted("id-1")
}

// newRegisteredNode returns the Node of the pool's first instance, as its kubelet creates it.
func newRegisteredNode(change func(*corev1.Node)) *corev1.Node {
	n := newIdleNode("machine-0", "")
	n.Spec.ProviderID, n.CreationTimestamp = "id-0", metav1.Now()
	n.Status.Conditions[0].Status = corev1.ConditionFalse
	change(n)
	return n
}

// setNode sets a Node in the API server and in the caches.
func (f *fixture) setNode(n *corev1.Node) {
	f.t.Helper()
	_, err := f.kube.CoreV1().Nodes().Create(f.t.Context(), n, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = f.kube.CoreV1().Nodes().Update(f.t.Context(), n, metav1.UpdateOptions{})
	}
	must.NoError(f.t, err)
	f.waitUntil("the watch has told of the Node", func() bool {
		known, err := f.sources.nodes.Get(n.Name)
		return err == nil && equality.Semantic.DeepEqual(known.Status, n.Status)
	})
}

// makeOverdue ends the join timeout of the provisioning instances.
func (f *fixture) makeOverdue() { f.makeOverdueSince(time.Now().Add(-24 * time.Hour)) }

func (f *fixture) makeOverdueSince(long time.Time) {
	m := f.states["web"]
	m.watchedSince = long
	for i := range m.unjoined {
		m.unjoined[i].Since = metav1.NewTime(long)
	}
	f.pool.change(func() {
		for i := range f.pool.machines {
			f.pool.machines[i].Created = long
		}
	})
}

func (f *fixture) listRetirements() []v1alpha1.NodeRetirement {
	f.t.Helper()
	var all v1alpha1.NodeRetirementList
	must.NoError(f.t, f.client.List(f.t.Context(), &all))
	return all.Items
}

func TestNeverReadyNodeIsRetiredAndItsTemplateBacksOff(t *testing.T) {
	f := newFixture(t, nil)
	f.addUnschedulable("a")
	f.reconcile()
	f.reconcile()
	f.setNode(newRegisteredNode(func(*corev1.Node) {}))
	f.reconcile()
	if s := f.status(); len(s.Awaited) != 1 || s.Provisioning != 0 {
		t.Fatalf("status is %+v, want the instance until its Node is Ready, which is there already", s)
	}
	f.makeOverdue()
	for range 3 {
		f.reconcile()
	}
	all := f.listRetirements()
	if len(all) != 1 || all[0].Spec.NodeName != "machine-0" || all[0].Spec.NodeUID != "uid-machine-0" || all[0].Spec.Reason != v1alpha1.NeverReady {
		t.Fatalf("retirements are %+v, want one of the node", all)
	}
	if s := f.status(); len(s.BackOffs) != 1 || s.BackOffs[0].Reason != launch.NeverReady || len(s.Awaited) != 1 {
		t.Errorf("status is %+v, want the template backed off, and the instance on record until it is gone", s)
	}
	if got := f.pool.launches(); len(got) != 1 || len(f.pool.deleted) != 0 { // I1
		t.Errorf("launches are %v, deleted is %v: a node is drained before its instance goes", got, f.pool.deleted)
	}
}

func TestNodeThatWasReadyOrMayBeAnothersIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		first bool // the Node is Ready first
		node  *corev1.Node
	}{
		"it was Ready once":       {true, newRegisteredNode(func(*corev1.Node) {})},
		"it has no provider ID":   {false, newRegisteredNode(func(n *corev1.Node) { n.Spec.ProviderID = "" })},
		"it is not in the group":  {false, newRegisteredNode(func(n *corev1.Node) { n.Labels = nil })},
		"another tool removes it": {false, newRegisteredNode(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} })}, // I6
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.addUnschedulable("a")
			f.reconcile()
			f.reconcile()
			if c.first {
				f.setNode(newRegisteredNode(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue }))
				f.reconcile()
			}
			f.setNode(c.node)
			f.reconcile()
			f.makeOverdue()
			f.reconcile()
			if all := f.listRetirements(); len(all) != 0 || len(f.pool.deleted) != 0 {
				t.Errorf("retirements are %+v, deleted is %v", all, f.pool.deleted)
			}
		})
	}
}

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

// TestServedPodCountsOnceForItsLaunchRequest has a group whose only instance is provisioning for the pod.
func TestServedPodCountsOnceForItsLaunchRequest(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.MaxSize = new(int32(1)) })
	f.addUnschedulable("a")
	f.options.LaunchRequests.Add(plan.LaunchRequest{ID: "w", Group: "web", Count: 3, Pod: placement.PodKey{Namespace: "apps", Name: "a"}})
	f.reconcileTimes(4)
	open := f.options.LaunchRequests.dropExpiredAndListOpen()
	check.Not(t, len(open) != 1 || open[0].Count != 2, "open requests are %+v, want one for the 2 other instances", open)
}

func TestTooManyLaunchRequestsAreRejected(t *testing.T) {
	w := NewLaunchRequests()
	for i := range maxRequests {
		must.Not(t, !w.Add(plan.LaunchRequest{ID: fmt.Sprint(i)}), "wish %d is not taken", i)
	}
	check.Not(t, w.Add(plan.LaunchRequest{ID: "one more"}) || len(w.dropExpiredAndListOpen()) != maxRequests, "one more is taken")
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
