package nodegroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// fixture is an API server and a cloud in memory.
type fixture struct {
	client.WithWatch
	t      *testing.T
	cloud  fakeCloud
	live   map[string][]kubeapi.Pod // by node
	file   []v1alpha1.NodeGroup
	writes []string
	asked  []string // the nodes with a requested retirement, in order
}

// fakeCloud is a cloud that answers only Group.
type fakeCloud struct {
	cloud.Provider
	min int
	err error
}

func (g *fakeCloud) Group(_ context.Context, name string) (cloud.Group, error) {
	if g.err != nil {
		return cloud.Group{}, g.err
	}
	return cloud.Group{Name: name, Size: 7, Min: g.min}, nil
}

func newFixture(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	base := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.NodeGroup{}, &v1alpha1.NodeRetirement{}).
		WithIndex(&corev1.Pod{}, live.NodeNameField, func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithObjects(objects...).Build()
	c := &fixture{t: t, live: map[string][]kubeapi.Pod{}}
	note := func(verb string, o client.Object) { c.writes = append(c.writes, fmt.Sprintf("%s %T", verb, o)) }
	c.WithWatch = interceptor.NewClient(base, interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			note("create", o)
			if rt, is := o.(*v1alpha1.NodeRetirement); is {
				c.asked = append(c.asked, rt.Spec.NodeName)
			}
			o.SetUID(types.UID("uid-" + o.GetName()))
			return w.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, w client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			note("patch", o)
			return w.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			note("delete", o)
			return w.Delete(ctx, o, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, w client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			note("update "+sub+" of", o)
			return w.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	return c
}

// ListPodsOnNode returns the pods in the API server, without a cache.
func (c *fixture) ListPodsOnNode(_ context.Context, node string) ([]kubeapi.Pod, error) {
	return c.live[node], nil
}

// clientGroups lists the groups of the API server and of the file.
type clientGroups struct{ *fixture }

func (g clientGroups) List(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	var list v1alpha1.NodeGroupList
	err := g.fixture.List(ctx, &list)
	return append(list.Items, g.file...), err
}

// newController returns the controller of a new process.
func (c *fixture) newController() *Controller {
	c.t.Helper()
	metrics, err := NewMetrics(prometheus.NewRegistry())
	must.NoError(c.t, err)
	return New(Options{
		Client: c, Pods: live.NewListingPodReader(c), API: c, Groups: clientGroups{c}, Clouds: map[string]cloud.Provider{"sim": &c.cloud},
		Events: events.NewFakeRecorder(1000), Metrics: metrics, Log: slog.New(slog.DiscardHandler),
	})
}

// reconcile reconciles a group until nothing is due at once.
func (c *fixture) reconcile(of *Controller, group string) reconcile.Result {
	c.t.Helper()
	for range 10 {
		r, err := of.Reconcile(c.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: group}})
		must.NoError(c.t, err)
		if r.RequeueAfter == 0 || r.RequeueAfter > time.Second {
			return r
		}
		time.Sleep(r.RequeueAfter)
	}
	c.t.Fatal("it is never done")
	return reconcile.Result{}
}

func (c *fixture) listRetirements() []v1alpha1.NodeRetirement {
	c.t.Helper()
	var list v1alpha1.NodeRetirementList
	must.NoError(c.t, c.List(c.t.Context(), &list))
	return list.Items
}

func (c *fixture) getGroup(name string) *v1alpha1.NodeGroup {
	c.t.Helper()
	g := &v1alpha1.NodeGroup{}
	must.NoError(c.t, c.Get(c.t.Context(), client.ObjectKey{Name: name}, g))
	return g
}

func newCINode(name string) *corev1.Node {
	n := newNode(name, "ci")
	n.ResourceVersion = ""
	return &n
}

