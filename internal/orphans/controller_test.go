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
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// rack is a cloud that marks the machines of the cluster.
type rack struct {
	mu       sync.Mutex
	machines []cloud.Instance
	unread   error
	deleted  []string
}

func (*rack) Name() string { return "rack" }

func (*rack) Normalize(id string) (string, error) {
	if !strings.HasPrefix(id, "rack://") {
		return "", errors.New("another cloud's")
	}
	return strings.Replace(id, "://row-1/", "://", 1), nil // some say in which row it is
}

func (r *rack) locked() func() { r.mu.Lock(); return r.mu.Unlock }

// gone are the machines whose deletion was asked for.
func (r *rack) gone() []string { defer r.locked()(); return slices.Clone(r.deleted) }

func (r *rack) Ours(context.Context) ([]cloud.Instance, error) {
	defer r.locked()()
	return slices.Clone(r.machines), r.unread
}

func (r *rack) Instance(_ context.Context, id string) (cloud.Instance, error) {
	defer r.locked()()
	for _, m := range r.machines {
		if m.ProviderID == id {
			return m, r.unread
		}
	}
	if r.unread != nil {
		return cloud.Instance{}, r.unread
	}
	return cloud.Instance{}, &cloud.NotFoundError{Kind: "instance", Name: id}
}

func (r *rack) Delete(_ context.Context, id string) (cloud.Operation, error) {
	defer r.locked()()
	r.deleted = append(r.deleted, id)
	r.machines = slices.DeleteFunc(r.machines, func(m cloud.Instance) bool { return m.ProviderID == id })
	return cloud.Operation{}, nil
}

// fixture is a Controller that has started.
type fixture struct {
	*Controller
	t        *testing.T
	recorder *events.FakeRecorder
}

// started starts a watch for a group of Nodes labelled pool=web; change may alter it before it works.
func started(t *testing.T, r interface{ Name() string }, change func(*Options), objects ...client.Object) *fixture {
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
		Client: c, Live: c, Groups: groupsOf{c}, Selector: labels.Everything(), Delete: true, Grace: DefaultGrace(), Every: 5 * time.Minute,
		Events: recorder, Metrics: metrics, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	f := &fixture{t: t, recorder: recorder, Controller: New(r, o)}
	if f.Controller == nil {
		t.Fatalf("nothing is looked for in %T", r)
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

// groupsOf are the NodeGroups that are there.
type groupsOf struct{ client.Reader }

func (g groupsOf) List(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	var all v1alpha1.NodeGroupList
	err := g.Reader.List(ctx, &all)
	return all.Items, err
}

// pass lets time pass, and what is due be done.
func (f *fixture) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (f *fixture) retirements() []v1alpha1.NodeRetirement {
	f.t.Helper()
	var list v1alpha1.NodeRetirementList
	must.NoError(f.t, f.o.Client.List(f.t.Context(), &list))
	return list.Items
}

// said are the events so far that have not been asked for yet.
func (f *fixture) said() (all []string) {
	for {
		select {
		case e := <-f.recorder.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func racked(name string, old time.Duration) cloud.Instance {
	return cloud.Instance{
		ProviderID: "rack://" + name, Name: name, ComputerName: name, Group: "racked", State: cloud.Running, Created: time.Now().Add(-old),
	}
}

func node(name, pool string, ready corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: "uid-of-node", Labels: map[string]string{"pool": pool}, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour)),
	}}
	n.Spec.ProviderID = "rack://" + name
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	return n
}

func TestOrphanIsReportedFirstAndDeletedWhenProven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rack{machines: []cloud.Instance{racked("a", time.Hour), racked("b", time.Hour)}}
		f := started(t, r, nil, node("b", "web", corev1.ConditionTrue))
		f.pass(time.Minute)
		if said := f.said(); len(said) != 1 || !strings.Contains(said[0], "OrphanFound") || !strings.Contains(said[0], "a (rack://a)") {
			t.Errorf("at first it is said: %q", said)
		}
		f.pass(13 * time.Minute)
		if len(r.gone()) != 0 {
			t.Errorf("%q are deleted before they are proven to be orphans", r.gone())
		}
		check.Is(t, 1, testutil.ToFloat64(f.o.Metrics.orphans.WithLabelValues("rack", "Instance", "suspected")))
		f.pass(2 * time.Minute)
		if !slices.Equal(r.gone(), []string{"rack://a"}) {
			t.Errorf("deleted are %q", r.gone())
		}
		if said := strings.Join(f.said(), "\n"); !strings.Contains(said, "OrphanDeleted") {
			t.Errorf("afterwards it is said: %q", said)
		}
		f.pass(time.Hour)
		check.Is(t, 1, testutil.ToFloat64(f.o.Metrics.collected.WithLabelValues("rack", "Instance")))
	})
}

