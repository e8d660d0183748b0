package provisioning

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newNeverReadyFixture returns a fixture with an instance's Node that was not Ready in time. Its retirement was
// requested.
func newNeverReadyFixture(t *testing.T) *fixture {
	f := newFixture(t, nil)
	f.addUnschedulable("a")
	f.reconcile()
	f.reconcile()
	f.setNode(newRegisteredNode(func(*corev1.Node) {}))
	f.reconcile()
	f.makeOverdue()
	f.reconcile()
	if all := f.listRetirements(); len(all) != 1 {
		t.Fatalf("retirements are %+v, want one", all)
	}
	return f
}

// finishRetirement sets the phase of the node's unfinished retirements.
func (f *fixture) finishRetirement(phase v1alpha1.Phase, code string, ago time.Duration) {
	f.t.Helper()
	for _, rt := range f.listRetirements() {
		if rt.Status.Phase.IsFinal() {
			continue
		}
		rt.UID, rt.Status.Phase = types.UID("uid-of-"+rt.Name), phase
		rt.Status.Captured = &v1alpha1.Captured{NodeUID: rt.Spec.NodeUID, ProviderID: "id-0", Provider: "pool", Group: "web"}
		if phase.IsFinal() {
			rt.Status.Times.Finished = &metav1.Time{Time: time.Now().Add(-ago)}
			rt.Status.Reasons = []v1alpha1.RetirementReason{{Code: code}}
		}
		must.NoError(f.t, f.client.Update(f.t.Context(), &rt))
	}
}

func (f *fixture) reconcileTimes(n int) {
	f.t.Helper()
	for range n {
		f.reconcile()
	}
}

func TestFailedRetirementOfNeverReadyNodeIsRepeated(t *testing.T) {
	f := newNeverReadyFixture(t)
	first := f.listRetirements()[0].Name
	f.finishRetirement(v1alpha1.Refused, retirement.ProtectedNode, time.Minute)
	f.reconcileTimes(3)
	if all := f.listRetirements(); len(all) != 1 {
		t.Fatalf("%d retirements, want none more before cooldowns.afterFailure", len(all))
	}
	for _, rt := range f.listRetirements() {
		rt.Status.Times.Finished = &metav1.Time{Time: time.Now().Add(-time.Hour)}
		must.NoError(t, f.client.Update(t.Context(), &rt))
	}
	f.reconcileTimes(3)
	all := f.listRetirements()
	if len(all) != 2 || all[0].Name == all[1].Name || all[0].Name != first && all[1].Name != first {
		t.Fatalf("retirements are %+v, want another one of the node", all)
	}
	b := f.states["web"].backOffs["m4"]
	b.Until = metav1.NewTime(time.Now().Add(-time.Second))
	f.states["web"].backOffs["m4"] = b
	f.reconcileTimes(2)
	if now := f.states["web"].backOffs["m4"]; now.Failures != b.Failures {
		t.Errorf("one instance is %d failures of its kind, want %d", now.Failures, b.Failures)
	}
}

// TestI4InstanceWithAReusedIDIsNotDeleted has a cloud group that a user has created anew under the same name, so that
// the IDs of its instances begin again.
func TestI4InstanceWithAReusedIDIsNotDeleted(t *testing.T) {
	for name, node := range map[string]*corev1.Node{"without a Node": nil, "with a Node that is not Ready": newRegisteredNode(func(*corev1.Node) {})} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.addUnschedulable("a")
			f.reconcileTimes(2)
			f.makeOverdue()
			f.pool.change(func() { f.pool.machines[0].Created = time.Now().Add(-time.Minute) })
			if node != nil {
				f.setNode(node)
			}
			f.reconcileTimes(3)
			f.calls.Wait()
			if s := f.status(); len(s.Awaited) != 0 || len(s.BackOffs) != 0 {
				t.Errorf("status is %+v, want neither a recorded instance nor a back-off", s)
			}
			check.Len(t, 0, f.listRetirements())
			f.pool.change(func() { check.Is(t, 0, len(f.pool.deleted), f.pool.deleted) })
			check.Is(t, 1, f.launchCount())
		})
	}
}

