package orphans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/keptevents"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// markingFake is a cloud that marks the cluster's instances.
type markingFake struct {
	mu        sync.Mutex
	instances []cloud.Instance
	readErr   error
	deleted   []string
}

func (*markingFake) Name() string { return "rack" }

func (*markingFake) Normalize(id string) (string, error) {
	if !strings.HasPrefix(id, "rack://") {
		return "", errors.New("another cloud's")
	}
	return strings.Replace(id, "://row-1/", "://", 1), nil // some IDs contain the row
}

func (r *markingFake) lock() func() { r.mu.Lock(); return r.mu.Unlock }

// deletedIDs returns the instances with a requested deletion.
func (r *markingFake) deletedIDs() []string { defer r.lock()(); return slices.Clone(r.deleted) }

func (r *markingFake) ClusterInstances(context.Context) ([]cloud.Instance, error) {
	defer r.lock()()
	return slices.Clone(r.instances), r.readErr
}

func (r *markingFake) Instance(_ context.Context, id string) (cloud.Instance, error) {
	defer r.lock()()
	for _, m := range r.instances {
		if m.ProviderID == id {
			return m, r.readErr
		}
	}
	if r.readErr != nil {
		return cloud.Instance{}, r.readErr
	}
	return cloud.Instance{}, &cloud.NotFoundError{Kind: "instance", Name: id}
}

func (r *markingFake) Delete(_ context.Context, id string) (cloud.Operation, error) {
	defer r.lock()()
	r.deleted = append(r.deleted, id)
	r.instances = slices.DeleteFunc(r.instances, func(m cloud.Instance) bool { return m.ProviderID == id })
	return cloud.Operation{}, nil
}

// fixture is a running Controller.
type fixture struct {
	*Controller
	t        *testing.T
	recorder *events.FakeRecorder
}

// startFixture starts a Controller for a group of Nodes with the label pool=web. change may modify its options.
func startFixture(t *testing.T, r interface{ Name() string }, change func(*Options), objects ...client.Object) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "group", Labels: map[string]string{"shard": "a"}}}
	g.Spec.NodeSelector.MatchLabels = map[string]string{"pool": "web"}
	g.Spec.Cloud = v1alpha1.CloudGroup{Provider: "rack", Group: "racked"}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, g)...).WithStatusSubresource(&v1alpha1.NodeRetirement{}).Build()
	metrics, err := NewMetrics(prometheus.NewRegistry())
	must.NoError(t, err)
	recorder := events.NewFakeRecorder(100)
	o := Options{
		Client: c, LiveReader: c, Groups: clientGroups{c}, Selector: labels.Everything(), DeleteOrphans: true, GracePeriod: DefaultGracePeriod(), ScanInterval: 5 * time.Minute,
		Events: recorder, Metrics: metrics, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	f := &fixture{t: t, recorder: recorder, Controller: NewIfSupported(r, o)}
	if f.Controller == nil {
		t.Fatalf("%T cannot have orphans", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return f
}

// clientGroups lists the NodeGroups of a client.
type clientGroups struct{ client.Reader }

func (g clientGroups) List(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	var all v1alpha1.NodeGroupList
	err := g.Reader.List(ctx, &all)
	return all.Items, err
}

// advance lets time pass until everything due is done.
func (f *fixture) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (f *fixture) retirements() []v1alpha1.NodeRetirement {
	f.t.Helper()
	var list v1alpha1.NodeRetirementList
	must.NoError(f.t, f.options.Client.List(f.t.Context(), &list))
	return list.Items
}

// drainEvents returns the Events since the last call.
func (f *fixture) drainEvents() (all []string) {
	for {
		select {
		case e := <-f.recorder.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func newInstance(name string, old time.Duration) cloud.Instance {
	return cloud.Instance{
		ProviderID: "rack://" + name, Name: name, ComputerName: name, Group: "racked", State: cloud.Running, Created: time.Now().Add(-old),
	}
}

func newNode(name, pool string, ready corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: "uid-of-node", Labels: map[string]string{"pool": pool}, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour)),
	}}
	n.Spec.ProviderID = "rack://" + name
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	return n
}

func TestOrphanIsReportedFirstAndDeletedWhenProven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &markingFake{instances: []cloud.Instance{newInstance("a", time.Hour), newInstance("b", time.Hour)}}
		f := startFixture(t, r, nil, newNode("b", "web", corev1.ConditionTrue))
		f.advance(time.Minute)
		if emitted := f.drainEvents(); len(emitted) != 1 || !strings.Contains(emitted[0], "OrphanFound") || !strings.Contains(emitted[0], "a (rack://a)") {
			t.Errorf("first Events: %q", emitted)
		}
		f.advance(13 * time.Minute)
		if len(r.deletedIDs()) != 0 {
			t.Errorf("%q are deleted before they are proven to be orphans", r.deletedIDs())
		}
		check.Is(t, 1, testutil.ToFloat64(f.options.Metrics.orphans.WithLabelValues("rack", "Instance", "suspected")))
		f.advance(2 * time.Minute)
		if !slices.Equal(r.deletedIDs(), []string{"rack://a"}) {
			t.Errorf("deleted %q", r.deletedIDs())
		}
		if emitted := strings.Join(f.drainEvents(), "\n"); !strings.Contains(emitted, "proven: it is deleted now") || !strings.Contains(emitted, "OrphanDeleted") {
			t.Errorf("later Events: %q", emitted)
		}
		f.advance(time.Hour)
		check.Is(t, 1, testutil.ToFloat64(f.options.Metrics.removed.WithLabelValues("rack", "Instance")))
	})
}

