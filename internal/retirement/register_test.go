package retirement

import (
	"context"
	"fmt"
	"net/http"
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
)

// runController runs a controller with a watch on the sim's records, as a manager does.
func (s *sim) runController(ctx context.Context, t *testing.T, c *Controller) {
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
	m, err := manager.New(&rest.Config{}, manager.Options{
		Scheme: s.retirements.Scheme(), Logger: logr.Discard(),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return meta.NewDefaultRESTMapper(nil), nil },
		NewCache:       func(*rest.Config, cache.Options) (cache.Cache, error) { return informers, nil },
		NewClient:      func(*rest.Config, client.Options) (client.Client, error) { return s.retirements, nil },
		Metrics:        metricsserver.Options{BindAddress: "0"},
		Controller:     config.Controller{SkipNameValidation: &once},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Register(ctx, m); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { followed.RunWithContext(ctx) })
	running.Go(func() {
		if err := m.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
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
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
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
			if gap := at[i].Sub(at[i-1]); gap < pause {
				t.Errorf("read again after %s, want at least %s", gap, pause)
			}
		}
		s.checkRetired(t, "a")
		if rt := s.getRetirement("r"); rt.Status.Phase != v1alpha1.Succeeded || len(rt.Finalizers) > 0 {
			t.Errorf("%s: %s, finalizers %v", rt.Status.Phase, rt.Status.Message, rt.Finalizers)
		}
	})
}

// TestInstanceIsReadSoonAfterOutage makes the cloud fail for an hour with changing messages.
func TestInstanceIsReadSoonAfterOutage(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupOfTwo(t)
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
		if most := 2 * 60; during > most {
			t.Errorf("%d reads in an outage of an hour, want at most %d", during, most)
		}
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
	if relevantNodeChangePredicate().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Error("another client's annotation triggers a reconcile")
	}
	after.Annotations[drainability.Detached] = "true"
	if !relevantNodeChangePredicate().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Error("a protection does not trigger it")
	}
}

// listOnlyAPI is an API server that answers a list with a list.
type listOnlyAPI struct{}

// IsWatchListSemanticsUnSupported is called by client-go through its name.
func (listOnlyAPI) IsWatchListSemanticsUnSupported() bool { return true }