// TestI4InstanceThatWasReplacedSinceTheReadIsNotDeleted has an instance that takes the ID of a failed one before the
// deletion.
func TestI4InstanceThatWasReplacedSinceTheReadIsNotDeleted(t *testing.T) {
	f := newFixture(t, nil)
	f.addUnschedulable("a")
	f.reconcileTimes(2)
	failed := launch.FailedInstance{Instance: f.states["web"].instances[0], Reason: launch.NeverJoined}
	f.pool.change(func() { f.pool.machines[0].UniqueID = "second" })
	requested, err := f.deleteInstanceWithoutNode(t.Context(), f.sources, f.lastGroups[0], failed)
	check.Not(t, requested || err != nil || len(f.pool.deleted) > 0, "requested %t, %v", requested, err)
}

func TestInstanceOfRetiredNodeIsLeftToItsRetirement(t *testing.T) {
	f := newNeverReadyFixture(t)
	f.finishRetirement(v1alpha1.Drained, "", 0)
	must.NoError(t, f.kube.CoreV1().Nodes().Delete(t.Context(), "machine-0", metav1.DeleteOptions{}))
	f.waitUntil("the watch has told of it", func() bool { _, err := f.sources.nodes.Get("machine-0"); return err != nil })
	f.reconcileTimes(2)
	if s := f.status(); len(s.Awaited) != 1 {
		t.Errorf("status is %+v, want the instance while its retirement may be deleted", s)
	}
	f.finishRetirement(v1alpha1.NodeDeleted, "", 0)
	f.reconcileTimes(2)
	if s := f.status(); len(s.Awaited) != 0 {
		t.Errorf("status is %+v, want the instance left to its retirement", s)
	}
	f.calls.Wait()
	f.pool.change(func() {
		check.Is(t, 0, len(f.pool.deleted), f.pool.deleted)
	})
}

// TestInstanceWithTheIDOfARetiredOneIsTracked has a cloud that gives the ID of a retired instance to the next one.
func TestInstanceWithTheIDOfARetiredOneIsTracked(t *testing.T) {
	for name, c := range map[string]struct {
		finishedAgo time.Duration // before now; the new instance was first seen an hour ago
		deleted     int
	}{
		"retired before it was launched": {2 * time.Hour, 1},
		"retired after it was launched":  {time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.addUnschedulable("a")
			f.reconcileTimes(2)
			rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "earlier"}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "machine-0", Group: "web"}}
			must.NoError(t, f.client.Create(t.Context(), rt))
			f.finishRetirement(v1alpha1.Succeeded, "", c.finishedAgo)
			f.reconcileTimes(2)
			if c.deleted > 0 {
				check.Len(t, 1, f.status().Awaited)
			}
			f.makeOverdueSince(time.Now().Add(-time.Hour))
			f.reconcile()
			f.calls.Wait()
			f.pool.change(func() { check.Len(t, c.deleted, f.pool.deleted) })
			check.Len(t, c.deleted, f.status().BackOffs)
		})
	}
}

func TestNodeThatWasReadyDuringItsRetirementHasJoined(t *testing.T) {
	f := newNeverReadyFixture(t)
	f.finishRetirement(v1alpha1.Refused, retirement.NodeReady, time.Hour)
	f.reconcileTimes(3)
	if all, s := f.listRetirements(), f.status(); len(all) != 1 || len(s.Awaited) != 0 {
		t.Errorf("%d retirements, status is %+v: want the instance not awaited any more", len(all), s)
	}
}

// TestNodeThatWasReadyDuringACloudOutageHasJoined has a Node that is not Ready when the cloud can be read again.
func TestNodeThatWasReadyDuringACloudOutageHasJoined(t *testing.T) {
	for name, between := range map[string]func(*fixture){
		"in one process":           func(*fixture) {},
		"with a restart before it": func(f *fixture) { f.states = map[string]*groupState{} },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.addUnschedulable("a")
			f.reconcileTimes(2)
			f.states["web"].backOffs["m4"] = v1alpha1.BackOff{
				Template: "m4", Reason: "NoQuota", Until: metav1.NewTime(time.Now().Add(-time.Minute)), Failures: 1,
			}
			f.reconcile()
			f.pool.change(func() { f.pool.unread = errors.New("503") })
			between(f)
			f.setNode(newRegisteredNode(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue }))
			f.reconcile()
			if s := f.status(); len(s.Awaited) != 0 || len(s.BackOffs) != 0 {
				t.Errorf("status is %+v, want neither an instance that is awaited nor a template that has failed", s)
			}
			f.makeOverdue()
			f.setNode(newRegisteredNode(func(*corev1.Node) {}))
			f.pool.change(func() { f.pool.unread = nil })
			f.reconcileTimes(2)
			if all := f.listRetirements(); len(all) != 0 {
				t.Errorf("retirements are %+v", all)
			}
		})
	}
}