func newKeepingPod(name, on string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"ci": "true"}},
		Spec:       corev1.PodSpec{NodeName: on}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func TestIdleNodeIsMarkedAndRetiredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newGroup("ci"), newCINode("a"))
		first, second := c.newController(), c.newController()
		for range 9 {
			c.reconcile(first, "ci")
			c.reconcile(second, "ci")
			time.Sleep(minute)
		}
		if want := []string{"update status of *v1alpha1.NodeGroup", "patch *v1.Node"}; !slices.Equal(c.writes, want) {
			t.Errorf("%q, want %q", c.writes, want)
		}
		if s := c.getGroup("ci").Status; s.Nodes != 1 || s.Ready != 1 || *s.CloudSize != 7 || s.AllowedDisruptions != 1 {
			t.Errorf("%+v", s)
		}
		first = c.newController() // a restart
		time.Sleep(2 * minute)
		c.reconcile(first, "ci")
		c.reconcile(second, "ci")
		all := c.listRetirements()
		if len(all) != 1 || all[0].Spec.NodeName != "a" || all[0].Spec.Reason != v1alpha1.Idle || all[0].Spec.Group != "ci" {
			t.Errorf("%+v", all)
		}
	})
}

// TestLongestIdleNodesAreRetiredFirst has a time without a running manager.
func TestLongestIdleNodesAreRetiredFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newGroup("ci"), newCINode("a"), newCINode("b"), newCINode("c"), newKeepingPod("build-a", "a"), newKeepingPod("build-b", "b"))
		m := c.newController()
		for _, ends := range []string{"build-b", "build-a"} { // node c is idle before them
			c.reconcile(m, "ci")
			time.Sleep(10 * time.Second)
			must.NoError(t, c.Delete(t.Context(), newKeepingPod(ends, "")))
		}
		c.reconcile(m, "ci")
		time.Sleep(time.Hour)
		c.reconcile(c.newController(), "ci")
		if want := []string{"c", "b", "a"}; !slices.Equal(c.asked, want) {
			t.Errorf("asked for %q, want %q", c.asked, want)
		}
	})
}

// TestI5StatusKeepsTheCloudMinimumDuringAnOutage restarts the manager meanwhile. Retirements by hand use the status.
func TestI5StatusKeepsTheCloudMinimumDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newGroup("ci"), newCINode("a"))
		c.cloud.min = 1
		c.reconcile(c.newController(), "ci")
		c.cloud.err = errors.New("no answer")
		c.reconcile(c.newController(), "ci")
		if s := c.getGroup("ci").Status; s.CloudMinSize != 1 || s.AllowedDisruptions != 0 {
			t.Errorf("%+v", s)
		}
		c.cloud.min, c.cloud.err = 0, nil
		c.reconcile(c.newController(), "ci")
		if s := c.getGroup("ci").Status; s.CloudMinSize != 0 || s.AllowedDisruptions != 1 {
			t.Errorf("the minimum is lowered: %+v", s)
		}
	})
}

func TestScaleUpAllowedNeedsScaleUp(t *testing.T) {
	for name, up := range map[string]*v1alpha1.ScaleUp{"spec.scaleUp is there": {}, "it was removed": nil} {
		t.Run(name, func(t *testing.T) {
			g := newGroup("ci")
			g.Spec.ScaleUp = up
			if up != nil {
				g.Spec.MaxSize = new(int32(9))
			}
			g.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.GroupScaleUpAllowed, Status: metav1.ConditionFalse, Reason: v1alpha1.NodeNotSelected, Message: "no more instances are launched",
			}}
			c := newFixture(t, g)
			c.reconcile(c.newController(), g.Name)
			conditions := c.getGroup(g.Name).Status.Conditions
			if is := meta.FindStatusCondition(conditions, v1alpha1.GroupScaleUpAllowed); (is != nil) != (up != nil) {
				t.Errorf("conditions are %+v, want %s only with spec.scaleUp", conditions, v1alpha1.GroupScaleUpAllowed)
			}
			if !meta.IsStatusConditionTrue(conditions, v1alpha1.GroupAccepted) {
				t.Errorf("conditions are %+v, want the others too", conditions)
			}
		})
	}
}

