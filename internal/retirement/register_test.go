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

// run has a controller hear of the sim's records by a watch, and walk them, as in a manager.
func (s *sim) run(ctx context.Context, t *testing.T, c *Controller) {
	t.Helper()
	followed := toolscache.NewSharedIndexInformer(toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			var all v1alpha1.NodeRetirementList
			return &all, s.records.List(ctx, &all)
		},
		WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			return s.records.Watch(ctx, &v1alpha1.NodeRetirementList{})
		},
	}, listing{}), &v1alpha1.NodeRetirement{}, 0, nil)
	informers := &informertest.FakeInformers{
		Scheme: s.records.Scheme(),
		InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{
			v1alpha1.GroupVersion.WithKind("NodeRetirement"): followed,
			corev1.SchemeGroupVersion.WithKind("Node"):       controllertest.NewFakeInformer(controllertest.Synced),
		},
	}
	once := true
	m, err := manager.New(&rest.Config{}, manager.Options{
		Scheme: s.records.Scheme(), Logger: logr.Discard(),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return meta.NewDefaultRESTMapper(nil), nil },
		NewCache:       func(*rest.Config, cache.Options) (cache.Cache, error) { return informers, nil },
		NewClient:      func(*rest.Config, client.Options) (client.Client, error) { return s.records, nil },
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

// asked notes when the cloud is asked about the machine, and answers by how often it was.
func (s *sim) asked(answer func(n int) error) func() []time.Time {
	var mu sync.Mutex
	var at []time.Time
	s.atEach(func(moment, request string) error {
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

// TestACloudThatWantsToBeLeftAloneIsNotAskedBecauseOfWhatWasWrittenDown throttles the first requests, each in other words, so
// that each is written down anew.
func TestACloudThatWantsToBeLeftAloneIsNotAskedBecauseOfWhatWasWrittenDown(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		const pause, times = 30 * time.Second, 5
		asked := s.asked(func(n int) error {
			if n > times {
				return nil
			}
			return &cloud.ThrottledError{After: pause, Err: fmt.Errorf("429, tracking ID %d", n)}
		})
		s.run(ctx, t, s.controller(t))
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		time.Sleep(time.Hour)
		at := asked()
		for i := 1; i <= times; i++ {
			if gap := at[i].Sub(at[i-1]); gap < pause {
				t.Errorf("asked again after %s, want %s at the least", gap, pause)
			}
		}
		s.hasLeft(t, "a")
		if rt := s.record("r"); rt.Status.Phase != v1alpha1.Succeeded || len(rt.Finalizers) > 0 {
			t.Errorf("%s: %s, finalizers %v", rt.Status.Phase, rt.Status.Message, rt.Finalizers)
		}
	})
}

// TestAfterAnOutageAMachineIsSoonAskedForAgain has the cloud fail for an hour, each time in other words.
func TestAfterAnOutageAMachineIsSoonAskedForAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := ci(t)
		recovered := time.Now().Add(time.Hour)
		asked := s.asked(func(n int) error {
			if time.Now().Before(recovered) && n < 1000 { // one that never pauses would not come to the end of the outage
				return fmt.Errorf("read tcp 10.0.0.1:%d: connection reset by peer", 40000+n)
			}
			return nil
		})
		s.run(ctx, t, s.controller(t))
		s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		time.Sleep(2 * time.Hour)
		during := 0
		at := asked()
		for during < len(at) && at[during].Before(recovered) {
			during++
		}
		if most := 2 * 60; during > most {
			t.Errorf("asked %d times in an outage of an hour, want %d at most", during, most)
		}
		if during == len(at) || at[during].Sub(recovered) > longestPause {
			t.Errorf("asked %d times, not within %s after the outage", len(at), longestPause)
		}
		s.hasLeft(t, "a")
	})
}

func TestARetirementHearsAtOnceThatItsNodeIsToBeLeftAlone(t *testing.T) {
	before := &corev1.Node{}
	after := before.DeepCopy()
	after.Annotations = map[string]string{"example.com/heartbeat": "2"}
	if nodeMatters().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Error("it is woken by an annotation of somebody's")
	}
	after.Annotations[drainability.Detached] = "true"
	if !nodeMatters().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Error("it is not woken by a hold")
	}
}

// listing is an API server that answers a list with a list.
type listing struct{}

// IsWatchListSemanticsUnSupported is asked by its name.
func (listing) IsWatchListSemanticsUnSupported() bool { return true }