func TestI3AnnotationIsWrittenOnTheNodeAsRead(t *testing.T) {
	f := newFixture(t, nil, newIdleNode("a", ""))
	var read corev1.Node
	must.NoError(t, f.client.Get(t.Context(), client.ObjectKey{Name: "a"}, &read))
	changed := read.DeepCopy()
	changed.Spec.Unschedulable = true
	must.NoError(t, f.client.Update(t.Context(), changed))
	check.NoError(t, f.Controller.writeUnderutilizedSinceAnnotation(t.Context(), &read, time.Now()))
	check.Is(t, "", f.sinceAnnotation("a"))
}

func TestConcurrentlyChangedRetirementIsNotCancelled(t *testing.T) {
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "a-underused", UID: "first"}}
	rt.Spec.NodeName, rt.Spec.RequestedBy = "a", plan.UnderutilizedRequester
	f := newFixture(t, nil, newIdleNode("a", ""))
	must.NoError(t, f.client.Create(t.Context(), rt))
	read := *rt.DeepCopy()
	rt.Annotations = map[string]string{"example.com/by": "somebody"}
	must.NoError(t, f.client.Update(t.Context(), rt))
	d := &plan.NodeDecision{Subject: &nodegroup.Node{Object: newIdleNode("a", ""), Retirements: []v1alpha1.NodeRetirement{read}}}
	check.NoError(t, f.cancelRetirement(t.Context(), d))
	if got := f.listRetirements(); len(got) != 1 {
		t.Errorf("%d retirements are left, want the one that has changed since it was read", len(got))
	}
}

func TestRetirementIsCountedOnce(t *testing.T) {
	f := newFixture(t, nil, newIdleNode("a", ""))
	f.reconcile()
	d := &plan.NodeDecision{Group: "web", Since: time.Now(), Subject: &nodegroup.Node{Object: newIdleNode("a", "")}}
	for range 2 { // the cache does not have the retirement the second time
		must.NoError(t, f.requestRetirement(t.Context(), f.lastGroups[0], d))
	}
	check.Len(t, 1, f.listRetirements())
	check.Is(t, 1, testutil.ToFloat64(f.options.Metrics.retirements.WithLabelValues("web")))
}

const startupTaint = "example.com/agent-not-ready"

// joinAll has each instance of the pool join as a Ready Node that change makes unusable.
func (f *fixture) joinAll(change func(*corev1.Node)) {
	f.t.Helper()
	var all []cloud.Instance
	f.pool.change(func() { all = append(all, f.pool.machines...) })
	for _, i := range all {
		n := newIdleNode(i.Name, "")
		n.Spec.ProviderID, n.CreationTimestamp = i.ProviderID, metav1.Now()
		n.Status.Capacity = n.Status.Allocatable
		change(n)
		f.setNode(n)
	}
}

// unusableCases are the ways in which a Ready Node takes no pods of its group.
func unusableCases() map[string]func(*corev1.Node) {
	return map[string]func(*corev1.Node){
		"it lacks the group's label": func(n *corev1.Node) { n.Labels = nil },
		"it is cordoned":             func(n *corev1.Node) { n.Spec.Unschedulable = true },
		"it keeps a startup taint": func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule}}
		},
		"it is cordoned and not Ready": func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Status.Conditions[0].Status = corev1.ConditionFalse
		},
		"it lacks the label, not Ready": func(n *corev1.Node) { n.Labels = nil; n.Status.Conditions[0].Status = corev1.ConditionFalse },
	}
}

func withStartupTaint(g *v1alpha1.NodeGroup) { g.Spec.ScaleUp.StartupTaints = []string{startupTaint} }

func TestUnusableInstanceIsNotLaunchedAgain(t *testing.T) {
	for name, change := range unusableCases() {
		for _, late := range []bool{false, true} {
			if late && name == "it is cordoned and not Ready" {
				continue // it is retired, and the next one is launched after the back-off
			}
			t.Run(fmt.Sprintf("%s, after the join timeout: %t", name, late), func(t *testing.T) {
				f := newFixture(t, withStartupTaint)
				p := newUnschedulablePod("apps", "a")
				p.Spec.NodeSelector = map[string]string{"pool": "web"}
				f.addUnschedulablePod(p)
				f.reconcileTimes(2)
				for range 12 {
					f.joinAll(func(n *corev1.Node) {
						change(n)
						if late {
							n.CreationTimestamp = metav1.NewTime(time.Now().Add(-24 * time.Hour))
						}
					})
					if late {
						f.makeOverdue()
						for kind, b := range f.states["web"].backOffs { // as after its end
							b.Until = metav1.NewTime(time.Now().Add(-time.Second))
							f.states["web"].backOffs[kind] = b
						}
					}
					f.reconcile()
				}
				if got := f.pool.launches(); len(got) != 1 {
					t.Errorf("%d launches for one pod, want 1", len(got))
				}
			})
		}
	}
}