func TestI10UnreadableSelectorIsReportedOnItsGroup(t *testing.T) {
	like := []metav1.LabelSelectorRequirement{{Key: "app", Operator: "in", Values: []string{"x"}}}
	for field, change := range map[string]func(*v1alpha1.NodeGroup){
		"spec.scaleDown.idleByLabel.podSelector": func(g *v1alpha1.NodeGroup) { g.Spec.ScaleDown.IdleByLabel.PodSelector.MatchExpressions = like },
		"spec.drain.placeholderPods": func(g *v1alpha1.NodeGroup) {
			g.Spec.Drain.PlaceholderPods = &metav1.LabelSelector{MatchExpressions: like}
		},
	} {
		t.Run(field, func(t *testing.T) {
			bad := newGroup("bad")
			change(bad)
			c := newFixture(t, bad, newCINode("a"))
			c.reconcile(c.newController(), "bad")
			is := meta.FindStatusCondition(c.getGroup("bad").Status.Conditions, v1alpha1.GroupAccepted)
			if is == nil || is.Reason != v1alpha1.InvalidSpec || !strings.Contains(is.Message, field) {
				t.Errorf("Accepted is %+v, want %s for %s", is, v1alpha1.InvalidSpec, field)
			}
		})
	}
}

func TestTwoManagersUseOneRetirementName(t *testing.T) {
	w := GroupSnapshot{Group: newGroup("ci"), Nodes: []Node{newIdleNode("a", "ci", time.Hour)}, Now: noon}
	d := mustDecide(t, w)["a"]
	c := newFixture(t)
	if a, b := c.newController().newIdleRetirement(&w, &d), c.newController().newIdleRetirement(&w, &d); a.Name != b.Name {
		t.Errorf("%s and %s", a.Name, b.Name)
	}
}

func TestI7PodUnknownToTheCacheKeepsTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newGroup("ci"), newCINode("a"))
		m := c.newController()
		c.reconcile(m, "ci")
		time.Sleep(11 * minute)
		live := kubeapi.Pod{}
		live.Namespace, live.Name, live.Labels, live.Status.Phase = "ci", "job", map[string]string{"ci": "true"}, "Pending"
		c.live["a"] = []kubeapi.Pod{live}
		c.reconcile(m, "ci")
		if all := c.listRetirements(); len(all) != 0 {
			t.Fatalf("%+v", all)
		}
		c.live["a"] = nil
		c.reconcile(m, "ci")
		if all := c.listRetirements(); len(all) != 0 {
			t.Fatalf("before the cooldown of a pod that was seen: %+v", all)
		}
		time.Sleep(11 * minute)
		c.reconcile(m, "ci")
		if all := c.listRetirements(); len(all) != 1 {
			t.Errorf("%+v", all)
		}
	})
}

func TestArrivingPodClearsMarkAndCancelsRetirement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newGroup("ci"), newCINode("a"))
		m := c.newController()
		c.reconcile(m, "ci")
		time.Sleep(11 * minute)
		c.reconcile(m, "ci")
		if len(c.listRetirements()) != 1 {
			t.Fatal("no retirement to cancel")
		}
		must.NoError(t, c.Create(t.Context(), newKeepingPod("job", "a")))
		c.reconcile(m, "ci")
		if all := c.listRetirements(); len(all) != 0 {
			t.Errorf("%+v", all)
		}
		n := &corev1.Node{}
		must.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "a"}, n))
		if got := readMarks(n, "ci", ciKind); !got.Since.IsZero() || !got.Used {
			t.Errorf("%+v", got)
		}
	})
}

