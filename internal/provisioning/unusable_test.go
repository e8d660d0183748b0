package provisioning

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

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
	if err := f.client.Get(f.t.Context(), types.NamespacedName{Name: "web"}, &g); err != nil {
		f.t.Fatal(err)
	}
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