func TestOrphanedNodeIsRetiredWhenProven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFixture(t, &markingFake{}, nil, newNode("gone", "web", corev1.ConditionUnknown), newNode("nobodys", "", corev1.ConditionUnknown),
			newNode("alive", "web", corev1.ConditionTrue))
		f.advance(14 * time.Minute)
		if all := f.retirements(); len(all) != 0 {
			t.Errorf("retired before it is proven: %+v", all)
		}
		checkEvents := func(want ...string) {
			t.Helper()
			emitted := f.drainEvents()
			for i, e := range emitted {
				if len(emitted) != len(want) || !strings.Contains(e, "InstanceMissing") || !strings.HasSuffix(e, want[i]) {
					t.Errorf("Events: %q, want the ends %q", emitted, want)
				}
			}
			check.Len(t, len(want), emitted)
		}
		checkEvents("suspected: it is retired once that has lasted for 15m0s", "suspected: it is kept: no NodeGroup of this manager selects it")
		f.advance(time.Hour)
		checkEvents("proven: it is retired now", "proven: it is kept: no NodeGroup of this manager selects it")
		all := f.retirements()
		if len(all) != 1 {
			t.Fatalf("%d retirements, want one, for the Node in a group", len(all))
		}
		if s := all[0].Spec; s.NodeName != "gone" || s.NodeUID != "uid-of-node" || s.Reason != v1alpha1.InstanceGone || s.Group != "web" ||
			all[0].Labels["shard"] != "a" {
			t.Errorf("retirement %+v, labels %v", s, all[0].Labels)
		}
	})
}

func TestI7NodeOfAnotherCloudsGroupIsNotOrphaned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFixture(t, &markingFake{}, nil, newNode("pooled", "db", corev1.ConditionUnknown), newGroup("db", "cloudpool", "workers", nil))
		f.advance(time.Hour)
		if all := f.retirements(); len(all) != 0 {
			t.Errorf("retired: %+v", all)
		}
		if emitted := f.drainEvents(); len(emitted) != 0 {
			t.Errorf("Events: %q", emitted)
		}
	})
}

func TestReportOnlyDeletesNoOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &markingFake{instances: []cloud.Instance{newInstance("a", time.Hour), newInstance("b", time.Hour)}}
		f := startFixture(t, r, func(o *Options) { o.DeleteOrphans = false }, newNode("b", "web", corev1.ConditionTrue),
			newNode("gone", "web", corev1.ConditionUnknown))
		f.advance(time.Hour)
		if len(r.deletedIDs()) != 0 || len(f.retirements()) != 0 {
			t.Errorf("deleted %q, retirements %+v", r.deletedIDs(), f.retirements())
		}
		if emitted := strings.Join(f.drainEvents(), "\n"); !strings.Contains(emitted, "OrphanFound") || !strings.Contains(emitted, "InstanceMissing") ||
			!strings.Contains(emitted, "only reported") {
			t.Errorf("Events: %q", emitted)
		}
		for _, kind := range []string{"Instance", "Node"} {
			if n := testutil.ToFloat64(f.options.Metrics.orphans.WithLabelValues("rack", kind, "proven")); n != 1 {
				t.Errorf("%v of kind %s are proven", n, kind)
			}
		}
	})
}

func TestI7CloudOutageStopsOrphanDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &markingFake{instances: []cloud.Instance{newInstance("a", time.Hour), newInstance("b", time.Hour)}}
		f := startFixture(t, r, nil, newNode("b", "web", corev1.ConditionTrue), newNode("gone", "web", corev1.ConditionUnknown))
		f.advance(6 * time.Minute)
		unlock := r.lock()
		r.readErr = errors.New("unreachable")
		unlock()
		f.advance(time.Hour)
		if len(r.deletedIDs()) != 0 || len(f.retirements()) != 0 {
			t.Errorf("deleted %q, retirements %+v", r.deletedIDs(), f.retirements())
		}
		if n := testutil.ToFloat64(f.options.Metrics.failures.WithLabelValues("rack")); n < 10 {
			t.Errorf("%v failures are counted", n)
		}
	})
}

func TestI7FleetWithoutNodesIsReportedAndNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &markingFake{}
		for i := range 10 {
			r.instances = append(r.instances, newInstance(fmt.Sprintf("m-%d", i), time.Hour))
		}
		r.instances = append(r.instances, newInstance("m-10", time.Hour))
		f := startFixture(t, r, nil)
		f.advance(20 * time.Minute)
		emitted := f.drainEvents()
		kept := slices.DeleteFunc(slices.Clone(emitted), func(e string) bool { return !strings.Contains(e, "OrphansKept") })
		if len(kept) != 1 || !strings.Contains(kept[0], "none of the cluster's 11 instances") || !strings.Contains(kept[0], "by hand") {
			t.Errorf("Events: %q, want once that none is deleted, why, and what to do", kept)
		}
		if all := strings.Join(emitted, "\n"); strings.Contains(all, "it is deleted once") {
			t.Errorf("Events: %s", all)
		}
		check.Is(t, 11, testutil.ToFloat64(f.options.Metrics.orphans.WithLabelValues("rack", "Instance", "proven")))
		for i := range 9 {
			must.NoError(t, f.options.Client.Create(t.Context(), newNode(fmt.Sprintf("m-%d", i), "web", corev1.ConditionTrue)))
		}
		f.advance(25 * time.Minute)
		if len(r.deletedIDs()) != 0 {
			t.Errorf("deleted %q, while Nodes may still rejoin", r.deletedIDs())
		}
		f.advance(10 * time.Minute)
		if gone := r.deletedIDs(); !slices.Equal(gone, []string{"rack://m-10", "rack://m-9"}) {
			t.Errorf("deleted %q, want the instances that did not rejoin", gone)
		}
		unlock := r.lock()
		r.instances = slices.DeleteFunc(r.instances, func(m cloud.Instance) bool { return m.Name == "m-8" })
		for i := range 4 {
			r.instances = append(r.instances, newInstance(fmt.Sprintf("new-%d", i), time.Hour))
		}
		unlock()
		f.drainEvents()
		f.advance(6 * time.Minute)
		if emitted := strings.Join(f.drainEvents(), "\n"); strings.Count(emitted, "OrphansKept") != 1 || !strings.Contains(emitted, "4 orphans are too many for 8") {
			t.Errorf("Events the second time: %s", emitted)
		}
	})
}