func TestNeverUsableInstanceBacksItsTemplateOff(t *testing.T) {
	for name, c := range map[string]struct{ change, says string }{
		"cordoned": {"it is cordoned", "machine-0 is cordoned"},
		"tainted":  {"it keeps a startup taint", "has the startup taint " + startupTaint},
		"no label": {"it lacks the group's label", "spec.nodeSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, withStartupTaint)
			f.addUnschedulable("a")
			f.reconcileTimes(2)
			f.joinAll(unusableCases()[c.change])
			f.reconcile()
			if s := f.status(); len(s.Awaited) != 1 || len(s.BackOffs) != 0 {
				t.Fatalf("status is %+v, want the instance on record until it is usable", s)
			}
			f.makeOverdue()
			f.reconcileTimes(2)
			s := f.status()
			if len(s.BackOffs) != 1 || s.BackOffs[0].Reason != launch.NeverUsable || !strings.Contains(s.BackOffs[0].Message, c.says) {
				t.Errorf("back-offs are %+v, want %s that says %q", s.BackOffs, launch.NeverUsable, c.says)
			}
			if all := f.listRetirements(); len(all) != 0 || len(f.pool.deleted) != 0 {
				t.Errorf("retirements are %+v, deleted is %v: want neither", all, f.pool.deleted)
			}
			f.joinAll(func(*corev1.Node) {})
			f.waitUntil("the watch tells of the usable Node", func() bool {
				n, err := f.sources.nodes.Get("machine-0")
				return err == nil && plan.FindJoinState(&v1alpha1.NodeGroup{Spec: v1alpha1.NodeGroupSpec{
					NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "web"}}, ScaleUp: &v1alpha1.ScaleUp{StartupTaints: []string{startupTaint}},
				}}, n) == launch.NodeUsable
			})
			f.reconcile()
			if s := f.status(); len(s.Awaited) != 0 {
				t.Errorf("status is %+v, want no instance on record once it is usable", s)
			}
		})
	}
}

func (f *fixture) scaleUpCondition() *metav1.Condition {
	f.t.Helper()
	var g v1alpha1.NodeGroup
	must.NoError(f.t, f.client.Get(f.t.Context(), types.NamespacedName{Name: "web"}, &g))
	return meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupScaleUpAllowed)
}

func TestInstanceOutsideTheSelectorStopsItsGroup(t *testing.T) {
	f := newFixture(t, nil)
	f.addUnschedulable("a")
	f.reconcileTimes(2)
	if c := f.scaleUpCondition(); c != nil {
		t.Fatalf("condition is %+v before anything is wrong", c)
	}
	f.joinAll(func(n *corev1.Node) { n.Labels = nil })
	f.addUnschedulable("b", "c")
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 {
		t.Errorf("launches are %v, want none for further pods", got)
	}
	c := f.scaleUpCondition()
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != plan.NodeNotSelected || !strings.Contains(c.Message, "machine-0") {
		t.Fatalf("condition is %+v, want False that names the Node", c)
	}
	if notes := f.eventNotes(eventUnplaceable); len(notes) == 0 || !strings.Contains(notes[0], plan.NodeNotSelected) {
		t.Errorf("Events are %q, want the reason", notes)
	}
	f.states = map[string]*groupState{} // as after a restart
	f.reconcileTimes(2)
	if got := f.pool.launches(); len(got) != 1 {
		t.Errorf("launches are %v after a restart, want none", got)
	}
	f.joinAll(func(*corev1.Node) {})
	f.waitUntil("the watch tells of the label", func() bool {
		n, err := f.sources.nodes.Get("machine-0")
		return err == nil && n.Labels["pool"] == "web"
	})
	f.reconcileTimes(2)
	if c := f.scaleUpCondition(); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("condition is %+v once the Node has the label, want True", c)
	}
	if got := f.pool.launches(); len(got) != 2 {
		t.Errorf("launches are %v once the Node has the label, want one for the further pods", got)
	}
}