// TestNodeOfFormerlySelectedPodsIsUnused changes the selector to pods that no node has run, with and without a running
// manager.
func TestNodeOfFormerlySelectedPodsIsUnused(t *testing.T) {
	for field, change := range map[string]func(*v1alpha1.NodeGroupSpec){
		"podSelector": func(s *v1alpha1.NodeGroupSpec) {
			s.ScaleDown.IdleByLabel.PodSelector.MatchLabels = map[string]string{"app": "ci"}
		},
		"namespaces":      func(s *v1alpha1.NodeGroupSpec) { s.ScaleDown.IdleByLabel.Namespaces = []string{"other"} },
		"placeholderPods": func(s *v1alpha1.NodeGroupSpec) { s.Drain.PlaceholderPods = &s.ScaleDown.IdleByLabel.PodSelector },
	} {
		for when, restarted := range map[string]bool{"live": false, "over a restart": true} {
			t.Run(field+" "+when, virtual.InVirtualTime(func(t *testing.T) {
				g := newGroup("ci")
				g.Spec.ScaleDown.IdleByLabel.KeepUnused = true
				c := newFixture(t, g, newCINode("a"), newCINode("b"), newKeepingPod("a-web", "a"), newKeepingPod("b-web", "b"))
				m := c.newController()
				c.reconcile(m, "ci")
				if err := c.Delete(t.Context(), newKeepingPod("b-web", "")); err != nil { // b is retiring
					t.Fatal(err)
				}
				c.reconcile(m, "ci")
				g = c.getGroup("ci")
				change(&g.Spec)
				must.NoError(t, c.Update(t.Context(), g))
				if restarted {
					m = c.newController()
				}
				for range 3 {
					c.reconcile(m, "ci")
					time.Sleep(11 * minute)
				}
				if all := c.listRetirements(); len(all) != 0 {
					t.Fatalf("nodes leave that have never had such a pod: %+v", all)
				}
				var nodes corev1.NodeList
				must.NoError(t, c.List(t.Context(), &nodes))
				for _, n := range nodes.Items {
					if n.Annotations[annotationUsed] != "" || n.Annotations[annotationSince] != "" {
						t.Errorf("node %s keeps the marks of the rule that was: %v", n.Name, n.Annotations)
					}
				}
			}))
		}
	}
}

// TestChangedRuleStartsItsOwnCooldown restarts the manager with another selector. A newly selected pod has come and
// gone meanwhile.
func TestChangedRuleStartsItsOwnCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newGroup("ci"), newCINode("a"))
		c.reconcile(c.newController(), "ci")
		time.Sleep(11 * minute)
		g := c.getGroup("ci")
		g.Spec.ScaleDown.IdleByLabel.PodSelector.MatchLabels = map[string]string{"app": "ci"}
		must.NoError(t, c.Update(t.Context(), g))
		m := c.newController()
		c.reconcile(m, "ci")
		if all := c.listRetirements(); len(all) != 0 {
			t.Fatalf("by the cooldown of another rule: %+v", all)
		}
		time.Sleep(11 * minute)
		c.reconcile(m, "ci")
		if all := c.listRetirements(); len(all) != 1 {
			t.Errorf("after its own cooldown: %+v", all)
		}
	})
}

func TestOnlyTheLastFailedRetirementIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newGroup("ci"), newCINode("a"))
		m := c.newController()
		c.reconcile(m, "ci")
		time.Sleep(11 * minute)
		var names []string
		for range 4 {
			c.reconcile(m, "ci")
			all := c.listRetirements()
			last := slices.IndexFunc(all, func(rt v1alpha1.NodeRetirement) bool { return !rt.Status.Phase.IsFinal() })
			if last < 0 {
				t.Fatalf("nothing is asked for after %v", names)
			}
			rt := all[last]
			names = append(names, rt.Name)
			now := metav1.Now()
			rt.Status.Phase, rt.Status.Times.Finished = v1alpha1.Refused, &now
			must.NoError(t, c.Status().Update(t.Context(), &rt))
			c.reconcile(m, "ci")
			if got := len(c.listRetirements()); got > 2 {
				t.Errorf("%d records", got)
			}
			time.Sleep(5*time.Minute + time.Second)
		}
		if slices.Sort(names); len(slices.Compact(names)) != 4 {
			t.Errorf("%v", names)
		}
	})
}