// TestI7TaintedControlPlaneNodeDoesNotCountAsJoined has a control plane node without the label, and has lost all other Nodes.
func TestI7TaintedControlPlaneNodeDoesNotCountAsJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &markingFake{instances: []cloud.Instance{newInstance("a", time.Hour), newInstance("cp", time.Hour)}}
		cp := newNode("cp", "", corev1.ConditionTrue)
		cp.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
		f := startFixture(t, r, nil, cp)
		f.advance(time.Hour)
		if len(r.deletedIDs()) != 0 {
			t.Errorf("deleted %q, although only the control plane has a Node", r.deletedIDs())
		}
	})
}

// TestI4InstanceWithoutOwnGroupIsNotDeleted has instances of a NodeGroup in another manager's file, and of another
// manager's NodeGroup. They do not count in the limit.
func TestI4InstanceWithoutOwnGroupIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &markingFake{instances: []cloud.Instance{newInstance("own", time.Hour), newInstance("b", time.Hour)}}
		for i := range minOrphanLimit {
			unknown, others := newInstance(fmt.Sprintf("unknown-%d", i), time.Hour), newInstance(fmt.Sprintf("others-%d", i), time.Hour)
			unknown.Group, others.Group = "file", "shelved"
			r.instances = append(r.instances, unknown, others)
		}
		f := startFixture(t, r, func(o *Options) { o.Selector = labels.SelectorFromSet(labels.Set{"shard": "a"}) },
			newNode("b", "web", corev1.ConditionTrue), newGroup("db", "rack", "shelved", map[string]string{"shard": "b"}))
		f.advance(time.Hour)
		if gone := r.deletedIDs(); !slices.Equal(gone, []string{"rack://own"}) {
			t.Errorf("deleted %q, want only the instance in a NodeGroup of this manager", gone)
		}
		if emitted := strings.Join(f.drainEvents(), "\n"); strings.Contains(emitted, "others") {
			t.Errorf("Events: %s", emitted)
		}
		check.Is(t, minOrphanLimit, testutil.ToFloat64(f.options.Metrics.orphans.WithLabelValues("rack", "Instance", "proven")))
	})
}

// TestI7OrphanLimitCountsOnlyOwnInstances has Nodes of another manager's NodeGroup, and of a NodeGroup in another
// manager's file. They do not raise the limit.
func TestI7OrphanLimitCountsOnlyOwnInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &markingFake{}
		objects := []client.Object{newGroup("db", "rack", "shelved", map[string]string{"shard": "b"})}
		for group, joined := range map[string]int{"racked": 10, "shelved": 10, "file": 10} {
			for i := range joined {
				m := newInstance(fmt.Sprintf("%s-%d", group, i), time.Hour)
				m.Group = group
				r.instances = append(r.instances, m)
				objects = append(objects, newNode(m.Name, "", corev1.ConditionTrue))
			}
		}
		for i := range minOrphanLimit + 1 {
			r.instances = append(r.instances, newInstance(fmt.Sprintf("lost-%d", i), time.Hour))
		}
		f := startFixture(t, r, func(o *Options) { o.Selector = labels.SelectorFromSet(labels.Set{"shard": "a"}) }, objects...)
		f.advance(time.Hour)
		check.Len(t, 0, r.deletedIDs())
		if emitted := strings.Join(f.drainEvents(), "\n"); !strings.Contains(emitted, "4 orphans are too many for 10 instances") {
			t.Errorf("Events: %s", emitted)
		}
	})
}

func TestInstanceOfAnyRetirementIsNotOrphaned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &markingFake{instances: []cloud.Instance{newInstance("held", time.Hour), newInstance("asked", time.Hour), newInstance("b", time.Hour)}}
		held := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "held"}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "held"}}
		held.Status.Phase, held.Status.Captured = v1alpha1.NodeDeleted, &v1alpha1.Captured{ProviderID: "rack://row-1/held"}
		elsewhere := held.DeepCopy()
		elsewhere.Name, elsewhere.Status.Captured.ProviderID = "elsewhere", "another://cloud"
		asked := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "asked"}}
		asked.Spec.NodeName, asked.Spec.ProviderID = "asked", "rack://row-1/asked"
		f := startFixture(t, r, func(o *Options) {
			// The cache has only the retirements of this manager, and these belong to another one.
			o.Client = interceptor.NewClient(o.Client.(client.WithWatch), interceptor.Funcs{
				List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return nil },
			})
		}, held, elsewhere, asked, newNode("b", "web", corev1.ConditionTrue))
		f.advance(time.Hour)
		if emitted := f.drainEvents(); len(emitted) != 0 || len(r.deletedIDs()) != 0 {
			t.Errorf("Events %q, deleted %q", emitted, r.deletedIDs())
		}
	})
}

