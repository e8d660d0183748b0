package retirement

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// runController runs a controller with a watch on the sim's records, as a manager does. The result waits until the
// manager has ended.
func (s *sim) runController(ctx context.Context, t *testing.T, c *Controller) (wait func()) {
	t.Helper()
	followed := toolscache.NewSharedIndexInformer(toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			var all v1alpha1.NodeRetirementList
			return &all, s.retirements.List(ctx, &all)
		},
		WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			return s.retirements.Watch(ctx, &v1alpha1.NodeRetirementList{})
		},
	}, listOnlyAPI{}), &v1alpha1.NodeRetirement{}, 0, nil)
	informers := &informertest.FakeInformers{
		Scheme: s.retirements.Scheme(),
		InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{
			v1alpha1.GroupVersion.WithKind("NodeRetirement"): followed,
			corev1.SchemeGroupVersion.WithKind("Node"):       controllertest.NewFakeInformer(controllertest.Synced),
		},
	}
	once := true
	m := must.Get(manager.New(&rest.Config{}, manager.Options{
		Scheme: s.retirements.Scheme(), Logger: logr.Discard(),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return meta.NewDefaultRESTMapper(nil), nil },
		NewCache:       func(*rest.Config, cache.Options) (cache.Cache, error) { return informers, nil },
		NewClient:      func(*rest.Config, client.Options) (client.Client, error) { return s.retirements, nil },
		Metrics:        metricsserver.Options{BindAddress: "0"},
		Controller:     config.Controller{SkipNameValidation: &once},
	}))(t)
	must.NoError(t, c.Register(ctx, m))
	var running sync.WaitGroup
	running.Go(func() { followed.RunWithContext(ctx) })
	running.Go(func() {
		check.NoError(t, m.Start(ctx))
	})
	synctest.Wait()
	return running.Wait
}

// recordInstanceReads records when the cloud is asked about the instance. The answer depends on the count.
func (s *sim) recordInstanceReads(answer func(n int) error) func() []time.Time {
	var mu sync.Mutex
	var at []time.Time
	s.interceptRequests(func(moment, request string) error {
		if moment != "before" || request != "cloud instance" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		at = append(at, time.Now())
		return answer(len(at))
	})
	return func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return at
	}
}

// TestStatusWritesTriggerNoThrottledRequests throttles the first requests with changing messages, so that each one
// changes the status.
func TestStatusWritesTriggerNoThrottledRequests(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		const pause, times = 30 * time.Second, 5
		asked := s.recordInstanceReads(func(n int) error {
			if n > times {
				return nil
			}
			return &cloud.ThrottledError{RetryAfter: pause, Err: fmt.Errorf("429, tracking ID %d", n)}
		})
		s.runController(ctx, t, s.newController(t))
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		time.Sleep(time.Hour)
		at := asked()
		for i := 1; i <= times; i++ {
			gap := at[i].Sub(at[i-1])
			check.Not(t, gap < pause, "read again after %s, want at least %s", gap, pause)
		}
		s.checkRetired(t, "a")
		if rt := s.getRetirement("r"); rt.Status.Phase != v1alpha1.Succeeded || len(rt.Finalizers) > 0 {
			t.Errorf("%s: %s, finalizers %v", rt.Status.Phase, rt.Status.Message, rt.Finalizers)
		}
	})
}

// TestInstanceIsReadSoonAfterOutage makes the cloud fail for an hour with changing messages.
func TestInstanceIsReadSoonAfterOutage(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		recovered := time.Now().Add(time.Hour)
		asked := s.recordInstanceReads(func(n int) error {
			if time.Now().Before(recovered) && n < 1000 { // without pauses the outage would never end
				return fmt.Errorf("read tcp 10.0.0.1:%d: connection reset by peer", 40000+n)
			}
			return nil
		})
		s.runController(ctx, t, s.newController(t))
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		time.Sleep(2 * time.Hour)
		during := 0
		at := asked()
		for during < len(at) && at[during].Before(recovered) {
			during++
		}
		most := 2 * 60
		check.Not(t, during > most, "%d reads in an outage of an hour, want at most %d", during, most)
		if during == len(at) || at[during].Sub(recovered) > maxFailurePause {
			t.Errorf("%d reads, none within %s after the outage", len(at), maxFailurePause)
		}
		s.checkRetired(t, "a")
	})
}

func TestNodeProtectionTriggersReconcile(t *testing.T) {
	before := &corev1.Node{}
	after := before.DeepCopy()
	after.Annotations = map[string]string{"example.com/heartbeat": "2"}
	check.Not(t, relevantNodeChangePredicate().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}), "another client's annotation triggers a reconcile")
	after.Annotations[drainability.Detached] = "true"
	check.Not(t, !relevantNodeChangePredicate().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}), "a protection does not trigger it")
}

// listOnlyAPI is an API server that answers a list with a list.
type listOnlyAPI struct{}

// IsWatchListSemanticsUnSupported is called by client-go through its name.
func (listOnlyAPI) IsWatchListSemanticsUnSupported() bool { return true }

// The maximum number of requests for the retirement of a node with 10 pods. Ten of them are the evictions. The target
// for a real cluster is 45, where other clients write to the Nodes and to the NodeGroup's status.
const (
	mostAPIRequests   = 40
	mostCloudRequests = 8
)

// countRequests counts the requests of a process. Cache reads cost nothing; a follow counts as a list and a watch.
func countRequests(requests []string, events int) (api, cloud int, kinds map[string]int) {
	kinds = map[string]int{"event": events}
	for _, r := range requests {
		switch {
		case strings.HasPrefix(r, "cached "):
			continue
		case strings.HasPrefix(r, "cloud "):
			cloud++
		case strings.HasPrefix(r, "follow "):
			kinds[r]++ // a list, and the watch below
			api++
			fallthrough
		default:
			api++
		}
		kinds[r]++
	}
	return api + events, cloud, kinds
}

// TestRetirementStaysWithinRequestBudget counts the requests for one node of 10 pods, alone and while the disruption
// budget makes it wait.
func TestRetirementStaysWithinRequestBudget(t *testing.T) {
	for name, waits := range map[string]bool{"at once": false, "after a wait for the budget": true} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			for i := range 10 {
				s.addPod("a", fmt.Sprint("web-", i), nil)
			}
			s.instances["sim://a"].deletionTakes = 8 * time.Second
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
			c := s.newController(t)
			recorder := events.NewFakeRecorder(1000)
			c.options.Events, c.events = recorder, eventRecorder{recorder}
			if waits {
				s.makeNodeUnready("b")
				for range 6 {
					s.reconcileOnce(ctx, c, "r")
				}
				s.reviveNode("b")
			}
			rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
			requirePhase(t, rt, v1alpha1.Succeeded)
			api, cloud, kinds := countRequests(s.requests, len(recorder.Events))
			for _, k := range slices.Sorted(maps.Keys(kinds)) {
				t.Logf("%3d %s", kinds[k], k)
			}
			if api > mostAPIRequests || cloud > mostCloudRequests {
				t.Errorf("%d requests to the API server and %d to the cloud, want at most %d and %d", api, cloud, mostAPIRequests, mostCloudRequests)
			}
		}))
	}
}