func TestAGhostIsRetiredOnceItIsProven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := started(t, &rack{}, nil, node("gone", "web", corev1.ConditionUnknown), node("nobodys", "", corev1.ConditionUnknown),
			node("alive", "web", corev1.ConditionTrue))
		f.pass(14 * time.Minute)
		if all := f.retirements(); len(all) != 0 {
			t.Errorf("retired before it is proven: %+v", all)
		}
		if said := strings.Join(f.said(), "\n"); strings.Count(said, "InstanceMissing") != 2 || strings.Contains(said, "alive") {
			t.Errorf("it is said: %q", said)
		}
		f.pass(time.Hour)
		all := f.retirements()
		if len(all) != 1 {
			t.Fatalf("%d retirements, want one, of the Node that is of a group", len(all))
		}
		if s := all[0].Spec; s.NodeName != "gone" || s.NodeUID != "uid-of-node" || s.Reason != v1alpha1.MachineGone || s.Group != "web" ||
			all[0].Labels["shard"] != "a" {
			t.Errorf("asked for %+v, labels %v", s, all[0].Labels)
		}
	})
}

func TestI7NodeOfAnotherCloudsGroupIsNotOrphaned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := started(t, &rack{}, nil, node("pooled", "db", corev1.ConditionUnknown), group("db", "cloudpool", "workers", nil))
		f.pass(time.Hour)
		if all := f.retirements(); len(all) != 0 {
			t.Errorf("retired: %+v", all)
		}
		if said := f.said(); len(said) != 0 {
			t.Errorf("it is said: %q", said)
		}
	})
}

func TestReportOnlyLeavesOrphansAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rack{machines: []cloud.Instance{racked("a", time.Hour), racked("b", time.Hour)}}
		f := started(t, r, func(o *Options) { o.Delete = false }, node("b", "web", corev1.ConditionTrue),
			node("gone", "web", corev1.ConditionUnknown))
		f.pass(time.Hour)
		if len(r.gone()) != 0 || len(f.retirements()) != 0 {
			t.Errorf("deleted %q, asked for %+v", r.gone(), f.retirements())
		}
		if said := strings.Join(f.said(), "\n"); !strings.Contains(said, "OrphanFound") || !strings.Contains(said, "InstanceMissing") ||
			!strings.Contains(said, "left alone") {
			t.Errorf("it is said: %q", said)
		}
		for _, kind := range []string{"Instance", "Node"} {
			if n := testutil.ToFloat64(f.o.Metrics.orphans.WithLabelValues("rack", kind, "proven")); n != 1 {
				t.Errorf("%v of kind %s are proven", n, kind)
			}
		}
	})
}

func TestI7CloudOutageStopsOrphanDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rack{machines: []cloud.Instance{racked("a", time.Hour), racked("b", time.Hour)}}
		f := started(t, r, nil, node("b", "web", corev1.ConditionTrue), node("gone", "web", corev1.ConditionUnknown))
		f.pass(6 * time.Minute)
		unlock := r.locked()
		r.unread = errors.New("unreachable")
		unlock()
		f.pass(time.Hour)
		if len(r.gone()) != 0 || len(f.retirements()) != 0 {
			t.Errorf("deleted %q, asked for %+v", r.gone(), f.retirements())
		}
		if n := testutil.ToFloat64(f.o.Metrics.failures.WithLabelValues("rack")); n < 10 {
			t.Errorf("%v failures are counted", n)
		}
	})
}

func TestI7FleetWithoutNodesIsReportedAndNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rack{}
		for i := range 10 {
			r.machines = append(r.machines, racked(fmt.Sprintf("m-%d", i), time.Hour))
		}
		elsewhere := racked("m-10", time.Hour)
		elsewhere.Group = "forgotten"
		r.machines = append(r.machines, elsewhere)
		f := started(t, r, nil)
		f.pass(20 * time.Minute)
		said := f.said()
		kept := slices.DeleteFunc(slices.Clone(said), func(e string) bool { return !strings.Contains(e, "OrphansKept") })
		if len(kept) != 1 || !strings.Contains(kept[0], "none of the 11 machines") || !strings.Contains(kept[0], "by hand") {
			t.Errorf("it is said: %q, want once that none is deleted, why, and what to do", kept)
		}
		if all := strings.Join(said, "\n"); strings.Contains(all, "it is deleted when") {
			t.Errorf("it is said: %s", all)
		}
		check.Is(t, 11, testutil.ToFloat64(f.o.Metrics.orphans.WithLabelValues("rack", "Instance", "proven")))
		for i := range 9 {
			must.NoError(t, f.o.Client.Create(t.Context(), node(fmt.Sprintf("m-%d", i), "web", corev1.ConditionTrue)))
		}
		f.pass(25 * time.Minute)
		if len(r.gone()) != 0 {
			t.Errorf("%q are deleted, whose Nodes may still be on their way back", r.gone())
		}
		f.pass(10 * time.Minute)
		if gone := r.gone(); !slices.Equal(gone, []string{"rack://m-10", "rack://m-9"}) {
			t.Errorf("deleted are %q, want what has not come back", gone)
		}
		unlock := r.locked()
		r.machines = slices.DeleteFunc(r.machines, func(m cloud.Instance) bool { return m.Name == "m-8" })
		for i := range 4 {
			r.machines = append(r.machines, racked(fmt.Sprintf("new-%d", i), time.Hour))
		}
		unlock()
		f.said()
		f.pass(6 * time.Minute)
		if said := strings.Join(f.said(), "\n"); strings.Count(said, "OrphansKept") != 1 || !strings.Contains(said, "4 at once are too many, where 8") {
			t.Errorf("it is said the second time: %s", said)
		}
	})
}

