package analyzers

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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// fakeAnalyzer is a plugin with functions of the test.
type fakeAnalyzer struct {
	name   string
	events advice.Events
	modify func(context.Context, *corev1.Pod) ([]advice.Recommendation, error)
	delete func(context.Context, *corev1.Pod) ([]advice.Recommendation, error)
}

func (a *fakeAnalyzer) Name() string          { return a.name }
func (a *fakeAnalyzer) Events() advice.Events { return a.events }

func (a *fakeAnalyzer) AnalyzeModifyEvent(ctx context.Context, p *corev1.Pod) ([]advice.Recommendation, error) {
	return a.modify(ctx, p)
}

func (a *fakeAnalyzer) AnalyzeDeleteEvent(ctx context.Context, p *corev1.Pod) ([]advice.Recommendation, error) {
	return a.delete(ctx, p)
}

// fakeWishes records launch requests.
type fakeWishes struct {
	mu        sync.Mutex
	asked     []plan.LaunchRequest
	withdrawn []string
}

func (d *fakeWishes) Add(w plan.LaunchRequest) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, w)
	return true
}

func (d *fakeWishes) RemoveByPrefix(prefix string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.withdrawn = append(d.withdrawn, prefix)
}

func (d *fakeWishes) list() []plan.LaunchRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.asked)
}

// fixture is a Runner with events from a test instead of a watch.
type fixture struct {
	*PluginRunner
	desk   *fakeWishes
	client client.Client
}

type clientGroups struct{ client.Client }

func (l clientGroups) List(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	var list v1alpha1.NodeGroupList
	err := l.Client.List(ctx, &list)
	return list.Items, err
}

// newFixture runs the calls of the analyzers until the test ends.
func newFixture(t *testing.T, objects []client.Object, analyzers ...advice.Analyzer) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "group", Labels: map[string]string{"shard": "a"}}}
	g.Spec.NodeSelector.MatchLabels = map[string]string{"pool": "web"}
	g.Spec.Cloud = v1alpha1.CloudGroup{Provider: "rack", Group: "racked"}
	c := clientfake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, g)...).WithStatusSubresource(&v1alpha1.NodeRetirement{}).Build()
	metrics := must.Get(NewMetrics(prometheus.NewRegistry()))(t)
	f := &fixture{desk: &fakeWishes{}, client: c}
	f.PluginRunner = New(Options{
		Client: c, Groups: clientGroups{c}, Analyzers: analyzers, LaunchRequests: f.desk, Metrics: metrics, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for i, analyzer := range analyzers {
		for range maxConcurrentCalls {
			work.Go(func() { f.sendEventsToPlugin(ctx, analyzer, f.queues[i]) })
		}
	}
	t.Cleanup(func() {
		cancel()
		for _, q := range f.queues {
			q.close()
		}
		work.Wait()
	})
	return f
}

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, UID: types.UID("uid-" + name)}}
}

func newWebNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-node", Labels: map[string]string{"pool": "web"}}}
}

func (f *fixture) listRetirements(t *testing.T) []v1alpha1.NodeRetirement {
	t.Helper()
	var list v1alpha1.NodeRetirementList
	must.NoError(t, f.client.List(t.Context(), &list))
	return list.Items
}

func (f *fixture) eventCount(plugin string, kind eventKind, result string) float64 {
	return testutil.ToFloat64(f.options.Metrics.events.WithLabelValues(plugin, string(kind), result))
}

// newQuietAnalyzer requests an instance of group racked for every changed pod, and the retirement of node a for every
// deleted pod.
func newQuietAnalyzer(name string) *fakeAnalyzer {
	return &fakeAnalyzer{
		name: name, events: advice.Events{Modify: true, Delete: true},
		modify: func(_ context.Context, p *corev1.Pod) ([]advice.Recommendation, error) {
			return []advice.Recommendation{{Grow: &advice.Grow{Group: "racked", Count: 2, Template: "m4"}, Reason: p.Name + " needs it"}}, nil
		},
		delete: func(context.Context, *corev1.Pod) ([]advice.Recommendation, error) {
			return []advice.Recommendation{{Retire: &advice.Retire{Node: "a"}, Reason: "nobody needs it"}}, nil
		},
	}
}

func TestPluginRequestsAreApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, []client.Object{newWebNode("a")}, newQuietAnalyzer("rack"))
		f.queuePodEvent(podModified, newPod("x"))
		synctest.Wait()
		got := f.desk.list()
		if len(got) != 1 || got[0].Group != "web" || got[0].Count != 2 || got[0].Template != "m4" || got[0].Pod.Name != "x" ||
			!strings.HasPrefix(got[0].ID, "rack/uid-x/") || got[0].Reason != "plugin rack: x needs it" {
			t.Errorf("asked for %+v", got)
		}
		for range 2 { // the second is about a node that is retiring already
			f.queuePodEvent(podDeleted, newPod("x"))
			synctest.Wait()
		}
		all := f.listRetirements(t)
		must.Not(t, len(all) != 1, "%d retirements", len(all))
		if s := all[0].Spec; s.NodeName != "a" || s.NodeUID != "uid-of-node" || s.Reason != v1alpha1.Requested || s.Group != "web" ||
			s.RequestedBy != "plugin rack: nobody needs it" || all[0].Labels["shard"] != "a" {
			t.Errorf("asked for %+v, labels %v", s, all[0].Labels)
		}
		if !slices.Contains(f.desk.withdrawn, "rack/uid-x/") {
			t.Errorf("withdrawn are %q, want the launch requests of the pod that is gone", f.desk.withdrawn)
		}
	})
}

// TestOrderOfAnAnswerMakesNoNewLaunchRequest has a plugin that answers each event with the same requests in another order.
func TestOrderOfAnAnswerMakesNoNewLaunchRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		grow := func(template string, count int) advice.Recommendation {
			return advice.Recommendation{Grow: &advice.Grow{Group: "racked", Count: count, Template: template}}
		}
		answer := []advice.Recommendation{grow("m4", 1), grow("m8", 1), grow("m4", 2)}
		analyzer := newQuietAnalyzer("rack")
		analyzer.modify = func(context.Context, *corev1.Pod) ([]advice.Recommendation, error) {
			slices.Reverse(answer)
			return slices.Clone(answer), nil
		}
		f := newFixture(t, nil, analyzer)
		for range 2 {
			f.queuePodEvent(podModified, newPod("x"))
			synctest.Wait()
		}
		counts := map[string]int{}
		for _, w := range f.desk.list() {
			counts[w.ID] = w.Count
		}
		check.Equal(t, map[string]int{"rack/uid-x/web/m4": 3, "rack/uid-x/web/m8": 1}, counts)
	})
}

func TestPluginActsOnlyOnItsOwnCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, []client.Object{newWebNode("a")}, newQuietAnalyzer("elsewhere"))
		f.queuePodEvent(podModified, newPod("x"))
		f.queuePodEvent(podDeleted, newPod("x"))
		synctest.Wait()
		if asked, all := f.desk.list(), f.listRetirements(t); len(asked) != 0 || len(all) != 0 {
			t.Errorf("asked for %+v and %+v", asked, all)
		}
		for _, wish := range []string{"grow", "retire"} {
			check.Is(t, 1, testutil.ToFloat64(f.options.Metrics.requests.WithLabelValues("elsewhere", wish, "refused")), wish)
		}
	})
}

func TestHangingPluginDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := newQuietAnalyzer("hangs")
		hangs.modify = func(ctx context.Context, _ *corev1.Pod) ([]advice.Recommendation, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		f := newFixture(t, nil, hangs, newQuietAnalyzer("rack"))
		const pods = 3 * maxConcurrentCalls
		for i := range pods {
			f.queuePodEvent(podModified, newPod(string(rune('a'+i))))
		}
		synctest.Wait()
		check.Is(t, pods, len(f.desk.list()))
		time.Sleep(time.Hour)
		synctest.Wait()
		check.Is(t, pods, f.eventCount("hangs", podModified, resultDropped))
	})
}

func TestEventOfACrashingPluginIsRetriedThenDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		crashes, works := newQuietAnalyzer("rack"), newQuietAnalyzer("rack").modify
		var mu sync.Mutex
		shown := map[string]int{}
		crashes.modify = func(ctx context.Context, p *corev1.Pod) ([]advice.Recommendation, error) {
			mu.Lock()
			defer mu.Unlock()
			shown[p.Name]++
			if p.Name == "poison" || shown[p.Name] == 1 {
				return nil, errors.New("the plugin ended meanwhile")
			}
			return works(ctx, p)
		}
		f := newFixture(t, nil, crashes)
		f.queuePodEvent(podModified, newPod("poison"))
		f.queuePodEvent(podModified, newPod("x"))
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		check.Not(t, shown["poison"] != maxTries || shown["x"] != 2, "shown %v times", shown)
		if got := f.desk.list(); len(got) != 1 || got[0].Pod.Name != "x" {
			t.Errorf("asked for %+v", got)
		}
		check.Is(t, 1, f.eventCount("rack", podModified, resultDropped))
	})
}

func TestEventsAreKeptWhileAPluginDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped, works := newQuietAnalyzer("rack"), newQuietAnalyzer("rack").modify
		runsFrom := time.Now().Add(10 * time.Minute)
		stopped.modify = func(ctx context.Context, p *corev1.Pod) ([]advice.Recommendation, error) {
			if time.Now().Before(runsFrom) {
				return nil, fmt.Errorf("plugin rack: %w", advice.ErrNotRunning)
			}
			return works(ctx, p)
		}
		f := newFixture(t, nil, stopped)
		f.pods = cache.NewStore(cache.MetaNamespaceKeyFunc)
		must.NoError(t, f.pods.Add(newPod("x")))
		f.queuePodEvent(podModified, newPod("x"))
		f.queuePodEvent(podModified, newPod("deleted-meanwhile"))
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if got := f.desk.list(); len(got) != 1 || got[0].Pod.Name != "x" {
			t.Errorf("asked for %+v", got)
		}
		check.Is(t, 0, f.eventCount("rack", podModified, resultDropped))
	})
}

func TestI10InvalidAnswerIsRejectedAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wild := newQuietAnalyzer("rack")
		wild.modify = func(context.Context, *corev1.Pod) ([]advice.Recommendation, error) {
			return []advice.Recommendation{{Grow: &advice.Grow{Group: "racked", Count: 1}}, {Grow: &advice.Grow{Group: "racked", Count: 1_000_000}}}, nil
		}
		f := newFixture(t, nil, wild)
		f.queuePodEvent(podModified, newPod("x"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := f.desk.list(); len(got) != 0 {
			t.Errorf("asked for %+v", got)
		}
	})
}

func TestQueueKeepsOnlyTheLastChangeOfAPod(t *testing.T) {
	q := newEventQueue()
	for i, name := range []string{"x", "y", "x"} {
		p := newPod(name)
		p.ResourceVersion = string(rune('1' + i))
		q.putDroppingOldest(podEvent{kind: podModified, pod: p})
	}
	q.putBackUnlessReplaced(podEvent{kind: podModified, pod: newPod("y"), tries: 1}) // a later event has arrived
	var got []string
	for range 2 {
		e, ok := q.waitForNext()
		if !ok {
			t.Fatal("the queue is closed")
		}
		got = append(got, e.pod.Name+e.pod.ResourceVersion)
	}
	check.Not(t, !slices.Equal(got, []string{"x3", "y2"}), "taken are %q", got)
}

func TestFullQueueDropsTheOldestEvent(t *testing.T) {
	q := newEventQueue()
	for i := range maxEvents {
		if q.putDroppingOldest(podEvent{kind: podModified, pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(rune(i + 1))}}}) {
			t.Fatalf("event %d is one too many", i)
		}
	}
	if !q.putDroppingOldest(podEvent{kind: podModified, pod: newPod("last")}) || len(q.events) != maxEvents || len(q.order) != maxEvents {
		t.Errorf("%d events and %d in order, want %d", len(q.events), len(q.order), maxEvents)
	}
}

func TestFailedRetirementIsNotRepeatedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "earlier", UID: "earlier"}}
		ended.Spec.NodeName, ended.Status.Phase = "a", v1alpha1.Aborted
		now := metav1.Now()
		ended.Status.Times.Finished = &now
		f := newFixture(t, []client.Object{newWebNode("a"), ended}, newQuietAnalyzer("rack"))
		for _, step := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {retirementRetryPause - time.Second, 1}, {2 * time.Second, 2}} {
			time.Sleep(step.after)
			f.queuePodEvent(podDeleted, newPod("x"))
			synctest.Wait()
			if got := f.listRetirements(t); len(got) != step.want {
				t.Errorf("%s after the one that failed there are %d retirements, want %d", time.Since(now.Time), len(got), step.want)
			}
		}
	})
}