// TestRetiringUnusableNodeIsNoFailure has another tool that removes the Node (I6).
func TestRetiringUnusableNodeIsNoFailure(t *testing.T) {
	f := newFixture(t, nil)
	p := newUnschedulablePod("apps", "a")
	f.addUnschedulablePod(p)
	f.reconcileTimes(2)
	f.removePod(p)
	f.waitUntil("the pod is gone", func() bool { return !f.isPending(p) && !f.isUnschedulable(p) })
	f.joinAll(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} })
	f.reconcile()
	f.makeOverdue()
	f.reconcileTimes(2)
	if s := f.status(); len(s.Awaited) != 0 || len(s.BackOffs) != 0 {
		t.Errorf("status is %+v, want neither a record nor a back-off", s)
	}
}

// TestRetiringInstanceOutsideTheSelectorStaysRecorded has a notice that cordons the Node for a while, like a Freeze.
func TestRetiringInstanceOutsideTheSelectorStaysRecorded(t *testing.T) {
	f := newFixture(t, nil)
	p := newUnschedulablePod("apps", "a")
	p.Spec.NodeSelector = map[string]string{"pool": "web"}
	f.addUnschedulablePod(p)
	f.reconcileTimes(2)
	for _, cordoned := range []bool{false, true, false} {
		f.joinAll(func(n *corev1.Node) {
			n.Labels, n.Spec.Unschedulable = nil, cordoned
			if cordoned {
				n.Annotations = map[string]string{"cordon.slipway.dev/azure-e": `{"owner":"azure-e","since":"2026-01-01T00:00:00Z"}`}
			}
		})
		f.waitUntil("the watch tells of the Node", func() bool {
			n, err := f.sources.nodes.Get("machine-0")
			return err == nil && n.Spec.Unschedulable == cordoned
		})
		for range 4 {
			f.reconcile()
			f.calls.Wait()
		}
		if got := f.pool.launches(); len(got) != 1 {
			t.Fatalf("cordoned %t: %d launches for one pod, want 1", cordoned, len(got))
		}
	}
}

// TestStartingNodesDoNotPauseLaunches has Nodes that are not Ready yet, and get the labels of their group later.
func TestStartingNodesDoNotPauseLaunches(t *testing.T) {
	timeout := 20 * time.Minute
	web := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	web.Spec.ScaleUp = &v1alpha1.ScaleUp{JoinTimeout: &metav1.Duration{Duration: timeout}}
	for name, c := range map[string]struct {
		owner   string
		age     time.Duration
		change  func(*corev1.Node)
		unready int
	}{
		"young, in its group":                {owner: "web", age: timeout - time.Second},
		"young, without a group":             {age: timeout - time.Second},
		"young, in a group without scale-up": {owner: "static", age: timeout - time.Second},
		"old, in its group":                  {owner: "web", age: timeout, unready: 1},
		"old, without a group":               {age: timeout, unready: 1},
		"old, in a group without scale-up":   {owner: "static", age: timeout, unready: 1},
		"old, and Ready": {age: timeout, change: func(n *corev1.Node) {
			n.Status.Conditions[0].Status = corev1.ConditionTrue
		}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			n := newIdleNode("a", "")
			n.Labels, n.CreationTimestamp = nil, metav1.NewTime(now.Add(-c.age))
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
			if c.change != nil {
				c.change(n)
			}
			cluster := &nodegroup.Cluster{Nodes: []corev1.Node{*n}, Now: now}
			cluster.Assignment.OwnerByNode = map[string]string{"a": c.owner}
			w := &plan.Input{Groups: []plan.Group{{GroupSnapshot: nodegroup.GroupSnapshot{Group: web}}}, Now: now}
			if got := countUnexpectedUnready(w, cluster); got != c.unready {
				t.Errorf("%d nodes are unready, want %d", got, c.unready)
			}
		})
	}
}

// observeSince makes the process have observed the nodes for a day.
func (f *fixture) observeSince(names ...string) {
	f.t.Helper()
	m := f.states["web"]
	if m == nil {
		var g v1alpha1.NodeGroup
		must.NoError(f.t, f.client.Get(f.t.Context(), types.NamespacedName{Name: "web"}, &g))
		m = newGroupState(&g, f.options.SettleTime)
		f.states["web"] = m
	}
	if m.observedNodes == nil {
		m.observedNodes = map[string]nodeObservation{}
	}
	for _, name := range names {
		m.observedNodes[name] = nodeObservation{types.UID("uid-" + name), time.Now().Add(-24 * time.Hour)}
	}
}