func TestInstanceOfAnyRetirementIsNotOrphaned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rack{machines: []cloud.Instance{racked("held", time.Hour), racked("asked", time.Hour), racked("b", time.Hour)}}
		held := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "held"}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "held"}}
		held.Status.Phase, held.Status.Captured = v1alpha1.NodeDeleted, &v1alpha1.Captured{ProviderID: "rack://row-1/held"}
		elsewhere := held.DeepCopy()
		elsewhere.Name, elsewhere.Status.Captured.ProviderID = "elsewhere", "another://cloud"
		asked := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "asked"}}
		asked.Spec.NodeName, asked.Spec.ProviderID = "asked", "rack://row-1/asked"
		f := started(t, r, func(o *Options) {
			// What the cache has are the retirements that this manager acts on, and these are another's.
			o.Client = interceptor.NewClient(o.Client.(client.WithWatch), interceptor.Funcs{
				List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return nil },
			})
		}, held, elsewhere, asked, node("b", "web", corev1.ConditionTrue))
		f.pass(time.Hour)
		if said := f.said(); len(said) != 0 || len(r.gone()) != 0 {
			t.Errorf("said %q, deleted %q", said, r.gone())
		}
	})
}

func TestJoiningOrRetiringInstanceIsNotOrphaned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rack{machines: []cloud.Instance{racked("slow", 50*time.Minute), racked("leaving", time.Hour), racked("b", time.Minute)}}
		rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "leaving"}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "leaving"}}
		rt.Status.Phase, rt.Status.Captured = v1alpha1.NodeDeleted, &v1alpha1.Captured{ProviderID: "rack://leaving"}
		f := started(t, r, func(o *Options) {
			var g v1alpha1.NodeGroup
			must.NoError(t, o.Client.Get(t.Context(), client.ObjectKey{Name: "web"}, &g))
			g.Spec.ScaleUp = &v1alpha1.ScaleUp{JoinTimeout: &metav1.Duration{Duration: 2 * time.Hour}}
			must.NoError(t, o.Client.Update(t.Context(), &g))
		}, rt, node("b", "web", corev1.ConditionTrue))
		f.pass(65 * time.Minute)
		if said := f.said(); len(said) != 0 || len(r.gone()) != 0 {
			t.Errorf("said %q, deleted %q", said, r.gone())
		}
		f.pass(30 * time.Minute)
		if !slices.Equal(r.gone(), []string{"rack://slow"}) {
			t.Errorf("deleted are %q, want the one whose time to join is over", r.gone())
		}
	})
}

func TestInstanceOfAnOpenLaunchIsNotOrphaned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rack{machines: []cloud.Instance{racked("launched", time.Hour), racked("b", time.Hour)}}
		f := started(t, r, func(o *Options) {
			var g v1alpha1.NodeGroup
			must.NoError(t, o.Client.Get(t.Context(), client.ObjectKey{Name: "web"}, &g))
			g.Status.Provisioning = &v1alpha1.ProvisioningStatus{Launches: []v1alpha1.Launch{{
				ID: "1", Instances: []v1alpha1.LaunchedInstance{{ProviderID: "rack://launched", Since: metav1.Now()}},
			}}}
			must.NoError(t, o.Client.Update(t.Context(), &g))
		}, node("b", "web", corev1.ConditionTrue))
		f.pass(time.Hour)
		if said := f.said(); len(said) != 0 || len(r.gone()) != 0 {
			t.Errorf("said %q, deleted %q", said, r.gone())
		}
		var g v1alpha1.NodeGroup
		must.NoError(t, f.o.Client.Get(t.Context(), client.ObjectKey{Name: "web"}, &g))
		g.Status.Provisioning = nil
		must.NoError(t, f.o.Client.Update(t.Context(), &g))
		if f.pass(time.Hour); !slices.Equal(r.gone(), []string{"rack://launched"}) {
			t.Errorf("deleted are %q, want the one whose launch is over", r.gone())
		}
	})
}