func TestRefusedGroupCancelsItsPendingRetirements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newGroup("ci"), newCINode("a"))
		m := c.newController()
		c.reconcile(m, "ci")
		time.Sleep(11 * minute)
		c.reconcile(m, "ci")
		if len(c.listRetirements()) != 1 {
			t.Fatal("no retirement to cancel")
		}
		c.cloud.err = &cloud.NotFoundError{Kind: "group", Name: "ci"}
		time.Sleep(2 * defaultInterval)
		c.reconcile(m, "ci")
		if is := meta.FindStatusCondition(c.getGroup("ci").Status.Conditions, v1alpha1.GroupAccepted); is.Reason != v1alpha1.CloudGroupNotFound {
			t.Errorf("%+v", is)
		}
		if all := c.listRetirements(); len(all) != 0 {
			t.Errorf("%+v", all)
		}
		before := len(c.writes)
		time.Sleep(time.Hour)
		c.reconcile(m, "ci")
		if more := c.writes[before:]; len(more) != 0 {
			t.Errorf("%q", more)
		}
		c.cloud.err = nil // the group exists after all
		time.Sleep(2 * defaultInterval)
		c.reconcile(m, "ci")
		if !meta.IsStatusConditionTrue(c.getGroup("ci").Status.Conditions, v1alpha1.GroupAccepted) || len(c.listRetirements()) != 1 {
			t.Errorf("once the cloud has the group, it is %+v, with the retirements %+v", c.getGroup("ci").Status.Conditions, c.listRetirements())
		}
	})
}

func TestI7CloudMinimumHoldsDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newGroup("ci"), newCINode("a"))
		m := c.newController()
		c.cloud.min = 1
		c.reconcile(m, "ci")
		check.Is(t, 0, c.getGroup("ci").Status.AllowedDisruptions)
		c.cloud.err = errors.New("no answer")
		time.Sleep(11 * minute)
		c.reconcile(m, "ci")
		if all := c.listRetirements(); len(all) != 0 {
			t.Errorf("below the cloud's minimum: %+v", all)
		}
		c.cloud.min, c.cloud.err = 0, nil
		time.Sleep(2 * defaultInterval)
		c.reconcile(m, "ci")
		if len(c.listRetirements()) != 1 {
			t.Error("it stays although the cloud has no minimum any more")
		}
	})
}

func TestI3DeletedGroupLeavesNothingOnItsNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup("ci")
		g.Spec.ClusterAutoscalerScaleDownDisabled = true
		c := newFixture(t, g, newCINode("a"))
		c.reconcile(c.newController(), "ci")
		must.NoError(t, c.Delete(t.Context(), c.getGroup("ci")))
		c.reconcile(c.newController(), "ci")
		n := &corev1.Node{}
		must.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "a"}, n))
		if len(n.Annotations) != 0 {
			t.Errorf("%v", n.Annotations)
		}
	})
}

func TestFileGroupKeepsItsConditionsInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, newCINode("a"))
		g := newGroup("ci")
		g.UID = ""
		c.file = []v1alpha1.NodeGroup{*g}
		m := c.newController()
		c.reconcile(m, "ci")
		if is := meta.FindStatusCondition(m.FileGroupStatus("ci").Conditions, v1alpha1.GroupAccepted); is == nil || is.Status != metav1.ConditionTrue {
			t.Errorf("%+v", is)
		}
		time.Sleep(11 * minute)
		c.reconcile(m, "ci")
		if all := c.listRetirements(); len(all) != 1 || strings.Contains(strings.Join(c.writes, " "), "NodeGroup") {
			t.Errorf("%+v, %q", all, c.writes)
		}
	})
}