func TestJoiningOrRetiringInstanceIsNotOrphaned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &markingFake{instances: []cloud.Instance{newInstance("slow", 50*time.Minute), newInstance("leaving", time.Hour), newInstance("b", time.Minute)}}
		rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "leaving"}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "leaving"}}
		rt.Status.Phase, rt.Status.Captured = v1alpha1.NodeDeleted, &v1alpha1.Captured{ProviderID: "rack://leaving"}
		f := startFixture(t, r, func(o *Options) {
			var g v1alpha1.NodeGroup
			must.NoError(t, o.Client.Get(t.Context(), client.ObjectKey{Name: "web"}, &g))
			g.Spec.ScaleUp = &v1alpha1.ScaleUp{JoinTimeout: &metav1.Duration{Duration: 2 * time.Hour}}
			must.NoError(t, o.Client.Update(t.Context(), &g))
		}, rt, newNode("b", "web", corev1.ConditionTrue))
		f.advance(65 * time.Minute)
		if emitted := f.drainEvents(); len(emitted) != 0 || len(r.deletedIDs()) != 0 {
			t.Errorf("Events %q, deleted %q", emitted, r.deletedIDs())
		}
		f.advance(30 * time.Minute)
		if !slices.Equal(r.deletedIDs(), []string{"rack://slow"}) {
			t.Errorf("deleted %q, want the one past its join timeout", r.deletedIDs())
		}
	})
}

func TestInstanceOfOpenLaunchIsNotOrphaned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &markingFake{instances: []cloud.Instance{newInstance("launched", time.Hour), newInstance("b", time.Hour)}}
		f := startFixture(t, r, func(o *Options) {
			var g v1alpha1.NodeGroup
			must.NoError(t, o.Client.Get(t.Context(), client.ObjectKey{Name: "web"}, &g))
			g.Status.Provisioning = &v1alpha1.ProvisioningStatus{Launches: []v1alpha1.Launch{{
				ID: "1", Instances: []v1alpha1.LaunchedInstance{{ProviderID: "rack://launched", Since: metav1.Now()}},
			}}}
			must.NoError(t, o.Client.Update(t.Context(), &g))
		}, newNode("b", "web", corev1.ConditionTrue))
		f.advance(time.Hour)
		if emitted := f.drainEvents(); len(emitted) != 0 || len(r.deletedIDs()) != 0 {
			t.Errorf("Events %q, deleted %q", emitted, r.deletedIDs())
		}
		var g v1alpha1.NodeGroup
		must.NoError(t, f.options.Client.Get(t.Context(), client.ObjectKey{Name: "web"}, &g))
		g.Status.Provisioning = nil
		must.NoError(t, f.options.Client.Update(t.Context(), &g))
		if f.advance(time.Hour); !slices.Equal(r.deletedIDs(), []string{"rack://launched"}) {
			t.Errorf("deleted %q, want the one of the closed launch", r.deletedIDs())
		}
	})
}

func TestEachOrphanHasItsOwnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long, k := strings.Repeat("long-", 30), &keptevents.Recorder{}
		names := []string{"a", "b", long}
		r := &markingFake{instances: []cloud.Instance{newInstance("used", time.Hour)}}
		for _, name := range names {
			r.instances = append(r.instances, newInstance(name, time.Hour))
		}
		f := startFixture(t, r, func(o *Options) { o.DeleteOrphans, o.Events = false, k }, newNode("used", "web", corev1.ConditionTrue))
		f.advance(time.Hour)
		for _, name := range names {
			if n := strings.Count(strings.Join(k.Kept, "\n"), "OrphanFound Instance "+name+" ("); n != 2 {
				t.Errorf("%d Events about %s, want one when it is suspected and one when it is proven: %q", n, name, k.Kept)
			}
		}
	})
}