func TestManyUnreadyNodesPauseLaunchesAndSetTheMetric(t *testing.T) {
	f := newFixture(t, nil)
	f.options.UnreadyLimit = plan.UnreadyLimit{Percent: 45, AtLeast: 1}
	f.addUnschedulable("a")
	for _, name := range []string{"x", "y", "z"} {
		n := newIdleNode(name, "")
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		f.setNode(n)
	}
	f.reconcile()
	if got := f.pool.launches(); len(got) != 0 {
		t.Fatalf("launches are %v while all nodes are unreachable", got)
	}
	if unready, braked := testutil.ToFloat64(f.options.Metrics.unready), testutil.ToFloat64(f.options.Metrics.paused); unready != 3 || braked != 1 {
		t.Errorf("unready is %v, paused %v; want 3 and 1", unready, braked)
	}
	for _, name := range []string{"x", "y", "z"} { // their removal is in progress
		n := newIdleNode(name, "")
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}
		f.setNode(n)
	}
	f.waitUntil("the watch tells of the taints", func() bool {
		n, err := f.sources.nodes.Get("z")
		return err == nil && len(n.Spec.Taints) == 1
	})
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || testutil.ToFloat64(f.options.Metrics.paused) != 0 {
		t.Errorf("launches are %v once the nodes are being removed, want one", got)
	}
}

const gpu = "nvidia.com/gpu"

func withGPUs(g *v1alpha1.NodeGroup) {
	allocatable := func() corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), gpu: resource.MustParse("1"),
		}
	}
	g.Spec.ScaleUp.Policy = v1alpha1.FirstTemplate
	g.Spec.ScaleUp.Templates = []v1alpha1.InstanceTemplate{{Name: "g4", Allocatable: allocatable()}, {Name: "g5", Allocatable: allocatable()}}
}

// TestNodeWithoutItsDevicesYetCountsAsStarting has a Node that is Ready before its GPU is registered.
func TestNodeWithoutItsDevicesYetCountsAsStarting(t *testing.T) {
	f := newFixture(t, withGPUs)
	f.pool.change(func() { f.pool.templates = []string{"g4", "g5"} })
	p := newUnschedulablePod("apps", "a")
	p.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("1")
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("1")}
	f.addUnschedulablePod(p)
	f.reconcileTimes(2)
	join := func(change func(*corev1.Node)) {
		f.joinAll(func(n *corev1.Node) {
			n.Labels[corev1.LabelInstanceTypeStable] = "g4"
			change(n)
		})
		f.waitUntil("the watch tells of the Node", func() bool {
			n, err := f.sources.nodes.Get("machine-0")
			return err == nil && n.CreationTimestamp.After(time.Now().Add(-30*time.Minute))
		})
	}
	join(func(*corev1.Node) {})
	f.reconcileTimes(3)
	if got := f.pool.launches(); len(got) != 1 {
		t.Fatalf("launches are %v while the device plugin starts, want one", got)
	}
	if l, learned := f.states["web"].learned["g4"]; learned {
		t.Errorf("%+v was learned from a Node that is still arriving", l)
	}
	join(func(n *corev1.Node) { n.Status.Allocatable[gpu] = resource.MustParse("1") })
	f.waitUntil("the watch tells of the GPU", func() bool {
		n, err := f.sources.nodes.Get("machine-0")
		return err == nil && len(n.Status.Allocatable) == 4
	})
	f.reconcileTimes(2)
	l := f.states["web"].learned["g4"]
	if has := l.Allocatable[gpu]; has.Value() != 1 || len(f.pool.launches()) != 1 {
		t.Errorf("learned %v, launches %v; want the GPU, and one", l.Allocatable, f.pool.launches())
	}
}

// TestNodeWithoutDevicesStopsStartingAfterJoinTimeout has a device plugin that never registers.
func TestNodeWithoutDevicesStopsStartingAfterJoinTimeout(t *testing.T) {
	f := newFixture(t, withGPUs)
	f.pool.change(func() { f.pool.templates = []string{"g4", "g5"} })
	p := newUnschedulablePod("apps", "a")
	p.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("1")
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("1")}
	f.addUnschedulablePod(p)
	f.reconcileTimes(2)
	f.joinAll(func(n *corev1.Node) {
		n.Labels[corev1.LabelInstanceTypeStable] = "g4"
		n.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	})
	f.reconcileTimes(2)
	if got := f.pool.launches(); len(got) != 2 || got[1].Template != "g5" {
		t.Errorf("launches are %v after the join timeout, want one of the next template", got)
	}
}
